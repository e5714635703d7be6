"""Log lines in SGLang's shape, stamped with simulated time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime, timedelta

from tuner.simulator.clock import VirtualClock


class Log:
    """Writes to stderr. The clock's zero is the wall time at which the process began."""

    def __init__(self, clock: VirtualClock, on_line: Callable[[str], None] = lambda _: None) -> None:
        """on_line: called after each line."""
        self._clock = clock
        self._on_line = on_line
        self._zero = datetime.now()  # noqa: DTZ005  # the engine prints local time

    def line(self, message: str, *, rank: str = "") -> None:
        """`rank`: who speaks, as SGLang abbreviates it: `TP0`, `DP1 TP4 EP4`; empty for the server process."""
        time = self._zero + timedelta(seconds=self._clock.now_s)
        prefix = f" {rank}" if rank else ""
        self.raw(f"[{time:%Y-%m-%d %H:%M:%S}{prefix}] {message}")

    def raw(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
        self._on_line(text)
