"""A file of measurements, one point a line: what `--measured` takes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cost_models.calibration import Observation
from search_spaces.errors import MalformedError, UserError
from search_spaces.layout import Layout
from search_spaces.workload import MOST_CONCURRENT
from tuner.batch_lines import launch_of_line, numbered, object_of, refuse_misspelled
from tuner.checking import Checked, Server, check_flags, check_layout
from tuner.standard_input import standard_input

_KEYS = ("id", "flags", "argv", "concurrency", "tpot_ms", "ttft_ms")
_LONGEST_S = 1e6


def measured_in_file(word: str, server: Server) -> tuple[Observation, ...]:
    """`--measured`: `flags` or `argv`, `concurrency`, `tpot_ms` and, where it is known, `ttft_ms` of each line.

    All of one model on one cluster under one load: those of the command. Raises UserError with the line's number.
    """
    if word == "-":
        return _observations(standard_input(), server)
    if not word.strip():
        raise MalformedError("--measured takes a file of JSON lines, or - for stdin (got '')")
    try:
        with Path(word).expanduser().open("rb") as lines:
            return _observations(lines, server)
    except OSError as error:
        raise MalformedError(f"--measured {word} cannot be read: {error.strerror}") from None


def _observations(lines: Iterable[str | bytes], server: Server) -> tuple[Observation, ...]:
    found = []
    for number, line in numbered(lines):
        try:
            found.append(_observation(object_of(line), server))
        except UserError as error:
            raise MalformedError(f"--measured, line {number}: {error}") from None
    return tuple(found)


def _observation(asked: dict[str, Any], server: Server) -> Observation:
    refuse_misspelled(asked, _KEYS)
    concurrency = asked.get("concurrency")
    if type(concurrency) is not int or not 1 <= concurrency <= MOST_CONCURRENT:
        raise MalformedError(f"concurrency is a count from 1 to {MOST_CONCURRENT} (got {concurrency!r})")
    tpot_s = _seconds(asked, "tpot_ms")
    if tpot_s is None:
        raise MalformedError("a line says tpot_ms")
    return Observation(
        layout=_layout(asked, server), concurrency=concurrency, tpot_s=tpot_s, ttft_s=_seconds(asked, "ttft_ms")
    )


def _seconds(asked: dict[str, Any], name: str) -> float | None:
    value = asked.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value / 1e3 < _LONGEST_S:
        raise MalformedError(f"{name} is a time above 0 in milliseconds (got {value!r})")
    return value / 1e3


def _layout(asked: dict[str, Any], server: Server) -> Layout:
    """As it ran."""
    launch = launch_of_line(asked, server.version)
    checked: Checked = (
        check_layout(launch.notation.literal, server, suggest=False)
        if launch.notation is not None
        else check_flags(launch.flags, server, suggest=False)
    )
    if checked.verdict.violations:
        broken = checked.verdict.violations[0]
        raise MalformedError(
            f"it was measured, but SGLang {server.version} refuses it ({broken.rule}): {broken.message}; say what it "
            "ran on with --engine-version, --model and --cluster"
        )
    return checked.verdict.effective
