"""Reads a server's log while it grows: how far the start has come, and what its last words were."""

from __future__ import annotations

import re
from pathlib import Path

from search_spaces.verdict import Stage

WARM_UP = "warm-up"
READY = "ready"

# In the order SGLang prints them (0.5.23; older ones word the first otherwise). The name is what the server is busy
# with from that line on.
_MILESTONES: tuple[tuple[str, re.Pattern[str]], ...] = (
    (Stage.INIT, re.compile(r"Init (?:parallel|torch distributed) begin")),
    (Stage.WEIGHTS, re.compile(r"Load weight begin")),
    (Stage.KV_POOL, re.compile(r"Load weight end")),
    (Stage.GRAPHS, re.compile(r"Memory pool end")),
    (WARM_UP, re.compile(r"max_total_num_tokens=|Application startup complete|Uvicorn running on")),
    (READY, re.compile(r"The server is fired up and ready to roll")),
)
LAUNCH = str(Stage.RESOLVE)

_TAIL_BYTES = 512 * 1024


class ServerLog:
    """Follows one log file. `stage` is what the server was last seen busy with."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._size = 0
        self._reached = -1

    @property
    def stage(self) -> str:
        return LAUNCH if self._reached < 0 else str(_MILESTONES[self._reached][0])

    def read(self) -> bool:
        """Takes in what has been written since the last call. Returns whether anything was."""
        try:
            with self._path.open("rb") as f:
                f.seek(self._offset)
                new = f.read()
        except FileNotFoundError:
            return False
        size = self._offset + len(new)
        if size == self._size:
            return False
        self._size = size
        # A milestone may be cut in two by the read: look again from the last whole line.
        whole = new.rfind(b"\n") + 1
        self._offset += whole
        text = new.decode(errors="replace")
        for position, (_, pattern) in enumerate(_MILESTONES):
            if position > self._reached and pattern.search(text):
                self._reached = position
        return True

    def tail(self) -> str:
        """The last half MiB of the log."""
        try:
            with self._path.open("rb") as f:
                f.seek(0, 2)
                f.seek(max(0, f.tell() - _TAIL_BYTES))
                return f.read().decode(errors="replace")
        except FileNotFoundError:
            return ""
