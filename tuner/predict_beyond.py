"""Which shape comes first with more requests in flight than were asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cost_models.calibration import Calibration
from cost_models.estimate import predict_for_comparison
from cost_models.memory_types import DoesNotFit
from cost_models.prediction import Prediction, ServingPoint
from cost_models.setting import Setting
from cost_models.uncertainty import Z
from search_spaces.hardware import Cluster
from search_spaces.model import Model
from search_spaces.space import Candidate
from search_spaces.workload import Workload

MOST_REQUESTS = 4096
"""The most requests in flight that are looked at: what SGLang runs at once per KV pool by default."""

AS_GOOD = 1.0005
"""What no measurement would tell apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """candidate: the shape at the memory fraction with the largest KV cache. value: the most output tokens per second
    that it reaches on the ladder that was asked for, at any fraction.
    """

    candidate: Candidate
    prediction: Prediction
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BeyondLadder:
    """concurrencies: those looked at, above the ladder that was asked for. is_first: whether the first of that ladder
    still has the most tokens per second. candidate, prediction: of the one that has, above that ladder.
    is_like_first: whether the interval of its ratio to that first, each at its best, holds 1.
    """

    concurrencies: tuple[int, ...]
    is_first: bool
    is_like_first: bool = True
    candidate: Candidate
    prediction: Prediction

    @property
    def point(self) -> ServingPoint:
        """Its best one above the ladder that was asked for."""
        return self.prediction.points[self.place]

    @property
    def place(self) -> int:
        """Of that point among those of its prediction."""
        points = self.prediction.points
        above = [place for place, each in enumerate(points) if each.concurrency in self.concurrencies]
        return max(above, key=lambda place: points[place].output_tok_per_s)


def beyond_ladder(
    model: Model,
    cluster: Cluster,
    workload: Workload,
    shapes: Sequence[Shape],
    *,
    setting: Setting,
    calibration: Calibration,
) -> BeyondLadder | None:
    """shapes: best first by peak throughput.

    None where no shape runs more requests at once than the ladder holds, or the first lacks memory for more (short
    prompts are prefilled together) and no other exceeds it.
    """
    most = max(each.prediction.memory.max_concurrency(workload) for each in shapes)
    above = doubled(workload.concurrencies[-1], min(most, MOST_REQUESTS))
    if not above:
        return None
    estimates = predict_for_comparison(
        model,
        cluster,
        [each.candidate.effective for each in shapes],
        replace(workload, concurrencies=tuple(sorted({1, *above}))),
        setting=setting,
        calibration=calibration,
    )
    found = [
        (
            BeyondLadder(concurrencies=above, is_first=each is shapes[0], candidate=each.candidate, prediction=told[0]),
            told[1],
        )
        for each, told in zip(shapes, estimates, strict=True)
        if not isinstance(told, DoesNotFit)
    ]
    if not found:
        return None
    first = next((each for each in found if each[0].is_first), None)
    fastest = max(found, key=lambda each: each[0].point.output_tok_per_s)
    reached = max(shapes[0].value, 0.0 if first is None else first[0].point.output_tok_per_s)
    ratio = fastest[0].point.output_tok_per_s / reached
    if ratio <= AS_GOOD:
        return None if first is None else first[0]
    if first is None:
        return replace(fastest[0], is_like_first=False)
    deviation = calibration.ratio_deviation(first[1], first[0].place, fastest[1], fastest[0].place)
    return replace(fastest[0], is_like_first=math.log(ratio) <= Z * deviation)


def doubled(top: int, most: int) -> tuple[int, ...]:
    """Concurrencies above `top`, each twice the one before, up to the first that reaches `most`."""
    found: list[int] = []
    while (last := found[-1] if found else top) < most:
        found.append(min(2 * last, MOST_REQUESTS))
    return tuple(found)
