"""What makes an interval as wide as it is, part by part, before measurements narrow it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from cost_models.prediction import Prediction
from cost_models.sweep import Sweep
from cost_models.uncertainty import CAMPAIGN, CROWD, LAYOUT, LENGTHS, MOST_MEASURED, NOISE, SHAPE, Z

COMBINED = "they combine as the root of the sum of squares of their logarithms"
_BASE = math.sqrt(sum(each.tpot**2 for each in (CAMPAIGN, LAYOUT, LENGTHS, SHAPE, NOISE)))
_ANY = "any model on any GPU"
_WORTH_TELLING = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """By which factor one thing that is not known may move the time per token, at 95 %.

    slower, faster: each at concurrency 1 and at the peak.
    """

    name: str
    slower: tuple[float, float]
    faster: tuple[float, float]

    @property
    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "slower": {"at_1": self.slower[0], "at_peak": self.slower[1]},
            "faster": {"at_1": self.faster[0], "at_peak": self.faster[1]},
        }


def parts_of(estimate: Prediction, sweep: Sweep) -> tuple[Part, ...]:
    """The base first: what is not known of any model on any GPU. sweep: of the same concurrencies as `estimate`."""
    first, peak = 0, estimate.points.index(estimate.peak)
    found = [_alike(_ANY, _BASE)]
    found += [_alike(f"not proven: {trait}", deviations.tpot) for trait, deviations in sweep.traits.items()]
    slow, fast = sweep.collectives[0], sweep.saved[0]
    found.append(
        Part(
            name=f"messages between GPUs ({estimate.all_reduce})",
            slower=(_factor(slow[first]), _factor(slow[peak])),
            faster=(_factor(fast[first]), _factor(fast[peak])),
        )
    )
    at_peak = _factor(CROWD.tpot * math.log(max(1.0, sweep.running[peak] / MOST_MEASURED)))
    found.append(
        Part(
            name=f"more than {MOST_MEASURED} requests at once at one replica",
            slower=(1.0, at_peak),
            faster=(1.0, at_peak),
        )
    )
    return tuple(each for each in found if max(*each.slower, *each.faster) >= _WORTH_TELLING)


def told(part: Part) -> str:
    """In words."""
    if part.slower == part.faster:
        if part.slower[0] != part.slower[1]:
            return f"{part.name}: {_x(part.slower[1])} (at the peak)"
        why = " (campaigns of one kind differ by that)" if part.name == _ANY else ""
        return f"{part.name}: {_x(part.slower[0])}{why}"
    one, peak = (
        f"{_x(slow)} if slower, {_x(fast)} if faster" for slow, fast in zip(part.slower, part.faster, strict=True)
    )
    return f"{part.name}: {one}" if one == peak else f"{part.name}: {one} at concurrency 1; {peak} at the peak"


def _alike(name: str, deviation: float) -> Part:
    factor = _factor(deviation)
    return Part(name=name, slower=(factor, factor), faster=(factor, factor))


def _factor(deviation: float) -> float:
    return float(math.exp(Z * deviation))


def _x(factor: float) -> str:
    return f"x{factor:.1f}"
