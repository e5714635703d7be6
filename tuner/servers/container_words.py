"""A command that runs a container, taken apart and put together so that what it starts can be found and ended."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from search_spaces.errors import UserError
from tuner.containers import PROGRAMS
from tuner.secret_words import is_secret_variable

OWNER_LABEL = "layout-tune.owner"
NAME_PREFIX = "layout-tune-"

# `docker run --help`, and what podman and nerdctl add: options that no value follows. All others take one.
_SWITCHES = frozenset(
    {
        *("--detach", "--interactive", "--tty", "--rm", "--init", "--privileged", "--publish-all", "--read-only"),
        *("--no-healthcheck", "--oom-kill-disable", "--disable-content-trust", "--quiet", "--sig-proxy", "--help"),
        *("--use-api-socket", "--replace", "--tls-verify", "--env-host", "--http-proxy", "--rmi", "--no-hosts"),
        *("--no-hostname", "--read-only-tmpfs", "--passwd", "--rootfs", "--insecure-registry"),
    }
)
_LONG = {
    "-d": "--detach",
    "-i": "--interactive",
    "-t": "--tty",
    "-P": "--publish-all",
    "-q": "--quiet",
    "-e": "--env",
    "-p": "--publish",
    "-v": "--volume",
    "-l": "--label",
    "-u": "--user",
    "-w": "--workdir",
    "-m": "--memory",
    "-c": "--cpu-shares",
    "-h": "--hostname",
    "-a": "--attach",
    "--net": "--network",
}
# Likewise of what stands before the command: `docker --help`, podman(1), `nerdctl --help`.
_GLOBAL_SWITCHES = frozenset(
    {
        *("-D", "--debug", "--tls", "--tlsverify", "--remote", "-r", "--debug-full", "-v", "--version", "-h", "--help"),
        *("--noout", "--syslog", "--transient-store", "--trace", "--insecure-registry", "--experimental"),
        *("--kube-hide-dupe",),
    }
)
_RUNNERS = frozenset(
    {"sudo", "doas", "env", "nice", "ionice", "timeout", "setsid", "nohup", "stdbuf", "numactl", "taskset", "srun"}
)
"""What may stand before the container's program, and would run its other commands as well."""
_COMMANDS = frozenset({"run", "exec", "compose", "start", "container", "create"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_IN_SHELL = re.compile(r"(?:^|[\s;&|(])(?:docker|podman|nerdctl)\s+(?:[^;&|]*\s)?run\s")
_PUBLISHED = re.compile(r"(?:(?:[\d.]+|\[[0-9a-f:]+\]):)?(?P<here>\d+):(?P<inside>\d+)(?:/tcp)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """words: as they were written. name: the long one. value: empty for a switch."""

    words: tuple[str, ...]
    name: str
    value: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRun:
    """program: the words up to the container's program and its own options, which run its other commands too.

    verb: `run`, or `container run`. inner: what is run in the container, or handed to its entry point.
    """

    program: tuple[str, ...]
    verb: tuple[str, ...]
    options: tuple[Option, ...]
    image: str
    inner: tuple[str, ...]

    @property
    def name(self) -> str:
        """As the command says; empty where it gives none."""
        return self._last("--name")

    @property
    def is_by_another_user(self) -> bool:
        """Whether the program runs with an environment that is not the caller's."""
        return any(Path(word).name in {"sudo", "doas"} for word in self.program)

    @property
    def shares_the_network(self) -> bool:
        """Whether a port inside is the same port outside without more ado."""
        network = self._last("--network")
        return network.partition(":")[0] in {"host", "container", "ns"} or bool(self._last("--pod"))

    @property
    def published(self) -> Mapping[int, int]:
        """Ports that the command itself publishes: here to inside."""
        found = (_PUBLISHED.fullmatch(each.value) for each in self.options if each.name == "--publish")
        return {int(each["here"]): int(each["inside"]) for each in found if each is not None}

    def publishes_by_us(self, port: int) -> bool:
        return not self.shares_the_network and port not in self.published

    def mounts(self, folder: Path) -> bool:
        """Whether the container sees `folder`, of this machine, under the same path."""
        targets = []
        for each in self.options:
            if each.name == "--volume":
                targets.append([*each.value.split(":"), ""][1])
            elif each.name == "--mount":
                fields = dict(part.partition("=")[::2] for part in each.value.split(","))
                targets.append(next((fields[key] for key in ("target", "destination", "dst") if key in fields), ""))
        return any(target.startswith("/") and folder.is_relative_to(target) for target in targets)

    def without(self, *names: str) -> tuple[Option, ...]:
        return tuple(each for each in self.options if each.name not in names)

    def _last(self, name: str) -> str:
        return next((each.value for each in reversed(self.options) if each.name == name), "")


def container_run_of(words: Sequence[str]) -> ContainerRun | None:
    """None where `words` run no container.

    Raises UserError where they start one in a way in which it could not be ended, or its log be read.
    """
    for word in words:
        if re.search(r"\s", word) and _IN_SHELL.search(word):
            raise UserError(
                "a container that a shell starts cannot be ended with it: give `docker run ...` itself as "
                "--engine-command, without a shell around it"
            )
    at = _program_at(words)
    if at is None:
        return None
    program = Path(words[at]).name
    begin = _command_at(words, at)
    verb = tuple(words[begin : begin + (2 if "container" in words[begin : begin + 1] else 1)])
    if verb not in {("run",), ("container", "run")}:
        written = " ".join((program, *verb))
        raise UserError(
            f"`{written}` starts no server that ends with the command: --engine-command takes `{program} run` alone"
        )
    options, place = _options_of(words, begin + len(verb))
    if place >= len(words):
        raise UserError(f"--engine-command names no image: {program} run [options] IMAGE [command]")
    run = ContainerRun(
        program=tuple(words[:begin]),
        verb=verb,
        options=tuple(options),
        image=words[place],
        inner=tuple(words[place + 1 :]),
    )
    _refuse_what_cannot_be_ended(run, program)
    return run


def _program_at(words: Sequence[str]) -> int | None:
    """Where the container's program stands, if `words` start one, with whichever of its commands."""
    runs_others = False
    for place, word in enumerate(words):
        if Path(word).name in PROGRAMS and (place == 0 or runs_others):
            begin = _command_at(words, place)
            # behind an option it may be that one's value (`sudo -u docker python3`)
            if not words[place - 1].startswith("-") or place == 0 or _COMMANDS & set(words[begin : begin + 1]):
                return place
        runs_others = runs_others or Path(word).name in _RUNNERS or _ASSIGNMENT.fullmatch(word) is not None
        if not runs_others:
            return None
    return None


def _command_at(words: Sequence[str], program: int) -> int:
    """Where the command stands (`run`), behind the options of the program itself; one past the end where none does."""
    place = program + 1
    while place < len(words) and words[place].startswith("-"):
        word = words[place]
        is_whole = "=" in word or word in _GLOBAL_SWITCHES or (not word.startswith("--") and len(word) > len("-x"))
        place += 1 if is_whole else 2
    return min(place, len(words))


def _options_of(words: Sequence[str], place: int) -> tuple[list[Option], int]:
    """The options from `place` on, and the place of the image behind them."""
    options: list[Option] = []
    while place < len(words) and words[place].startswith("-") and words[place] != "-":
        word = words[place]
        place += 1
        if word == "--":
            break
        if not word.startswith("--"):
            taken, takes_next = _letters(word, "".join(words[place : place + 1]))
            options += taken
            place += takes_next
            continue
        name, equals, value = word.partition("=")
        name = _LONG.get(name, name)
        if equals or name in _SWITCHES:
            options.append(Option(words=(word,), name=name, value=value))
            continue
        options.append(
            Option(words=tuple(words[place - 1 : place + 1]), name=name, value="".join(words[place : place + 1]))
        )
        place += 1
    return options, place


def _letters(word: str, following: str) -> tuple[list[Option], bool]:
    """`-it`, `-p80:80`, `-itp 80:80`: each letter an option, the last one's value attached or `following`.

    Also whether `following` was used up.
    """
    options: list[Option] = []
    for place, letter in enumerate(word[1:], start=1):
        name = _LONG.get(f"-{letter}", f"-{letter}")
        if name in _SWITCHES:
            options.append(Option(words=(f"-{letter}",), name=name))
            continue
        attached = word[place + 1 :].removeprefix("=")
        value = attached or following
        return [*options, Option(words=(f"-{letter}", value), name=name, value=value)], not attached
    return options, False


def _refuse_what_cannot_be_ended(run: ContainerRun, program: str) -> None:
    for option in run.options:
        if option.name == "--detach" and option.value != "false":
            raise UserError(
                f"{option.words[0]} lets {program} go on without the container: its log would be lost, and its end not "
                "seen; leave it out of --engine-command"
            )
        if option.name == "--restart" and option.value not in {"no", ""}:
            raise UserError(
                f"--restart {option.value} starts a server again that has died: a death would not be seen; leave it "
                "out of --engine-command"
            )
        if option.name == "--network" and option.value == "none":
            raise UserError("--network none: nothing could reach a server in that container")


def new_name() -> str:
    return f"{NAME_PREFIX}{secrets.token_hex(8)}"


def bearing(
    run: ContainerRun, *, name: str, owner: str, host: str, port: int, env: Sequence[str], by_file: bool
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The words behind the verb that start `run` so that it can be found and ended, and what their environment needs.

    Without a terminal, which there is none of, and without `--rm`: why a container died is read before it is removed.
    env: variables of the caller's that the container gets, by name alone, so that no value stands on a command line;
    values of secret variables that `run` itself sets are taken off it too. Where the container has a network of its own
    and `run` does not publish `port`, it is published on `host` alone. The server then has to listen on all addresses
    inside. by_file: the variables go in by a file, which is named elsewhere.
    """
    given: dict[str, str] = {}
    kept: list[str] = []
    for option in run.without("--interactive", "--tty", "--rm", "--detach", "--name"):
        variable, equals, value = option.value.partition("=")
        if option.name == "--env" and equals and is_secret_variable(variable):
            given[variable] = value
        else:
            kept += option.words
    ours = ["--name", name, "--label", f"{OWNER_LABEL}={owner}"]
    if run.publishes_by_us(port):
        ours += ["--publish", f"{host}:{port}:{port}"]
    if not by_file:
        ours += [word for each in dict.fromkeys([*env, *given]) for word in ("--env", each)]
    return (*ours, *kept, run.image, *_inner(run, host, port)), given


def _inner(run: ContainerRun, host: str, port: int) -> tuple[str, ...]:
    """The command inside: listening on all addresses of a network of its own, at the port that is published."""
    if run.shares_the_network:
        return run.inner
    inner = list(run.inner)
    for place, word in enumerate(inner[:-1]):
        if word == "--host" and inner[place + 1] == host:
            inner[place + 1] = "0.0.0.0"  # noqa: S104 - inside; outside only what is published is reached
        elif word == "--port" and inner[place + 1] == str(port):
            inner[place + 1] = str(run.published.get(port, port))
    return tuple(inner)


def in_the_image(run: ContainerRun, name: str, python: Sequence[str], code: str) -> tuple[str, ...]:
    """The words that run `code` by a Python in an image that is there already, without GPUs, ports or a name in use."""
    dropped = (
        "--interactive",
        "--tty",
        "--rm",
        "--detach",
        "--name",
        "--publish",
        "--publish-all",
        "--gpus",
        "--cidfile",
    )
    kept = [word for option in run.without(*dropped, "--pull", "--device") for word in option.words]
    ours = ("--rm", "--pull", "never", "--name", name)
    return (*run.program, *run.verb, *ours, *kept, run.image, *python, "-c", code)
