"""Whether the load client itself stood in the way: what it took of its core, and how late its loop was."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import numpy as np

MOST_OF_A_CORE = 0.85
"""Above this share of one core the client may be what is measured."""
LATEST_S = 0.025
"""Above this lateness of the loop at the 99th percentile, times of first tokens are the client's as well."""
_BEAT_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientShare:
    """core: CPU time of the loop's thread over the wall time of the run. late_p99_s: how late timers fired
    (numpy's linear percentile); 0 where the run was too short for one."""

    core: float = 0.0
    late_p99_s: float = 0.0

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the figures may be the client's rather than the server's; empty when they are not."""
        found = []
        if self.core > MOST_OF_A_CORE:
            found.append(f"the load client was busy {self.core:.0%} of its time: the server may be faster")
        if self.late_p99_s > LATEST_S:
            found.append(f"the load client answered up to {self.late_p99_s * 1e3:.0f} ms late (p99)")
        return tuple(found)


class Observer:
    """Runs beside a load on the same event loop."""

    def __init__(self) -> None:
        self._late_s: list[float] = []
        self._task: asyncio.Task[None] | None = None
        self._began = (0.0, 0.0)

    def start(self) -> None:
        self._began = (time.perf_counter(), time.thread_time())
        self._task = asyncio.create_task(self._beat())

    def end(self) -> ClientShare:
        if self._task is None:
            return ClientShare()
        self._task.cancel()
        wall_s, cpu_s = time.perf_counter() - self._began[0], time.thread_time() - self._began[1]
        late_p99_s = float(np.quantile(self._late_s, 0.99)) if self._late_s else 0.0
        return ClientShare(core=cpu_s / max(wall_s, 1e-9), late_p99_s=late_p99_s)

    async def _beat(self) -> None:
        while True:
            due_s = time.perf_counter() + _BEAT_S
            await asyncio.sleep(_BEAT_S)
            self._late_s.append(max(0.0, time.perf_counter() - due_s))
