"""How the program ends, for scripts."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    DONE = 0
    OUTPUT_LOST = 1
    """What was asked for could not be written: the disk is full."""
    USER = 2
    """The user's words cannot be used; nothing was started."""
    ILLEGAL = 3
    """Illegal, or does not fit."""
    NO_TRIAL_SUCCEEDED = 4
    INTERRUPTED = 130
    """The state is saved; the same command goes on."""
