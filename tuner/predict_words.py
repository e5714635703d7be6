"""How predicted figures are written: a few digits, each with its unit and its interval."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cost_models.prediction import COVERAGE, Interval, ServingPoint
from search_spaces.workload import Workload

GIB = 2**30
TOP_OF_THE_LADDER = "; the top of the ladder: it may lie above (--concurrency)"
PROSE_COLUMNS = 100
"""The widest that sentences are set; tables take what the terminal has."""


def wrapped(line: str, width: int) -> list[str]:
    """A sentence as lines; those that follow are set in by two columns more. No word is broken."""
    indent = " " * (len(line) - len(line.lstrip()))
    columns = max(min(width, PROSE_COLUMNS), 20)
    return textwrap.wrap(
        line.strip(),
        columns,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def prose(lines: Sequence[str], width: int) -> list[str]:
    """Every sentence `wrapped`; empty lines stay."""
    return [part for line in lines for part in (wrapped(line, width) if line else [""])]


def gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"


def figure(value: float) -> str:
    """Three digits, and every one before the decimal point; fewer of what is next to nothing."""
    if value >= 99.95:
        return f"{value:,.0f}"
    if 0 < value < 1e-4:
        return "<0.0001"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}" if value >= 0.0995 else f"{value:.2g}"


class TimeUnit(NamedTuple):
    """per_s: how many of it are a second."""

    name: str
    per_s: float

    def shown(self, seconds: float) -> str:
        """Without the unit's name."""
        return figure(seconds * self.per_s)


MILLISECONDS, SECONDS, HOURS = TimeUnit("ms", 1e3), TimeUnit("s", 1.0), TimeUnit("h", 1 / 3600)
_LONG_S = 10.0
_VERY_LONG_S = 7200.0


def time_unit(times_s: Iterable[float]) -> TimeUnit:
    """In which times that stand beside each other are all told: by the largest."""
    longest_s = max(times_s, default=0.0)
    if longest_s < _LONG_S:
        return MILLISECONDS
    return SECONDS if longest_s < _VERY_LONG_S else HOURS


def said_time(seconds: float) -> str:
    """With its unit: 12.6 ms, 169 s, 3.20 h."""
    unit = time_unit((seconds,))
    return f"{unit.shown(seconds)} {unit.name}"


def span(interval: Interval, scale: float = 1.0) -> str:
    return f"{figure(interval.low * scale)} to {figure(interval.high * scale)}"


def per_user(point: ServingPoint) -> float:
    """Tokens per second that one running request sees."""
    return 1 / point.tpot_s


def per_user_interval(point: ServingPoint) -> Interval:
    return Interval(low=1 / point.tpot_interval_s.high, high=1 / point.tpot_interval_s.low)


def bar(share: float, columns: int, *, is_plain: bool) -> str:
    """share: of the whole width, 0 to 1. Something is drawn of what is not nothing."""
    full = min(max(share, 0.0), 1.0) * columns
    if is_plain:
        return "#" * max(round(full), int(share > 0))
    whole, eighths = divmod(round(full * 8), 8)
    drawn = "█" * whole + (" ▏▎▍▌▋▊▉"[eighths] if eighths else "")
    return drawn or ("▏" if share > 0 else "")


def load_line(workload: Workload) -> str:
    """Under which load figures hold, and what stands in brackets."""
    accepted = workload.acceptance_length
    drafts = f", {accepted:g} tokens accepted per step where it drafts" if accepted != 1 else ""
    return (
        f"predicted for {workload.input_tokens} tokens in, {workload.output_tokens} out{drafts}; "
        f"in brackets: where {100 * COVERAGE:.0f} % of measurements should lie"
    )
