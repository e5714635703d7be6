"""The values of a line of measurements, and why a line is none."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from datetime import date
from enum import StrEnum
from typing import Any

LONGEST = 2**24
"""Tokens: sixteen times the longest context that a catalogue model has."""

_TIMES_MS = 1e-3, 1e9
_RATES = 1e-3, 1e9
"""What a time in milliseconds and a number of tokens per second can be: a microsecond to eleven days."""


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
    UNKNOWN_FLAGS = "flags that the model does not know"
    SPECULATIVE = "speculative decoding of unknown acceptance"
    CALIBRATION = "used to calibrate"
    TOO_FEW = "too few points to calibrate with"


class SkippedError(Exception):
    """The line is no point to compare with. reason: a `Reason`, with more behind a colon where lines of it differ."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def bad(said: Mapping[str, Any], name: str, what: str) -> SkippedError:
    """what: a sentence on what `name` has to be; the value follows."""
    return SkippedError(Reason.BAD_VALUE, f"{what} (got {reprlib.repr(said.get(name))})")


def word(said: Mapping[str, Any], name: str) -> str:
    value = said.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise bad(said, name, f"{name} is a word")
    return value.strip()


def count(said: Mapping[str, Any], name: str, most: int, *, default: int | None = None, least: int = 1) -> int:
    value = said.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most:
        whole = int(value)
        if whole == value:
            return whole
    raise bad(said, name, f"{name} is a whole number from {least} to {most}")


def milliseconds(said: Mapping[str, Any], name: str) -> float | None:
    return _between(said, name, _TIMES_MS, "a time in ms")


def tokens_per_second(said: Mapping[str, Any], name: str) -> float | None:
    return _between(said, name, _RATES, "a number of tokens per second")


def _between(said: Mapping[str, Any], name: str, bounds: tuple[float, float], what: str) -> float | None:
    value, (least, most) = said.get(name), bounds
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise bad(said, name, f"{name} is {what} from {least:g} to {most:g}")
    return float(value)


def share(said: Mapping[str, Any], name: str, default: float) -> float:
    """A number from 0 to 1."""
    value = said.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise bad(said, name, f"{name} is a share from 0 to 1")
    return float(value)


def truth(said: Mapping[str, Any], name: str) -> bool:
    """Null is false."""
    value = said.get(name)
    if value is not None and not isinstance(value, bool):
        raise bad(said, name, f"{name} is true or false")
    return value is True


_A_DAY = re.compile(r"\d{4}-\d{2}-\d{2}(?!\d)")
_ABOUT = re.compile(r"(?<!\d)(?:19|20)\d{2}(?!\d)")


def day(said: Mapping[str, Any], name: str) -> str:
    """`2026-03-25`, where a day stands first; empty where only about when is said, as in `<=2026-03-25` or `2026`."""
    text = word(said, name)
    first = _A_DAY.match(text)
    try:
        if first is not None:
            return date.fromisoformat(first[0]).isoformat()
    except ValueError:
        raise bad(said, name, f"{name} is no day of the calendar") from None
    if text and _ABOUT.search(text) is None:
        raise bad(said, name, f"{name} is a day, e.g. 2026-03-25")
    return ""


def flagged(said: Mapping[str, Any]) -> str:
    """The reason to set the line aside for, as its `flag` has it: a word, or true; empty where there is none."""
    value = said.get("flag")
    if value is None or isinstance(value, bool):
        return Reason.FLAGGED if value else ""
    why = word(said, "flag")
    return f"{Reason.FLAGGED}: {why}" if why else ""


_NEEDED = {
    "engine": "sglang, vllm or trtllm", "model": "a hub id or a name of the catalogue", "gpu": "e.g. h200",
    "isl": "input tokens per request", "osl": "output tokens per request", "concurrency": "requests in flight",
    "tp": "GPUs of one pipeline stage",
}  # fmt: skip
_OR_ELSE = {"tp": "world_tp", "tpot_ms": "output_tok_s"}
_OF_THE_COMMAND = ("engine", "model", "gpu")


def refuse_missing(said: Mapping[str, Any]) -> None:
    """Raises SkippedError with all that is not there, in one sentence."""
    missing = [name for name in _NEEDED if not any(map(_is_said, _values(said, name)))]
    is_timed = any(_is_said(value) for value in _values(said, "tpot_ms"))
    if not missing and is_timed:
        return
    if not missing:
        raise SkippedError(Reason.BAD_VALUE, "tpot_ms is missing, and output_tok_s as well")
    names = [*missing, *([] if is_timed else ["tpot_ms"])]
    if len(names) == 1:
        message = f"{names[0]} is missing: {_NEEDED[names[0]]}"
    else:
        message = f"{', '.join(names[:-1])} and {names[-1]} are missing"
    if set(_OF_THE_COMMAND) <= set(missing) and not {"flags", "argv"}.isdisjoint(said):
        message += ": a line for `tune predict --measured` leaves them to the command, here each line says them"
    raise SkippedError(Reason.BAD_VALUE, message)


def _values(said: Mapping[str, Any], name: str) -> tuple[Any, Any]:
    return said.get(name), said.get(_OR_ELSE.get(name, name))


def _is_said(value: Any) -> bool:
    return value is not None and not (isinstance(value, str) and not value.strip())
