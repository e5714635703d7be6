"""Which values of an option count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def positive(value: Any) -> bool:
    return isinstance(value, int | float) and value > 0


def among(*words: str) -> Callable[[Any], bool]:
    return lambda value: value in words


def said(value: Any) -> bool:
    return value is not None
