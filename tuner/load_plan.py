"""What is asked of a server in one run: how many requests, of which lengths, and when each is sent."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from search_spaces.errors import MalformedError

_INPUT_NAMES = ("input_tokens", "input_length", "prompt_tokens", "prompt_len")
_OUTPUT_NAMES = ("output_tokens", "output_length", "completion_tokens", "output_len")
_BYTES_PER_TOKEN = 4
_MOST_FILE_BYTES = 2**28
LONGEST = 10**9 - 1
"""Tokens: beyond any model's context, and well inside what 64 bits hold."""
_LATEST = 1e15
"""Arrivals, in seconds or milliseconds: beyond the time since 1970 in either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request. text: a real prompt, of which `input_tokens` is an estimate; empty for so many random token ids.

    due_s: seconds after the start of the run at which it is sent, whatever else is in flight (an open loop); None
    for as soon as a place is free (a closed loop). where: the file and line that it is from, no part of what it is.
    """

    input_tokens: int
    output_tokens: int
    text: str = ""
    due_s: float | None = None
    where: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One rung: at least `num_requests` requests, at most `concurrency` in flight.

    input_tokens, output_tokens: of every request, unless `asked` gives each its own; `asked` is gone through again
    from its start where it is shorter than the run.
    most_requests, noise: a closed loop goes on beyond `num_requests`, up to `most_requests`, until the relative
    standard error of the mean request time is at most `noise`; with 0 requests it does not go on.
    """

    concurrency: int
    num_requests: int
    input_tokens: int
    output_tokens: int
    vocab_size: int
    seed: int
    asked: tuple[Asked, ...] = ()
    most_requests: int = 0
    noise: float = 0.0

    @property
    def is_open(self) -> bool:
        return bool(self.asked) and self.asked[0].due_s is not None

    @property
    def most(self) -> int:
        return max(self.num_requests, self.most_requests)

    def request(self, index: int) -> Asked:
        if not self.asked:
            return Asked(input_tokens=self.input_tokens, output_tokens=self.output_tokens)
        return self.asked[index % len(self.asked)]


def in_ranges(
    input_tokens: tuple[int, int], output_tokens: tuple[int, int], count: int, seed: int
) -> tuple[Asked, ...]:
    """`count` requests with lengths drawn evenly from two ranges, both ends included.

    Raises MalformedError where a range is empty, or asks for less than 1 token in, 2 out or more than `LONGEST`.
    """
    for name, (low, high), least in (("input", input_tokens, 1), ("output", output_tokens, 2)):
        if not least <= low <= high <= LONGEST:
            raise MalformedError(
                f"a range of {name} lengths rises from at least {least} to at most {LONGEST} (got {low} to {high})"
            )
    rng = np.random.default_rng(seed)
    ins = rng.integers(input_tokens[0], input_tokens[1] + 1, size=count)
    outs = rng.integers(output_tokens[0], output_tokens[1] + 1, size=count)
    return tuple(Asked(input_tokens=int(i), output_tokens=int(o)) for i, o in zip(ins, outs, strict=True))


def poisson(asked: Sequence[Asked], requests_per_s: float, seed: int) -> tuple[Asked, ...]:
    """The same requests, each sent an exponential time after the one before it. Raises MalformedError on no rate."""
    if not 0 < requests_per_s < float("inf"):
        raise MalformedError(f"a request rate is above 0 (got {requests_per_s:g} requests/s)")
    due_s = np.cumsum(np.random.default_rng(seed).exponential(1 / requests_per_s, size=len(asked)))
    return tuple(replace(each, due_s=float(s)) for each, s in zip(asked, due_s, strict=True))


def read_trace(path: Path) -> tuple[Asked, ...]:
    """A trace: one JSON object a line with input and output lengths, and with arrivals on all lines or none.

    Lengths as `input_tokens`, `output_tokens`, or as Mooncake's traces name them (`input_length`, `output_length`).
    Arrivals as `arrival_s` in seconds or as `timestamp` in milliseconds, which is Mooncake's; told from the first.
    Raises MalformedError, naming the line.
    """
    found = [_of_trace(row, f"{path}:{number}") for number, row in _rows(path)]
    is_timed = found[0].due_s is not None
    for each in found:
        if (each.due_s is not None) != is_timed:
            has, lacks = (found[0], each) if is_timed else (each, found[0])
            raise MalformedError(
                f"{lacks.where}: no arrival (`arrival_s` or `timestamp`), which {has.where} has: all lines or none"
            )
    if not is_timed:
        return tuple(found)
    found.sort(key=lambda each: each.due_s or 0.0)
    first_s = found[0].due_s or 0.0
    return tuple(replace(each, due_s=(each.due_s or 0.0) - first_s) for each in found)


def read_prompts(path: Path, output_tokens: int) -> tuple[Asked, ...]:
    """Real prompts: one a line, as JSON objects with `prompt` or `text` (and `output_tokens`, if given) in a file whose
    name ends in .jsonl or .json, else as text.

    How many tokens each has is the server's to say; until then four bytes are taken for one. Raises MalformedError,
    naming the line.
    """
    if path.suffix.lower() in (".jsonl", ".json"):
        found = [_of_prompts(row, output_tokens, f"{path}:{number}") for number, row in _rows(path)]
    else:
        found = [
            Asked(input_tokens=_estimate(line), output_tokens=output_tokens, text=line, where=f"{path}:{number}")
            for number, line in _lines(path)
        ]
    if not found:
        raise MalformedError(f"{path}: no prompts")
    return tuple(found)


def _lines(path: Path) -> list[tuple[int, str]]:
    """Those that are not blank, with their numbers. They end with a line feed, or a carriage return and one: other
    characters at which Python splits lines may stand in a prompt. A byte order mark is none of the text."""
    if not path.is_file() and path.exists():  # a pipe would be waited for, without end
        raise MalformedError(f"{path} cannot be read: no plain file")
    try:
        if path.stat().st_size > _MOST_FILE_BYTES:
            raise MalformedError(f"{path} is larger than {_MOST_FILE_BYTES >> 20} MiB: take a part of it")
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise MalformedError(f"{path}:{line}: no UTF-8: {error.reason}") from None
    except (OSError, ValueError) as error:
        raise MalformedError(f"{path} cannot be read: {error}") from None
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]


def _rows(path: Path) -> list[tuple[int, dict[str, Any]]]:
    rows = []
    for number, line in _lines(path):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise MalformedError(f"{path}:{number}: no JSON: {error}") from None
        if not isinstance(row, dict):
            raise MalformedError(f"{path}:{number}: one JSON object a line is wanted")
        rows.append((number, row))
    if not rows:
        raise MalformedError(f"{path}: no lines")
    return rows


def _of_trace(row: dict[str, Any], where: str) -> Asked:
    due_s = None
    for name, unit_s in (("arrival_s", 1.0), ("timestamp", 1e-3)):
        if name in row:
            due_s = _number(row[name], name, where) * unit_s
            break
    return Asked(
        input_tokens=_length(row, _INPUT_NAMES, 1, where),
        output_tokens=_length(row, _OUTPUT_NAMES, 2, where),
        due_s=due_s,
        where=where,
    )


def _of_prompts(row: dict[str, Any], output_tokens: int, where: str) -> Asked:
    text = row.get("prompt", row.get("text"))
    if not isinstance(text, str) or not text:
        raise MalformedError(f"{where}: no `prompt` (or `text`) that is text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise MalformedError(
            f"{where}: half of a surrogate pair at character {error.start + 1} of the prompt, which is no text"
        ) from None
    has_length = any(name in row for name in _OUTPUT_NAMES)
    return Asked(
        input_tokens=_estimate(text),
        output_tokens=_length(row, _OUTPUT_NAMES, 2, where) if has_length else output_tokens,
        text=text,
        where=where,
    )


def _estimate(text: str) -> int:
    return max(1, len(text.encode()) // _BYTES_PER_TOKEN)


def _number(value: Any, name: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LATEST:
        raise MalformedError(f"{where}: {name} is no time from 0 on: {reprlib.repr(value)}")
    return float(value)


def _length(row: dict[str, Any], names: Sequence[str], least: int, where: str) -> int:
    value = next((row[name] for name in names if name in row), None)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LONGEST:
        raise MalformedError(
            f"{where}: {names[0]} must be a whole number from {least} on, {LONGEST} at most (got {reprlib.repr(value)})"
        )
    return value
