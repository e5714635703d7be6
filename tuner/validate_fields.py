"""The values of a line of measurements, and why a line is none."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

LONGEST = 2**24
"""Tokens: sixteen times the longest context that a catalogue model has."""

_SLOWEST_MS = 1e8
_MOST_TOK_S = 1e9


class Reason(StrEnum):
    """Why a line is no point to compare with."""

    UNREADABLE = "unreadable line"
    BAD_VALUE = "missing or bad value"
    DUPLICATE = "duplicate"
    UNKNOWN_ENGINE = "unknown engine"
    UNKNOWN_MODEL = "unknown model or precision"
    UNKNOWN_GPU = "unknown GPU"
    DISAGGREGATED = "prefill and decode apart"
    UNCLEAR_LAYOUT = "layout not clear"
    FLAGGED = "flagged"
    DOES_NOT_FIT = "does not fit, says the memory model"
    SPECULATIVE = "speculative decoding of unknown acceptance"
    CALIBRATION = "used to calibrate"
    TOO_FEW = "too few points to calibrate with"


class SkippedError(Exception):
    """The line is no point to compare with. reason: a `Reason`, with more behind a colon where lines of it differ."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def word(said: Mapping[str, Any], name: str, *, needed: bool = False) -> str:
    value = said.get(name)
    if value is None and not needed:
        return ""
    if not isinstance(value, str) or (needed and not value.strip()):
        raise SkippedError(Reason.BAD_VALUE, f"{name} is a word (got {reprlib.repr(value)})")
    return value.strip()


def count(said: Mapping[str, Any], name: str, most: int, *, default: int | None = None, least: int = 1) -> int:
    value = said.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most:
        whole = int(value)
        if whole == value:
            return whole
    raise SkippedError(Reason.BAD_VALUE, f"{name} is a whole number from {least} to {most} (got {reprlib.repr(value)})")


def milliseconds(said: Mapping[str, Any], name: str) -> float | None:
    return _above_zero(said, name, _SLOWEST_MS, "a time in ms")


def tokens_per_second(said: Mapping[str, Any], name: str) -> float | None:
    return _above_zero(said, name, _MOST_TOK_S, "a number of tokens per second")


def _above_zero(said: Mapping[str, Any], name: str, most: float, what: str) -> float | None:
    value = said.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
        raise SkippedError(Reason.BAD_VALUE, f"{name} is {what} above 0 (got {reprlib.repr(value)})")
    return float(value)


def share(said: Mapping[str, Any], name: str, default: float) -> float:
    """A number from 0 to 1."""
    value = said.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise SkippedError(Reason.BAD_VALUE, f"{name} is a share from 0 to 1 (got {reprlib.repr(value)})")
    return float(value)
