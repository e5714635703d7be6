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
from tuner.predict_trials import NO_TRIALS, Trials

_Launch = tuple[Layout, tuple[tuple[str, str], ...]]
"""A layout and what the server's environment says of its all-reduces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A measured point beside what was predicted of it before anything was calibrated, with its intervals."""

    measured: Observation
    tpot_s: float
    ttft_s: float
    tpot_interval_s: Interval
    ttft_interval_s: Interval

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
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """origin: where the measurements come from. tpot_factor: by which the calibration moves the time per token at the
    measured points, as a geometric mean; ttft_factor: likewise. is_simulated: whether a simulated server gave them.
    compared: each observation with its prediction. trials: what a study says beyond its measurements.
    """

    observations: tuple[Observation, ...]
    compared: tuple[Compared, ...]
    calibration: Calibration
    origin: str
    tpot_factor: float
    ttft_factor: float
    is_simulated: bool = False
    trials: Trials = NO_TRIALS

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
    def told(self) -> str:
        """In one sentence."""
        of = f"{len(self.observations)} measured point{'s' * (len(self.observations) != 1)}"
        layouts = f"{self.num_layouts} layout{'s' * (self.num_layouts != 1)}"
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
) -> Evidence:
    """Raises UserError where there is nothing to learn from."""
    if not observations:
        raise UserError(f"{origin} holds no measured point: there is nothing to calibrate by")
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
                tpot_interval_s=point.tpot_interval_s,
                ttft_interval_s=point.ttft_interval_s,
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
    )
