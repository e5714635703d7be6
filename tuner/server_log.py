"""Reads a server's log while it grows: how far the start has come, and what its last words were.

A log may be flooded: it is read in pieces, and what lies between its head and its tail is given back to the disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from search_spaces.verdict import Stage
from tuner.patience import WARM_UP

READY = "ready"

# In the order SGLang prints them (0.5.23; older ones word the first otherwise). The name is what the server is busy
# with from that line on.
_MILESTONES: tuple[tuple[str, tuple[bytes, ...]], ...] = (
    (Stage.INIT, (b"Init parallel begin", b"Init torch distributed begin")),
    (Stage.WEIGHTS, (b"Load weight begin",)),
    (Stage.KV_POOL, (b"Load weight end",)),
    (Stage.GRAPHS, (b"Memory pool end",)),
    (WARM_UP, (b"max_total_num_tokens=", b"Application startup complete", b"Uvicorn running on")),
    (READY, (b"The server is fired up and ready to roll",)),
)
LAUNCH = str(Stage.RESOLVE)

_BAR = re.compile(rb"(?:oading|apturing|arm-?up|ompil)[^\r\n]{0,200}?\b(\d{1,3})%\|?")
"""A progress bar of tqdm, redrawn behind carriage returns: `Loading safetensors checkpoint shards:  12% Completed`,
`Capturing batches (bs=8 avail_mem=3.1 GB):  50%|`, `DeepGEMM warmup:  12%|`."""

_PIECE_BYTES = 2**20
_READ_BYTES = 64 * _PIECE_BYTES
"""In one call: a flood must not keep the watcher from its server."""
_LONGEST_MARK_BYTES = 64
_TAIL_BYTES = 512 * 1024
KEPT_HEAD_BYTES = 8 * 2**20
KEPT_TAIL_BYTES = 8 * 2**20
_WORTH_CUTTING_BYTES = 2**20
_BLOCK_BYTES = 2**16
_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2


class ServerLog:
    """Follows one log file. `stage` is what the server was last seen busy with.

    secrets: what a server may print of its own launch, and nobody is to read: overwritten where it is found.
    """

    def __init__(self, path: Path, *, secrets: Sequence[str] = ()) -> None:
        self._path = path
        self._offset = 0
        self._carry = b""
        self._secrets = [s.encode() for s in secrets]
        self._carry_bytes = max([_LONGEST_MARK_BYTES, *map(len, self._secrets)])
        self._reached = -1
        self._punched = KEPT_HEAD_BYTES
        self.percent: int | None = None
        """How far the progress bar is that was last drawn in this stage; None where none was."""
        self.disk_was_full = False
        """Whether there was no room for more at some time: what the server had to say then is not in the log."""

    @property
    def stage(self) -> str:
        return LAUNCH if self._reached < 0 else str(_MILESTONES[self._reached][0])

    def read(self) -> bool:
        """Takes in what has been written since the last call, 64 MiB at most. Returns whether anything was."""
        begin = self._offset
        try:
            with self._path.open("rb") as f:
                f.seek(begin)
                while self._offset - begin < _READ_BYTES and (new := f.read(_PIECE_BYTES)):
                    self._offset += len(new)
                    self._take(new)
            if self._offset > begin and not self.disk_was_full:
                self.disk_was_full = shutil.disk_usage(self._path.parent).free < _PIECE_BYTES
        except OSError:
            return False
        if self._offset - self._punched > KEPT_TAIL_BYTES + 4 * _WORTH_CUTTING_BYTES:
            self._give_back()
        return self._offset > begin

    def _take(self, new: bytes) -> None:
        # A milestone may be cut in two by the read.
        text = self._carry + new
        for position, (_, marks) in enumerate(_MILESTONES):
            if position > self._reached and any(mark in text for mark in marks):
                self._reached = position
                self.percent = None
        for secret in self._secrets:
            if secret in text:
                self._overwrite(text, secret)
                text = text.replace(secret, b"*" * len(secret))
        self._carry = text[-self._carry_bytes :]
        bars = _BAR.findall(text[-4096:])
        if bars and int(bars[-1]) <= 100 and self._reached < len(_MILESTONES) - 1:
            self.percent = int(bars[-1])

    def _overwrite(self, text: bytes, secret: bytes) -> None:
        """text: the last that was read. The same number of bytes, so that the server may go on writing behind."""
        begin = self._offset - len(text)
        with contextlib.suppress(OSError), self._path.open("r+b") as f:
            at = text.find(secret)
            while at >= 0:
                f.seek(begin + at)
                f.write(b"*" * len(secret))
                at = text.find(secret, at + len(secret))

    def _give_back(self) -> None:
        """Frees the disk blocks between head and tail while the server goes on writing behind them (Linux,
        fallocate(2) with FALLOC_FL_PUNCH_HOLE); where the file system cannot, the file stays long until its end.
        """
        begin = self._punched
        end = (self._offset - KEPT_TAIL_BYTES) // _BLOCK_BYTES * _BLOCK_BYTES
        if end <= begin:
            return
        self._punched = end
        if sys.platform != "linux":
            return
        libc = ctypes.CDLL(None, use_errno=True)
        with contextlib.suppress(OSError), self._path.open("r+b") as f:
            mode = _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE
            libc.fallocate(f.fileno(), mode, ctypes.c_int64(begin), ctypes.c_int64(end - begin))

    def tail(self) -> str:
        """The last half MiB of the log."""
        try:
            with self._path.open("rb") as f:
                f.seek(0, 2)
                f.seek(max(0, f.tell() - _TAIL_BYTES))
                return f.read(_TAIL_BYTES).decode(errors="replace")
        except OSError:
            return ""

    def shorten(self) -> int:
        """After the server's end: a long log keeps its head and its tail, with a line that says so between them.

        Returns how many bytes were left out. What the server said last is read first. The file is never seen half
        written.
        """
        while self.read():
            pass
        short = self._path.with_name(f"{self._path.name}.short")
        try:
            size = self._path.stat().st_size
            if size <= KEPT_HEAD_BYTES + KEPT_TAIL_BYTES + _WORTH_CUTTING_BYTES:
                return 0
            left_out = size - KEPT_HEAD_BYTES - KEPT_TAIL_BYTES
            self._give_back()  # the copy needs room, which a full disk has only then
            with self._path.open("rb") as long, short.open("wb") as f:
                f.write(long.read(KEPT_HEAD_BYTES))
                f.write(f"\n[cut: {left_out} of {size} bytes are left out here]\n".encode())
                long.seek(size - KEPT_TAIL_BYTES)
                f.write(long.read())
            short.replace(self._path)
        except OSError:
            with contextlib.suppress(OSError):
                short.unlink(missing_ok=True)
            return 0
        return left_out
