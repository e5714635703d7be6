"""Waiting for what another process or thread does, however slow the machine."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(claim: Callable[[], object], limit_s: float = 120.0) -> bool:
    """Whether `claim` comes true; `limit_s` only bounds how long a test that fails takes to say so."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        if claim():
            return True
        time.sleep(0.02)
    return bool(claim())
