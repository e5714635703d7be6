"""Finished measurements of layouts, made to speak for the ones that were not measured."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cost_models.constants import DEFAULT, Constants
from cost_models.estimate import surface
from cost_models.memory import memory
from cost_models.posterior import NO_CALIBRATION, Calibration, Residuals
from cost_models.setting import Setting
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.workload import Workload

__all__ = ["NO_CALIBRATION", "Calibration", "Observation", "calibrate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One measured point of an effective layout. ttft_s: None where not measured."""

    layout: Layout
    concurrency: int
    tpot_s: float
    ttft_s: float | None = None


def calibrate(
    model: Model,
    cluster: Cluster,
    workload: Workload,
    observations: Iterable[Observation],
    *,
    setting: Setting | None = None,
    constants: Constants = DEFAULT,
) -> Calibration:
    """What `observations` under the lengths of `workload` say; its concurrencies do not matter.

    Repeats of one point count as their geometric mean.
    """
    setting = setting or Setting()
    by_layout: dict[Layout, list[Observation]] = defaultdict(list)
    for observation in observations:
        by_layout[observation.layout].append(observation)
    residuals = []
    for layout, seen in by_layout.items():
        load = replace(workload, concurrencies=tuple(sorted({1, *(each.concurrency for each in seen)})))
        held = memory(model, cluster, layout, version=setting.version)
        held = replace(held, kv_tokens=max(held.kv_tokens, workload.tokens_per_request))
        found = surface(model, cluster, ((layout, held),), load, setting=setting, constants=constants)
        tpot, ttft = [], []
        for column, concurrency in enumerate(load.concurrencies):
            here = [each for each in seen if each.concurrency == concurrency]
            tpot.append(_residual([each.tpot_s for each in here], float(found.steady.tpot_s[0, column])))
            first = [each.ttft_s for each in here if each.ttft_s is not None]
            ttft.append(_residual(first, float(found.steady.ttft_s[0, column])))
        residuals.append(Residuals(sweep=found.sweeps[0], tpot=tuple(tpot), ttft=tuple(ttft)))
    return Calibration(residuals=tuple(residuals))


def _residual(measured_s: Sequence[float], predicted_s: float) -> float:
    """Mean logarithm of measured over predicted; NaN without a measurement."""
    return sum(math.log(each / predicted_s) for each in measured_s) / len(measured_s) if measured_s else math.nan
