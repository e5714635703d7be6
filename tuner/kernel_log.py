"""What the kernel of this machine said of one server: its out-of-memory killer, and the GPU driver's Xid errors."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import UTC, datetime

import psutil

_DMESG = ("dmesg", "--time-format=iso")
_LIMIT_S = 10.0
_MOST_LINES = 400
_LOOK_S = 2.0
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})")
"""`NVRM: Xid (PCI:0000:4e:00): 31, pid=4242, name=python3, Ch 00000010 ...` (NVIDIA, "Xid Errors")."""
_PID = re.compile(r"(?:\bpid='?|Killed process )(\d+)")
"""`Out of memory: Killed process 4242 (python3) ...`, `oom-kill:...,task=python3,pid=4242,uid=0` (mm/oom_kill.c)."""


@dataclass(slots=True, kw_only=True)
class KernelWatch:
    """What of the kernel's log is about one server: lines that name one of its processes, or one of its GPUs.

    Others' processes die on the same machine, and other GPUs fail. gpus: PCI addresses, as nvidia-smi or the kernel
    writes them. pids: of the server and all it started, as they were seen while it ran.
    """

    gpus: AbstractSet[str] = frozenset()
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    pids: set[int] = field(default_factory=set)
    _looked_s: float = -_LOOK_S

    def look(self, pid: int) -> None:
        """Notes what runs now under process `pid`, every two seconds at most."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        try:
            self.pids |= {pid, *(each.pid for each in psutil.Process(pid).children(recursive=True))}
        except psutil.Error:
            return

    def lines(self) -> str:
        """Empty where the log may not be read."""
        return lines_about(kernel_log_since(self.began), self.pids, self.gpus)


def lines_about(text: str, pids: AbstractSet[int], gpus: AbstractSet[str]) -> str:
    """Those of a kernel log that name one of the processes or, for Xid errors, one of the GPUs."""
    ours = {pci_address(gpu) for gpu in gpus}

    def is_ours(line: str) -> bool:
        xid, named = _XID.search(line), _PID.search(line)
        if xid is not None and pci_address(xid[1]) in ours:
            return True
        return named is not None and int(named[1]) in pids

    return "\n".join(line for line in text.splitlines() if is_ours(line))


def pci_address(text: str) -> str:
    """`0000:4e:00`, also of nvidia-smi's `00000000:4E:00.0`."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest.partition('.')[0]}"


def kernel_log_since(began: datetime) -> str:
    """The lines since `began`, which has a time zone, the last 400 at most; empty where the log may not be read."""
    if shutil.which(_DMESG[0]) is None:
        return ""
    try:
        done = subprocess.run(
            _DMESG,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    new = [line for line in done.stdout.splitlines() if (said := _time(line)) is not None and said >= began]
    return "\n".join(new[-_MOST_LINES:])


def _time(line: str) -> datetime | None:
    """`2026-11-30T05:22:01,123456+00:00 NVRM: ...`"""
    word = line.partition(" ")[0].replace(",", ".")
    try:
        said = datetime.fromisoformat(word)
    except ValueError:
        return None
    return said if said.tzinfo is not None else None
