"""Where the measured layouts stand: all values of one layout together, best first, and how sure that order is.

Runs of one layout scatter by a factor, so all is done on logarithms: a layout's value is the geometric mean of its
runs, their deviation is one for the whole study (pooled over the layouts that were measured more than once), and
intervals and ties are Student's t with as many degrees of freedom as there are repeats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scipy.special import stdtrit

from search_spaces.layout import Layout
from tuner.objective import Aim
from tuner.record import TrialRecord

CONFIDENCE = 0.95
CONTENDER = 1.15
"""A runner-up that is further behind than this factor is no contender: repeats differ by 3 to 10 %."""
NOISE = 1.03
"""By what factor two single runs of one layout may differ, where no layout was measured twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """deviation: of the logarithm of a single run. freedom: how many repeats it is known from, at least 1."""

    deviation: float
    freedom: int

    def half_width(self, *shares: float) -> float:
        """Of the interval at `CONFIDENCE`, in logarithms, of what has the sum of `shares` of one run's variance."""
        t = float(stdtrit(self.freedom, (1 + CONFIDENCE) / 2))
        return t * self.deviation * math.sqrt(sum(shares))


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """records: the trials of one effective layout that gave a value, in order. Never empty. noise: of the study; None
    where no layout was measured twice.
    """

    records: tuple[TrialRecord, ...]
    noise: Noise | None = None

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
        """Geometric mean of what was measured, SI; the plain mean where a run gave 0."""
        if len(set(self.values)) > 1 and min(self.values) > 0:  # rounding is no difference between equal values
            return math.exp(math.fsum(map(math.log, self.values)) / len(self.values))
        return math.fsum(self.values) / len(self.values)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where the value lies at `CONFIDENCE`, SI; None for a single run, which has no repeats to judge by."""
        if self.noise is None or len(self.values) < 2 or min(self.values) <= 0:
            return None
        factor = math.exp(self.noise.half_width(1 / len(self.values)))
        return self.value / factor, self.value * factor


def standings(records: Sequence[TrialRecord], objective: Aim) -> tuple[Standing, ...]:
    """Best first, by the mean of each layout's values. A goodput of 0, as the limits hold nowhere, stands nowhere."""
    by_layout: dict[Layout, list[TrialRecord]] = {}
    for record in records:
        if record.value is not None:
            by_layout.setdefault(record.effective, []).append(record)
    found = [each for rs in by_layout.values() if (each := Standing(records=tuple(rs))).value > 0]
    noise = _noise(found)
    ranked = sorted(found, key=lambda s: -s.value if objective.maximise else s.value)
    return tuple(replace(s, noise=noise) for s in ranked)


def _noise(found: Sequence[Standing]) -> Noise | None:
    squares, freedom = 0.0, 0
    for standing in found:
        if len(standing.values) > 1 and min(standing.values) > 0:
            middle = math.log(standing.value)
            squares += sum((math.log(value) - middle) ** 2 for value in standing.values)
            freedom += len(standing.values) - 1
    return Noise(deviation=math.sqrt(squares / freedom), freedom=freedom) if freedom else None


def runner_up(standing: Sequence[Standing]) -> Standing | None:
    """The best of another split than the leader's: one that differs in more than its memory fraction."""
    return next((s for s in standing[1:] if _split(s.effective) != _split(standing[0].effective)), None)


def finalists(standing: Sequence[Standing], objective: Aim) -> tuple[Standing, ...]:
    """Those between whom the decision lies: the leader, and the runner-up where it is a contender."""
    if not standing:
        return ()
    second = runner_up(standing)
    if second is None or min(standing[0].value, second.value) <= 0:
        return (standing[0],)
    if objective.gain(standing[0].value, second.value) > CONTENDER:
        return (standing[0],)
    return standing[0], second


def is_tie(a: Standing, b: Standing) -> bool:
    """Whether their ratio may be 1: its interval contains that, or single runs lie closer than repeats do."""
    if min(a.value, b.value) <= 0:
        return a.value == b.value
    apart = abs(math.log(a.value / b.value))
    if a.noise is None:
        return apart <= math.log(NOISE)
    return apart <= a.noise.half_width(1 / len(a.values), 1 / len(b.values))


def _split(layout: Layout) -> Layout:
    """The layout without what follows from its memory fraction."""
    return replace(layout, mem_fraction_static=None)
