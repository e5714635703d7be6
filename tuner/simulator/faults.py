"""Faults that befall a simulated server at a milestone: `--inject-faults FILE`, or the environment names FILE.

FILE holds one fault a line, `NAME AT`; each server that starts takes the first line off it, and one that finds none
runs as if nothing had been asked. AT is a milestone:

launch, init, weights, pool, graphs, warm-up, ready    the log line with which that part of the start begins
load                                                   the fourth piece of an answer that is streamed after the warm-up

NAME is what happens there:

kill       SIGKILL to itself               stop      SIGSTOP to itself
flood      a gigabyte of log               port      somebody else listens where it wants to listen (at launch)
garbage    bytes that are no HTTP (load)   nonsense  an event that is no JSON (load)
reset      the connection reset (load)     busy      503 to every question for a minute of its clock (ready, load)
none       nothing
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import struct
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

MARKS = {
    "launch": "SIMULATED SGLang",
    "init": "Init parallel begin",
    "weights": "Load weight begin",
    "pool": "Load weight end",
    "graphs": "Memory pool end",
    "warm-up": "Uvicorn running",
    "ready": "fired up and ready to roll",
}
LOAD = "load"
NAMES = frozenset({"kill", "stop", "flood", "port", "garbage", "nonsense", "reset", "busy", "none"})
FLOOD_BYTES = 2**30
BUSY_S = 60.0
_CHUNKS = 4
_WARM_UP_TOKENS = 16
_LINE = b"[2026-11-01 10:00:00] the same complaint, again and again, until the disk is full of it" + b"." * 936 + b"\n"


class FaultError(ValueError):
    """A line of the file names no fault."""


@dataclass(slots=True, kw_only=True)
class Fault:
    """host, port: where the server wants to listen. scale: seconds of its clock in a second."""

    name: str = "none"
    at: str = "launch"
    host: str = ""
    port: int = 0
    scale: float = 1.0
    _thief: socket.socket | None = None
    _chunks: int = 0
    _busy_until_s: float = field(default=-1.0)
    _is_over: bool = False

    def on_line(self, text: str) -> None:
        """After a line of the log."""
        if not self._is_over and self.at in MARKS and MARKS[self.at] in text:
            self._happen()

    def on_chunk(self, transport: asyncio.Transport | None, output_tokens: int) -> None:
        """After a piece of an answer. output_tokens: that were asked for; the warm-up asks for few."""
        if self._is_over or self.at != LOAD or output_tokens < _WARM_UP_TOKENS:
            return
        self._chunks += 1
        if self._chunks < _CHUNKS:
            return
        if self.name in {"garbage", "nonsense", "reset"}:
            self._is_over = True
            if transport is not None:
                self._spoil(transport)
        else:
            self._happen()

    @property
    def is_busy(self) -> bool:
        """Whether every question is to be answered with 503 at the moment."""
        return time.monotonic() < self._busy_until_s

    def _happen(self) -> None:
        self._is_over = True
        if self.name == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.name == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.name == "flood":
            piece = _LINE * 1024
            for _ in range(FLOOD_BYTES // len(piece)):
                sys.stderr.buffer.write(piece)
            sys.stderr.buffer.flush()
        elif self.name == "port":
            self._thief = socket.socket()
            self._thief.bind((self.host, self.port))
            self._thief.listen()
        elif self.name == "busy":
            self._busy_until_s = time.monotonic() + BUSY_S / self.scale

    def _spoil(self, transport: asyncio.Transport) -> None:
        if self.name == "garbage":
            transport.write(b"\x00\xff\xfe no chunk of anything \r\n")
        elif self.name == "nonsense":
            event = b'data: {"text": "half of an eve\n\n'
            transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event))
        else:
            linger = struct.pack("ii", 1, 0)
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            transport.abort()


def next_fault(path: str, *, host: str, port: int, scale: float) -> Fault:
    """Takes the first line off the file; no fault where there is no file, or it is used up.

    Raises FaultError.
    """
    if not path or not Path(path).exists():
        return Fault()
    with Path(path).open("r+", encoding="utf-8") as plan:
        fcntl.flock(plan, fcntl.LOCK_EX)
        line, _, rest = plan.read().partition("\n")
        plan.seek(0)
        plan.truncate()
        plan.write(rest)
    if not line.strip():
        return Fault()
    name, _, at = line.strip().partition(" ")
    if name not in NAMES or at not in {*MARKS, LOAD, ""}:
        raise FaultError(f"no fault: {line!r}; one is of {', '.join(sorted(NAMES))} at {', '.join((*MARKS, LOAD))}")
    return Fault(name=name, at=at or "launch", host=host, port=port, scale=scale)
