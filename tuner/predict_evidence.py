"""Measurements of this very model on these very GPUs, and how they move predictions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cost_models.calibration import NO_CALIBRATION, Calibration, Observation, calibrate
from cost_models.estimate import predict_if_it_fits
from cost_models.prediction import Interval, ServingPoint
from cost_models.setting import Setting
from search_spaces.errors import UserError
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.workload import Workload
from tuner.predict_document import interval_document
from tuner.predict_left_out import NOTHING_LEFT_OUT, LeftOut
from tuner.predict_trials import NO_TRIALS, Trials

_Launch = tuple[Layout, tuple[tuple[str, str], ...]]
"""A layout and what the server's environment says of its all-reduces."""
_NO_FACTOR = 0.005
"""Of the logarithm of a factor: what is shown as 1.00."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A measured point beside what was predicted of it before anything was calibrated, with its intervals."""

    measured: Observation
    tpot_s: float
    ttft_s: float
    output_tok_per_s: float
    tpot_interval_s: Interval
    ttft_interval_s: Interval
    output_tok_per_s_interval: Interval

    @property
    def is_rate_outside(self) -> bool:
        rate = self.measured.output_tok_per_s
        return rate is not None and rate not in self.output_tok_per_s_interval

    @property
    def is_tpot_outside(self) -> bool:
        return self.measured.tpot_s not in self.tpot_interval_s

    @property
    def is_ttft_outside(self) -> bool:
        return self.measured.ttft_s is not None and self.measured.ttft_s not in self.ttft_interval_s

    @property
    def document(self) -> dict[str, Any]:
        seen = self.measured
        return {
            "layout": seen.layout.label,
            "environment": dict(seen.environment),
            "concurrency": seen.concurrency,
            "tpot_ms": {
                "measured": seen.tpot_s * 1e3,
                "predicted": self.tpot_s * 1e3,
                "interval": interval_document(self.tpot_interval_s, 1e3),
                "is_outside": self.is_tpot_outside,
            },
            "ttft_ms": {
                "measured": None if seen.ttft_s is None else seen.ttft_s * 1e3,
                "predicted": self.ttft_s * 1e3,
                "interval": interval_document(self.ttft_interval_s, 1e3),
                "is_outside": None if seen.ttft_s is None else self.is_ttft_outside,
            },
            "output_tok_s": {
                "measured": seen.output_tok_per_s,
                "predicted": self.output_tok_per_s,
                "interval": interval_document(self.output_tok_per_s_interval),
                "is_outside": None if seen.output_tok_per_s is None else self.is_rate_outside,
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """origin: where the measurements come from. tpot_factor: by which the calibration moves the time per token at the
    measured points, as a geometric mean; ttft_factor: likewise. is_simulated: whether a simulated server gave them.
    compared: each observation with its prediction. trials: what a study says beyond its measurements. left_out: what of
    the lines of a file moved nothing.
    """

    observations: tuple[Observation, ...]
    compared: tuple[Compared, ...]
    calibration: Calibration
    origin: str
    tpot_factor: float
    ttft_factor: float
    is_simulated: bool = False
    trials: Trials = NO_TRIALS
    left_out: LeftOut = NOTHING_LEFT_OUT

    @property
    def measured_over_predicted(self) -> float:
        """Of the time per token, as a geometric mean over the measured points, before anything was calibrated."""
        logs = [math.log(each.measured.tpot_s / each.tpot_s) for each in self.compared]
        return math.exp(sum(logs) / len(logs))

    @property
    def layouts(self) -> frozenset[Layout]:
        return frozenset(each.layout for each in self.observations)

    @property
    def num_layouts(self) -> int:
        return len(self.layouts)

    @property
    def num_environments(self) -> int:
        return len({each.environment for each in self.observations})

    @property
    def rate_factors(self) -> dict[int, float]:
        """By which tokens per second are moved beyond what the times make of them, at each concurrency where they were
        measured.
        """
        return self.calibration.runs.factors

    @property
    def rates_told(self) -> str:
        """In one sentence; empty where measured rates are what the times beside them make."""
        factors = self.rate_factors
        if all(abs(math.log(factor)) < _NO_FACTOR for factor in factors.values()):
            return ""
        low, high = (f"{bound(factors.values()):.2f}" for bound in (min, max))
        *rest, last = map(str, factors)
        at = f"concurrencies {', '.join(rest)} and {last}" if rest else f"concurrency {last}"
        is_short = math.log(min(factors.values())) < -_NO_FACTOR
        why = ": runs of few requests end with stragglers; tok/s here are such runs'"
        return (
            f"measured rates are {low if low == high else f'{low} to {high}'} of what the measured times give, at {at}"
            f"{why if is_short else '; tok/s here follow them'}"
        )

    @property
    def told(self) -> str:
        """In one sentence."""
        of = f"{len(self.observations)} measured point{'s' * (len(self.observations) != 1)}"
        layouts = f"{self.num_layouts} layout{'s' * (self.num_layouts != 1)}"
        if self.num_environments > 1:
            layouts += f" in {self.num_environments} environments"
        measures_ttft = any(each.ttft_s is not None for each in self.observations)
        moved = f" and TTFT by {self.ttft_factor:.2f}" if measures_ttft else ""
        beware = "; they are a simulated server's, and so are these predictions" if self.is_simulated else ""
        return (
            f"calibrated by {of} of {layouts} in {self.origin}: TPOT moved by a factor "
            f"{self.tpot_factor:.2f}{moved} there{beware}"
        )

    @property
    def document(self) -> dict[str, Any]:
        return {
            "origin": self.origin,
            "num_points": len(self.observations),
            "num_layouts": self.num_layouts,
            "tpot_factor": self.tpot_factor,
            "ttft_factor": self.ttft_factor,
            "rate_factors": {str(concurrency): factor for concurrency, factor in self.rate_factors.items()},
            **self.left_out.document,
            "simulated": self.is_simulated,
            "points": [each.document for each in self.compared],
        }


def gathered(
    model: Model,
    cluster: Cluster,
    workload: Workload,
    setting: Setting,
    observations: Sequence[Observation],
    *,
    origin: str,
    is_simulated: bool = False,
    trials: Trials = NO_TRIALS,
    left_out: LeftOut = NOTHING_LEFT_OUT,
) -> Evidence:
    """Raises UserError where there is nothing to learn from."""
    if not observations:
        why = "; ".join(("there is nothing to calibrate by", *left_out.told))
        raise UserError(f"no measured point in {origin}: {why}")
    calibration = calibrate(model, cluster, workload, observations, setting=setting)
    by_launch: dict[_Launch, set[int]] = {}
    for each in observations:
        by_launch.setdefault((each.layout, each.environment), set()).add(each.concurrency)
    moved = []
    known_before: dict[tuple[_Launch, int], ServingPoint] = {}
    for launch, concurrencies in by_launch.items():
        layout, environment = launch
        load = replace(workload, concurrencies=tuple(sorted({1, *concurrencies})))
        of_launch = replace(setting, environment=environment)
        before, after = (
            predict_if_it_fits(model, cluster, layout, load, setting=of_launch, calibration=known).points
            for known in (NO_CALIBRATION, calibration)
        )
        known_before |= {(launch, point.concurrency): point for point in before}
        moved += [
            (math.log(new.tpot_s / old.tpot_s), math.log(new.ttft_s / old.ttft_s))
            for old, new in zip(before, after, strict=True)
            if old.concurrency in concurrencies
        ]
    tpot_factor, ttft_factor = (math.exp(sum(logs) / len(logs)) for logs in zip(*moved, strict=True))
    compared = []
    for each in observations:
        point = known_before[(each.layout, each.environment), each.concurrency]
        compared.append(
            Compared(
                measured=each,
                tpot_s=point.tpot_s,
                ttft_s=point.ttft_s,
                output_tok_per_s=point.output_tok_per_s,
                tpot_interval_s=point.tpot_interval_s,
                ttft_interval_s=point.ttft_interval_s,
                output_tok_per_s_interval=point.output_tok_per_s_interval,
            )
        )
    return Evidence(
        observations=tuple(observations),
        compared=tuple(compared),
        calibration=calibration,
        origin=origin,
        tpot_factor=tpot_factor,
        ttft_factor=ttft_factor,
        is_simulated=is_simulated,
        trials=trials,
        left_out=left_out,
    )
