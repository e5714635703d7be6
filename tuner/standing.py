"""Where the measured layouts stand: all values of one layout together, best first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from search_spaces.layout import Layout
from tuner.objective import Objective
from tuner.record import TrialRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """records: the trials of one effective layout that gave a value, in order. Never empty."""

    records: tuple[TrialRecord, ...]

    @property
    def requested(self) -> Layout:
        return self.records[0].requested

    @property
    def effective(self) -> Layout:
        return self.records[0].effective

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(r.value for r in self.records if r.value is not None)

    @property
    def value(self) -> float:
        """Mean of what was measured, SI."""
        return sum(self.values) / len(self.values)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Lowest and highest of the repeated measurements; None for a single one, which has no spread."""
        return (min(self.values), max(self.values)) if len(self.values) > 1 else None


def standings(records: Sequence[TrialRecord], objective: Objective) -> tuple[Standing, ...]:
    """Best first, by the mean of each layout's values."""
    by_layout: dict[Layout, list[TrialRecord]] = {}
    for record in records:
        if record.value is not None:
            by_layout.setdefault(record.effective, []).append(record)
    found = [Standing(records=tuple(rs)) for rs in by_layout.values()]
    return tuple(sorted(found, key=lambda s: -s.value if objective.maximise else s.value))


CONTENDER = 1.15
"""A runner-up that is further behind than this factor is no contender: repeats differ by 3 to 10 %."""


def runner_up(standing: Sequence[Standing]) -> Standing | None:
    """The best of another split than the leader's: one that differs in more than its memory fraction."""
    return next((s for s in standing[1:] if _split(s.effective) != _split(standing[0].effective)), None)


def finalists(standing: Sequence[Standing], objective: Objective) -> tuple[Standing, ...]:
    """Those between whom the decision lies: the leader, and the runner-up where it is a contender."""
    if not standing:
        return ()
    second = runner_up(standing)
    if second is None or objective.gain(standing[0].value, second.value) > CONTENDER:
        return (standing[0],)
    return standing[0], second


def is_tie(a: Standing, b: Standing) -> bool:
    """Whether the measured ranges overlap, or single runs lie closer than repeats do."""
    low_a, high_a = a.interval or (a.value / NOISE, a.value * NOISE)
    low_b, high_b = b.interval or (b.value / NOISE, b.value * NOISE)
    return low_a <= high_b and low_b <= high_a


NOISE = 1.03


def _split(layout: Layout) -> Layout:
    """The layout without what follows from its memory fraction."""
    return replace(layout, mem_fraction_static=None)
