"""The nodes of one layout: they meet at node 0's `--dist-init-addr`, and none outlives another.

As in SGLang 0.5.23 (srt/entrypoints/engine.py:1234): nodes above 0 serve no requests, wait for node 0 to tell them to
end, and take no SIGTERM for an end of their own. A node whose neighbour is gone dies of the closed connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from search_spaces.layout import Layout
from search_spaces.verdict import Stage
from tuner.simulator.deaths import Failure

_RETRY_S = 0.05
_LOADED = b"loaded\n"
_END = b"end\n"


class Peers:
    """One node's connections to the others; none where there is one node, or the launch names no place to meet."""

    def __init__(self, *, rank: int, count: int, meet: str) -> None:
        self.rank = rank
        self._count = count if meet else 1
        self._host, _, port = meet.rpartition(":")
        self._port = int(port) if port.isdigit() else 0
        self._writers: list[asyncio.StreamWriter] = []
        self._listening: list[asyncio.Task[None]] = []
        self._have_met = asyncio.Event()
        self._have_loaded = asyncio.Event()
        self._loaded = 0
        self._is_over = False
        self.told_to_end = asyncio.Event()
        """Node 0 says that all is over."""
        self.on_gone: Callable[[], None] = lambda: None
        """Called when a neighbour is gone without that."""

    async def meet(self) -> None:
        """Returns once all are there."""
        if self._count == 1:
            return
        host = self._host.strip("[]")
        if self.rank == 0:
            self._server = await asyncio.start_server(self._add, host, self._port)
            await self._have_met.wait()
            return
        while True:
            try:
                await self._add(*await asyncio.open_connection(host, self._port))
            except OSError:
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def all_loaded(self) -> None:
        """Returns once every node has loaded; a follower only says so."""
        if self._count == 1:
            return
        if self.rank:
            await self._say(_LOADED)
        else:
            await self._have_loaded.wait()

    async def tell_the_end(self) -> None:
        self._is_over = True
        if self.rank == 0:
            await self._say(_END)

    async def _add(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self._listening.append(asyncio.create_task(self._listen(reader)))
        if len(self._writers) == self._count - 1:
            self._have_met.set()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while not self._is_over:
            try:
                line = await reader.readline()
            except OSError:
                line = b""
            if line == _LOADED:
                self._loaded += 1
                if self._loaded == self._count - 1:
                    self._have_loaded.set()
            elif line == _END:
                self._is_over = True
                self.told_to_end.set()
            elif not self._is_over:
                self._is_over = True
                self.on_gone()

    async def _say(self, line: bytes) -> None:
        for writer in self._writers:
            with contextlib.suppress(OSError):
                writer.write(line)
                await writer.drain()


def neighbour_is_gone(stage: Stage) -> Failure:
    """In gloo's words (gloo/transport/tcp/pair.cc)."""
    return Failure(
        stage=stage,
        exception="RuntimeError",
        text="[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:40001",
        place="distributed/parallel_state.py:1300",
    )


def first_rank_of(layout: Layout, node: int) -> tuple[int, int]:
    """The pipeline stage and the TP rank with which a node's ranks begin (srt/entrypoints/engine.py:2045)."""
    nodes_per_stage = max(layout.nnodes // max(layout.pp_size, 1), 1)
    stages_per_node = max(layout.pp_size // max(layout.nnodes, 1), 1)
    ranks_per_node = layout.tp_size // nodes_per_stage
    return stages_per_node * (node // nodes_per_stage), ranks_per_node * (node % nodes_per_stage)
