"""The logs of a server, one or, where it runs on several nodes, one of each; and which of them tells its end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from tuner.diagnosis_log import first_failure, is_consequence, plain
from tuner.outcome import Crashed, Environment, Hung, Illegal, Outcome, OutOfMemory
from tuner.server_log import ServerLog
from tuner.servers.nodes import NodesServer
from tuner.servers.protocol import Server

_TIME = re.compile(r"\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,]?\d*)")
_LAST_OF_ALL = "~"


class NodeLogs(ServerLog):
    """Node 0's log, with those of the other nodes: what any of them says is progress."""

    def __init__(self, server: NodesServer, *, secrets: Sequence[str] = ()) -> None:
        first, *others = server.log_paths
        super().__init__(first, secrets=secrets)
        self._server = server
        self._others = [ServerLog(path, secrets=secrets) for path in others]

    def read(self) -> bool:
        return any([super().read(), *(log.read() for log in self._others)])

    def tail(self) -> str:
        """Of the node whose log tells the end: the one that died first, else the one that failed first by itself."""
        tails = [super().tail(), *(log.tail() for log in self._others)]
        return tails[_telling(tails, self._server)]

    def shorten(self) -> int:
        return super().shorten() + sum(log.shorten() for log in self._others)


def logs_of(server: Server, *, secrets: Sequence[str] = ()) -> ServerLog:
    if isinstance(server, NodesServer):
        return NodeLogs(server, secrets=secrets)
    return ServerLog(server.launch.log_path, secrets=secrets)


def named_by_node(outcome: Outcome, server: Server) -> Outcome:
    """An end with the node that died first, where there are several and one has."""
    if not isinstance(server, NodesServer) or (death := server.death()) is None:
        return outcome
    log = server.log_paths[death.rank].name
    line = f"first node to die: {death.node}, exit code {death.code}; its log is {log}"
    match outcome:
        case Hung():
            return replace(outcome, evidence=(line, *outcome.evidence))
        case Crashed() | Environment() | Illegal() | OutOfMemory():
            cause = f"{outcome.cause} (first node to die: {death.node})"
            return replace(outcome, cause=cause, evidence=(line, *outcome.evidence))
    return outcome


def _telling(tails: Sequence[str], server: NodesServer) -> int:
    """Nodes whose neighbours are gone say so as loudly as the one that failed: what is no consequence counts first,
    and then the time that the log names, as far as the clocks agree.
    """
    if (death := server.death()) is not None:
        return death.rank
    failed = []
    for rank, tail in enumerate(tails):
        failure = first_failure(plain(tail))
        if failure.cause:
            time = _TIME.match(failure.lines[0])
            failed.append((is_consequence(failure), time[1] if time else _LAST_OF_ALL, rank))
    return min(failed)[-1] if failed else 0
