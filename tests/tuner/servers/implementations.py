"""Every way to start a server, for the contract suite: a new one is a line of `IMPLEMENTATIONS`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.services.machine import Machine
from tests.services.ssh_server import Sshd
from tuner.servers.attached import AttachedServer, attach
from tuner.servers.host import Host, unused_port
from tuner.servers.protocol import Launch, Launcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """source: the Python that makes `launcher`, which tests run in this process and in tuners that they kill; it may
    ask pytest for fixtures. words: what of a plain command becomes the one to be launched. python: one for servers,
    which knows this project. marks: of the tests. lacks: names of tests of the contract, each with the reason why it
    cannot hold. starts: whether it starts its servers and ends them; else the test starts them, and it attaches.
    """

    source: Callable[[pytest.FixtureRequest], str]
    words: Callable[[tuple[str, ...]], tuple[str, ...]] = lambda command: command
    python: str = sys.executable
    marks: tuple[pytest.MarkDecorator, ...] = ()
    lacks: dict[str, str] | None = None
    starts: bool = True

    def launcher(self, request: pytest.FixtureRequest) -> Launcher:
        names: dict[str, Any] = {}
        exec(self.source(request), names)
        request.addfinalizer(lambda: [host.close() for host in names["launcher"].hosts])
        made: Launcher = names["launcher"]
        return made


class AttachingLauncher:
    """Attaches to what answers at the address of a launch, which somebody else has carried out."""

    @property
    def hosts(self) -> tuple[Host, ...]:
        return ()

    def free_port(self) -> int:
        return unused_port()

    def start(self, launch: Launch) -> AttachedServer:
        return attach(f"http://{launch.host}:{launch.port}")


def _attach(_request: pytest.FixtureRequest) -> str:
    return "from tests.tuner.servers.implementations import AttachingLauncher\nlauncher = AttachingLauncher()\n"


def _local(_request: pytest.FixtureRequest) -> str:
    return "from tuner.servers.local import LocalLauncher\nlauncher = LocalLauncher()\n"


def _ssh(request: pytest.FixtureRequest) -> str:
    sshd: Sshd = request.getfixturevalue("sshd")
    return (
        "from tuner.servers.guarded import GuardedLauncher\nfrom tuner.servers.ssh_host import SshHost\n"
        f"launcher = GuardedLauncher(SshHost({sshd.destination!r}, {sshd.options!r}))\n"
    )


def _docker(request: pytest.FixtureRequest) -> str:
    request.getfixturevalue("docker")
    return (
        "from tuner.servers.local import LocalLauncher\nfrom tuner.servers.wrapped import ContainerLauncher\n"
        "launcher = ContainerLauncher(LocalLauncher())\n"
    )


def _in_docker(command: tuple[str, ...]) -> tuple[str, ...]:
    return ("docker", "run", "--network", "host", "image", *command)


def _in_shell(command: tuple[str, ...]) -> tuple[str, ...]:
    """In a shell that stays, so that the server is a child of what was started."""
    return ("bash", "--norc", "-c", '"$@"; exit $?', "bash", *command)


_ITS_CODE = "the shell ends at once when it is asked to, and the exit code is the shell's"
_LISTED = "test_no_secret_of_environment_or_flags_stands_in_a_listing_but_in_the_server_s_own"
_SHELL_LACKS = {
    "test_a_server_asked_to_end_may_end_gracefully": _ITS_CODE,
    "test_the_whole_tree_is_gone_even_children_that_left_the_group_and_ignore_signals": _ITS_CODE,
    _LISTED: "the shell has the server's flags on its own command line, as its user wrote it",
}
_DOCKER_LACKS = {
    _LISTED: "`docker run` has the server's flags on its own command line; test_wrapped.py tells of the environment"
}


def _with_priority(command: tuple[str, ...]) -> tuple[str, ...]:
    return ("nice", "-n", "1", "env", "WRAPPED=yes", *command)


def _systemd(request: pytest.FixtureRequest) -> str:
    machine: Machine = request.getfixturevalue("machine")
    return (
        "from tests.services.machine import Machine\nfrom tuner.servers.guarded import GuardedLauncher\n"
        f"from tuner.servers.systemd import systemd_on\nlauncher = GuardedLauncher(systemd_on(Machine(pid={machine.pid})))\n"
    )


def _slurm(request: pytest.FixtureRequest) -> str:
    env: dict[str, str] = request.getfixturevalue("allocation")
    return (
        "import os\nfrom tuner.servers.slurm import SlurmLauncher, allocation_of\n"
        f"os.environ['SLURM_CONF'] = {env['SLURM_CONF']!r}\nallocation = allocation_of({slurm_words(env)!r})\n"
        "launcher = SlurmLauncher(allocation, allocation.nodes[0])\n"
    )


def slurm_words(env: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith("SLURM_")}


IMPLEMENTATIONS: dict[str, Implementation] = {
    "attach": Implementation(source=_attach, starts=False),
    "docker": Implementation(source=_docker, words=_in_docker, lacks=_DOCKER_LACKS),
    "local": Implementation(source=_local),
    "nice env": Implementation(source=_docker, words=_with_priority),
    "shell": Implementation(source=_docker, words=_in_shell, lacks=_SHELL_LACKS),
    "ssh": Implementation(source=_ssh, marks=(pytest.mark.services,)),
    "slurm": Implementation(source=_slurm, marks=(pytest.mark.services,)),
    "systemd": Implementation(source=_systemd, marks=(pytest.mark.services,)),
}


def every_implementation(*, starts: bool | None = None) -> list[Any]:
    """starts: those alone that do, or do not."""
    return [
        pytest.param(name, marks=each.marks, id=name)
        for name, each in IMPLEMENTATIONS.items()
        if starts in {None, each.starts}
    ]
