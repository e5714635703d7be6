"""Where the measured layouts stand: all values of one layout together, best first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
