"""Servers in containers: `docker run ...`, or podman's or nerdctl's, whose end has to be asked of another process.

A container is no descendant of the command that runs it: a daemon holds it, and it outlives the command. So a keeper
(`container_keeper`) stands between guard and command, on the same host. It stops and removes the container whatever
ends first. Should guard and keeper be killed, the container is removed by `stop`, or by the next start of a tuner,
which finds it by a label. Other commands (`conda run`, `uv run`, `bash -c`, `env`, `numactl`, `srun`) start
descendants, which the guard ends: they pass through.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from search_spaces.errors import UserError
from tuner.servers import container_keeper
from tuner.servers.container_words import NAME_PREFIX, OWNER_LABEL, ContainerRun, bearing, container_run_of, new_name
from tuner.servers.host import Answer, Host, HostError
from tuner.servers.orphans import OWNER_VARIABLE, SERVER_VARIABLE, may_live, owner_mark
from tuner.servers.protocol import Launch, Launcher, LaunchError, Server

__all__ = ["ContainerLauncher", "ContainerServer", "container_notices", "end_container_orphans"]

KEEPER_SOURCE = Path(container_keeper.__file__).read_text()
_CONTROL_S = 30.0


class ContainerServer:
    """One container, and the process that keeps it."""

    def __init__(self, launch: Launch, keeper: Server, host: Host, program: Sequence[str], name: str) -> None:
        self._launch = launch
        self._keeper = keeper
        self._host = host
        self._program = tuple(program)
        self._is_stopped = False
        self.name = name

    @property
    def launch(self) -> Launch:
        return self._launch

    @property
    def base_url(self) -> str:
        return self._keeper.base_url

    def exit_code(self) -> int | None:
        return self._keeper.exit_code()

    def lost(self) -> str:
        return self._keeper.lost()

    def stop(self) -> None:
        if self._is_stopped:
            return
        if self._keeper.exit_code() is not None:
            self._remove()  # it may have been killed, and nobody waits for what it has left
        self._keeper.stop()
        self._remove()
        self._is_stopped = True

    def _remove(self) -> None:
        with contextlib.suppress(HostError, OSError):
            self._host.run([*self._program, "rm", "-f", self.name], timeout_s=_CONTROL_S)


class ContainerLauncher:
    """Starts by `inner`, on the first of its hosts, what `inner` alone could not end, and all else as it is."""

    def __init__(self, inner: Launcher) -> None:
        self._inner = inner

    @property
    def hosts(self) -> tuple[Host, ...]:
        return self._inner.hosts

    def free_port(self) -> int:
        return self._inner.free_port()

    def start(self, launch: Launch) -> Server:
        try:
            run = container_run_of(launch.command)
        except UserError as error:
            raise LaunchError(str(error)) from error
        return self._inner.start(launch) if run is None else self._contained(launch, run)

    def _contained(self, launch: Launch, run: ContainerRun) -> ContainerServer:
        host = self.hosts[0]
        _check_daemon(host, run.program)
        name = run.name or new_name()
        passed = [*launch.env, OWNER_VARIABLE, SERVER_VARIABLE]
        tail, given = bearing(
            run,
            name=name,
            owner=owner_mark(),
            host=launch.host,
            port=launch.port,
            env=passed,
            by_file=run.is_by_another_user,
        )
        order = {
            "program": run.program,
            "head": (*run.program, *run.verb),
            "tail": tail,
            "name": name,
            "grace_s": launch.grace_s,
            "given": given,
            "file_env": [*passed, *given] if run.is_by_another_user else [],
        }
        kept = replace(
            launch,
            command=(host.python, "-I", "-c", KEEPER_SOURCE),
            env={**launch.env, container_keeper.VARIABLE: json.dumps(order)},
            grace_s=launch.grace_s + container_keeper.SLACK_S,
        )
        return ContainerServer(launch, self._inner.start(kept), host, run.program, name)


def end_container_orphans(host: Host, command: Sequence[str]) -> int:
    """Removes the containers on `host` that a tuner which no longer lives has left, and returns how many there were.

    command: as servers are started; nothing is asked where that is by no container. A program or a host that does not
    answer has the next start say so. Raises UserError.
    """
    run = container_run_of(command)
    ended = 0
    with contextlib.suppress(HostError, OSError):
        ended = 0 if run is None else _end_orphans(host, run)
    return ended


def _end_orphans(host: Host, run: ContainerRun) -> int:
    listed = _ask(host, run.program, "ps", "-aq", "--no-trunc", "--filter", f"label={OWNER_LABEL}")
    label = f'{{{{index .Config.Labels "{OWNER_LABEL}"}}}}'
    ended = 0
    for container in listed.stdout.decode(errors="replace").split():
        mark = _ask(host, run.program, "inspect", "--format", label, container).stdout.decode(errors="replace").strip()
        if mark and not may_live(mark):
            ended += _ask(host, run.program, "rm", "-f", container).code == 0
    return ended


def container_notices(command: Sequence[str], model_path: str) -> tuple[str, ...]:
    """What is to be known of a server that `command` starts in a container; nothing where it starts none.

    Raises UserError where the container would not see the model.
    """
    run = container_run_of(command)
    if run is None:
        return ()
    folder = Path(model_path)
    if folder.is_dir() and not run.mounts(folder):
        path = folder.absolute()
        raise UserError(
            f"the container does not see {model_path}: put `-v {path}:{path}:ro` into --engine-command"
            + ("" if folder.is_absolute() else f" and name the model {path}")
        )
    if run.shares_the_network:
        return ()
    network = (
        "the container has a network of its own: its port is published on 127.0.0.1, and the server listens on all "
        "addresses inside it (--network host would do without)"
    )
    return (network,)


def _check_daemon(host: Host, program: Sequence[str]) -> None:
    """Raises LaunchError, in the program's own words, where it cannot be run or reaches no daemon."""
    try:
        answer = _ask(host, program, "ps", "-q", "--filter", f"name={NAME_PREFIX}none")
    except (HostError, OSError) as error:
        raise LaunchError(f"cannot start {program[0]!r}: {error}") from error
    if answer.code:
        said = answer.stderr.decode(errors="replace").strip() or f"exit code {answer.code}"
        raise LaunchError(f"{' '.join(program)} cannot be used: {said}")


def _ask(host: Host, program: Sequence[str], *words: str) -> Answer:
    return host.run([*program, *words], timeout_s=_CONTROL_S)
