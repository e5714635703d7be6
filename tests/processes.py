"""Processes of this machine, which may end while they are looked at."""

from __future__ import annotations

from contextlib import suppress

import psutil


def words_of(process: psutil.Process) -> list[str]:
    """Of its command; none of one that has ended, and is only not buried yet."""
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def alive_with(token: str) -> list[psutil.Process]:
    """Those with that word in their command."""
    return [process for process in psutil.process_iter() if token in words_of(process)]
