"""What the trials of a study say of layouts beyond their measurements: which died, and which was the best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from search_spaces.layout import Layout
from tuner.objective import Objective
from tuner.predict_words import figure, said_time

Pins = Mapping[str, int | float | str]
"""Values that fields of the layouts that are asked for have."""


def shape_of(layout: Layout) -> Layout:
    """The layout, whatever its memory fraction."""
    return layout.changed(mem_fraction_static=None)


def is_asked_for(requested: Layout, pins: Pins) -> bool:
    return all(getattr(requested, name) == value for name, value in pins.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Died:
    """A layout that a trial ended without a measurement, for a reason of its own.

    requested, effective: as it was asked for and as it ran. how: in a few words. trials: their numbers. dead: the
    lowest and the highest memory fraction of this shape that the end speaks of.
    """

    requested: Layout
    effective: Layout
    how: str
    trials: tuple[int, ...]
    dead: tuple[float, float]

    def rules_out(self, layout: Layout) -> bool:
        """layout: effective."""
        fraction = layout.mem_fraction_static
        is_within = layout == self.effective or (fraction is not None and self.dead[0] <= fraction <= self.dead[1])
        return is_within and shape_of(layout) == shape_of(self.effective)

    @property
    def told(self) -> str:
        return f"{self.requested.label} ({self.how})"

    @property
    def document(self) -> dict[str, Any]:
        return {
            "label": self.requested.label,
            "how": self.how,
            "trials": list(self.trials),
            "dead_mem_fraction_static": list(self.dead),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredBest:
    """requested: a layout that a study measured. value: the mean of its trials, in SI units."""

    requested: Layout
    value: float
    trials: tuple[int, ...]

    def told(self, objective: Objective) -> str:
        shown = f"{figure(self.value)} tok/s" if objective.maximise else f"{said_time(self.value)} per token"
        return f"measured best: {self.requested.label}, {shown} ({said_trials(self.trials)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """measured: effective layouts that gave a measurement. died: none of these. standings: the measured layouts by each
    objective, the best first.
    """

    measured: frozenset[Layout] = frozenset()
    died: tuple[Died, ...] = ()
    standings: Mapping[Objective, tuple[MeasuredBest, ...]] = field(default_factory=dict)

    def best(self, objective: Objective, pins: Pins) -> MeasuredBest | None:
        """Of the layouts with `pins`; None where none of them was measured."""
        order = self.standings.get(objective, ())
        return next((each for each in order if is_asked_for(each.requested, pins)), None)

    def how_it_died(self, layout: Layout) -> Died | None:
        """The end that speaks of an effective layout; None where there is none, or where it was measured."""
        if layout in self.measured:
            return None
        return next((each for each in self.died if each.rules_out(layout)), None)


NO_TRIALS = Trials()


def said_trials(numbers: tuple[int, ...]) -> str:
    *rest, last = map(str, numbers)
    return f"trials {', '.join(rest)} and {last}" if rest else f"trial {last}"
