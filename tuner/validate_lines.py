"""The lines of a file of measurements as JSON objects, each name once."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Sequence
from typing import Any

from search_spaces.errors import MalformedError
from tuner.batch_lines import object_of
from tuner.validate_fields import Reason, SkippedError

_LEAST_BYTES = 8
_MOSTLY = 0.8
_OF_FOUR_BYTES = 0.6
_HEAD_BYTES = 4096


def refuse_wide(data: bytes) -> None:
    """Raises MalformedError where letters take two bytes or four, as some editors and shells of Windows save them."""
    head = data[:_HEAD_BYTES]
    if encoding := _wide(head):
        raise MalformedError(f"looks like {encoding}: save it as UTF-8")


def _wide(head: bytes) -> str:
    """By the mark of the byte order, or by every other byte being zero."""
    if head.startswith((b"\xff\xfe\x00\x00", b"\x00\x00\xfe\xff")):
        return "UTF-32"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16"
    zeros = max(head[place::2].count(0) for place in (0, 1))
    if len(head) < _LEAST_BYTES or zeros < _MOSTLY * len(head) / 2:
        return ""
    return "UTF-32" if head.count(0) > _OF_FOUR_BYTES * len(head) else "UTF-16"


def said_on(line: str | bytes) -> dict[str, Any]:
    """Raises MalformedError."""
    if isinstance(line, bytes):
        refuse_wide(line)
    return object_of(line)


def refuse_repeats(line: str | bytes) -> None:
    """line: one that could be read. Raises SkippedError where an object of it has one name twice."""
    json.loads(line if isinstance(line, str) else line.decode("utf-8-sig"), object_pairs_hook=_once_each)


def _once_each(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            both = f"{reprlib.repr(found[name])} and {reprlib.repr(value)}"
            raise SkippedError(Reason.BAD_VALUE, f"{reprlib.repr(name)[1:-1]} stands twice on the line: {both}")
        found[name] = value
    return found
