"""What the kernel of this machine said: its out-of-memory killer, and the GPU driver's Xid errors."""

from __future__ import annotations

import shutil
import subprocess
from datetime import datetime

_DMESG = ("dmesg", "--time-format=iso")
_LIMIT_S = 10.0
_MOST_LINES = 400


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
