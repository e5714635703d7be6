"""What the cost model says of how a layout would run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cost_models.memory_types import Memory
from search_spaces.layout import Layout
from search_spaces.sglang.all_reduce import AllReducePath

COVERAGE = 0.95
"""Share of measurements that are to lie inside an interval."""
AS_MANY = 0.9995
"""Share of the most tokens per second from which on a point counts as the peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Where a measurement is expected to lie, at `COVERAGE`, in the unit of the value that it belongs to."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    @property
    def factor(self) -> float:
        """Either way from the middle: 1.5 means from two thirds to one and a half times."""
        return math.sqrt(self.high / self.low)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPoint:
    """Steady state with `concurrency` requests in flight.

    output_tok_per_s: output tokens per second of the whole deployment.
    """

    concurrency: int
    ttft_s: float
    tpot_s: float
    output_tok_per_s: float
    ttft_interval_s: Interval
    tpot_interval_s: Interval
    output_tok_per_s_interval: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What no layout of this box can exceed with `concurrency` requests in flight.

    bound_by: what the box would be short of: `memory bandwidth` or `compute`.
    """

    concurrency: int
    output_tok_per_s: float
    bound_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """One engine step by cause, in seconds; the parts sum to the step."""

    parts: tuple[tuple[str, float], ...]

    @property
    def total_s(self) -> float:
        return sum(seconds for _, seconds in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """How a layout would run.

    all_reduce: the path that is assumed for its all-reduces. step: one decode step at concurrency 1; peak_step: at
    the concurrency of `peak`, with what it waits for others' prompts; prefill: one prompt alone. limits: beside
    `points`. unproven: why the intervals are wider than for layouts like the measured ones. unproven_deviation: of the
    logarithm of the time per token, what of that is this layout's own.
    """

    layout: Layout
    memory: Memory
    all_reduce: AllReducePath
    step: StepTime
    peak_step: StepTime
    prefill: StepTime
    points: tuple[ServingPoint, ...]
    limits: tuple[Limit, ...]
    unproven: tuple[str, ...] = ()
    unproven_deviation: float = 0.0

    @property
    def peak(self) -> ServingPoint:
        """The fewest requests in flight with the most tokens per second, but for what no measurement tells apart: once
        all that fit are running, more in flight only wait.
        """
        most = max(point.output_tok_per_s for point in self.points)
        return next(point for point in self.points if point.output_tok_per_s >= AS_MANY * most)
