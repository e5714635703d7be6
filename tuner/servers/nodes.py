"""One layout over several nodes, each of which runs its part of it: the first one to die ends all."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.diagnosis_log import first_failure, is_consequence, plain
from tuner.secret_words import masked_words
from tuner.server_log import ServerLog
from tuner.servers.host import Host, HostError
from tuner.servers.protocol import Launch, Launcher, LaunchError, Server

COMMANDS_FILE = "nodes.txt"
"""Beside the logs: what was started on which node, secrets masked."""

SETTLE_S = 1.0
"""How long the nodes' ends may lie apart that are one end: a death on one closes the others' connections at once."""

_RENDEZVOUS_PORTS = 8
"""The engine binds the port of --dist-init-addr and, under attention DP, six above it, which every node looks for
(0.5.23, server_args.py:835).
"""
_PORT_TRIES = 10
# The first of so many free ports; with an argument, whether those from there on are free.
_FREE_PORTS = f"""
import socket, sys
def free(port):
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(('', port))
        except OSError:
            return False
    return True
def all_free(first):
    return first + {_RENDEZVOUS_PORTS} <= 65535 and all(map(free, range(first, first + {_RENDEZVOUS_PORTS})))
if len(sys.argv) > 1:
    print(int(all_free(int(sys.argv[1]))))
    sys.exit()
while True:
    with socket.socket() as s:
        s.bind(('', 0))
        first = s.getsockname()[1]
    if all_free(first):
        break
print(first)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """launcher: of this node alone. address: under which the others reach it."""

    launcher: Launcher
    address: str

    @property
    def host(self) -> Host:
        return self.launcher.hosts[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """The first of a layout's nodes to end. code: as a server's exit code."""

    rank: int
    name: str
    code: int

    @property
    def node(self) -> str:
        return f"node {self.rank}{f' ({self.name})' if self.name else ''}"


class NodesServer:
    """One server of several parts. It answers from node 0; the other nodes serve no requests."""

    def __init__(self, launch: Launch, names: Sequence[str], parts: Sequence[Server]) -> None:
        self._launch = launch
        self._names = tuple(names)
        self._parts = tuple(parts)
        self._seen_s: dict[int, float] = {}
        self._death: Death | None = None

    @property
    def launch(self) -> Launch:
        return self._launch

    @property
    def base_url(self) -> str:
        return self._parts[0].base_url

    @property
    def pid(self) -> int:
        """Of node 0's part, as far as it has one here."""
        return getattr(self._parts[0], "pid", 0)

    @property
    def log_paths(self) -> tuple[Path, ...]:
        """By node rank."""
        return tuple(part.launch.log_path for part in self._parts)

    def death(self) -> Death | None:
        """Which node ended first; None while all live, and until their neighbours' ends have been seen too."""
        return self._settled(within_s=SETTLE_S)

    def exit_code(self) -> int | None:
        death = self.death()
        return None if death is None else death.code

    def lost(self) -> str:
        for rank, part in enumerate(self._parts):
            if why := part.lost():
                return f"node {rank}: {why}"
        return ""

    def stop(self) -> None:
        self._settled(within_s=0.0)  # what ends from here on was told to
        _stop_all(self._parts)

    def _settled(self, *, within_s: float) -> Death | None:
        if self._death is not None:
            return self._death
        codes = {rank: code for rank, part in enumerate(self._parts) if (code := part.exit_code()) is not None}
        now_s = time.monotonic()
        for rank in codes:
            self._seen_s.setdefault(rank, now_s)
        if not codes or (len(codes) < len(self._parts) and now_s - min(self._seen_s.values()) < within_s):
            return None
        first = min(codes, key=self._precedence)
        self._death = Death(rank=first, name=self._names[first], code=codes[first])
        return self._death

    def _precedence(self, rank: int) -> tuple[bool, float, int]:
        """A node whose neighbour is gone may be seen dead before that one is: its own log says so."""
        failure = first_failure(plain(ServerLog(self.log_paths[rank]).tail()))
        return is_consequence(failure), self._seen_s[rank], rank


class NodesLauncher:
    """A layout of one node runs on the first alone."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = tuple(nodes)

    @property
    def hosts(self) -> tuple[Host, ...]:
        return tuple(node.host for node in self._nodes)

    def free_port(self) -> int:
        return self._nodes[0].launcher.free_port()

    def start(self, launch: Launch) -> Server:
        count = nodes_of(launch.command)
        if count == 1:
            return self._nodes[0].launcher.start(launch)
        if count > len(self._nodes):
            raise LaunchError(f"a layout of {count} nodes cannot be started on {len(self._nodes)}")
        nodes = self._nodes[:count]
        launches = self._launches(launch, nodes)
        parts: list[Server] = []
        try:
            for rank, (node, own) in enumerate(zip(nodes, launches, strict=True)):
                try:
                    parts.append(node.launcher.start(own))
                except LaunchError as error:
                    raise LaunchError(f"node {rank}: {error}") from error
        except BaseException:
            _stop_all(parts)
            raise
        return NodesServer(launch, [node.host.name for node in nodes], parts)

    def _launches(self, launch: Launch, nodes: Sequence[Node]) -> list[Launch]:
        first = nodes[0]
        try:
            meet = f"{first.address}:{_rendezvous_port([node.host for node in nodes])}"
        except (HostError, OSError) as error:
            raise LaunchError(str(error)) from error
        launches = []
        for rank, node in enumerate(nodes):
            # On node 0 it is chosen already. Elsewhere only the engine's health server listens there.
            port = node.launcher.free_port() if rank else launch.port
            launches.append(
                replace(
                    launch,
                    command=command_of(launch.command, rank=rank, meet=meet, port=port),
                    port=port,
                    log_path=log_path_of(launch.log_path, rank),
                )
            )
        with contextlib.suppress(OSError):  # the start says it of the log
            launch.log_path.parent.mkdir(parents=True, exist_ok=True)
            text = "".join(
                f"{node.host.name}: {shlex.join(masked_words(own.command))}\n"
                for node, own in zip(nodes, launches, strict=True)
            )
            launch.log_path.with_name(COMMANDS_FILE).write_text(text, encoding="utf-8", errors="replace")
        return launches


def nodes_of(command: Sequence[str]) -> int:
    """On how many nodes the layout of a launch runs: `--nnodes`, the last of them counts."""
    found = 1
    for word, following in zip(command, [*command[1:], ""], strict=True):
        name, is_joined, value = word.partition("=")
        if name == "--nnodes":
            number = value if is_joined else following
            found = int(number) if number.isdigit() else found
    return max(found, 1)


def command_of(command: Sequence[str], *, rank: int, meet: str, port: int = 0) -> tuple[str, ...]:
    """What one node runs. meet: ADDRESS:PORT of node 0, unless the command says its own. port: instead of its
    `--port`, 0 for that.
    """
    words = list(command)
    for at, word in enumerate(words[:-1]):
        if port and word == "--port":
            words[at + 1] = str(port)
    words += ["--node-rank", str(rank)]
    if not any(word.partition("=")[0] == "--dist-init-addr" for word in words):
        words += ["--dist-init-addr", meet]
    return tuple(words)


def log_path_of(path: Path, rank: int) -> Path:
    """`server.log` of node 0, `server.node1.log` and so on of the others."""
    return path.with_name(f"{path.stem}.node{rank}{path.suffix}") if rank else path


def files_of(path: Path) -> list[Path]:
    """The log of a server, and what is beside it of its other nodes."""
    others = sorted(
        path.parent.glob(f"{path.stem}.node*{path.suffix}"), key=lambda other: (len(other.name), other.name)
    )
    return [path, *others, *path.parent.glob(COMMANDS_FILE)]


def _rendezvous_port(hosts: Sequence[Host]) -> int:
    """Of the first host; those above it are free on all. Raises HostError."""
    first, *others = hosts
    for _ in range(_PORT_TRIES):
        port = _number(first, [])
        if all(_number(host, [str(port)]) for host in others):
            return port
    raise HostError(f"no {_RENDEZVOUS_PORTS} ports in a row were found that are free on {len(hosts)} nodes")


def _number(host: Host, words: Sequence[str]) -> int:
    answer = host.run([host.python, "-I", "-c", _FREE_PORTS, *words])
    if answer.code or not answer.stdout.strip().isdigit():
        raise HostError(f"{host.name}: {answer.stderr.decode(errors='replace').strip() or 'no answer of its Python'}")
    return int(answer.stdout)


def _stop_all(parts: Sequence[Server]) -> None:
    """At the same time: the nodes of one layout wait for each other."""
    if not parts:
        return
    with ThreadPoolExecutor(max_workers=len(parts), thread_name_prefix="stop") as pool:
        for ended in [pool.submit(part.stop) for part in parts]:
            ended.result()
