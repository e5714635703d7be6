"""Finished measurements of layouts, made to speak for the ones that were not measured."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cost_models.constants import DEFAULT, Constants
from cost_models.estimate import Surface, surface
from cost_models.memory import memory
from cost_models.posterior import NO_CALIBRATION, Calibration, Residuals
from cost_models.routing import Floats
from cost_models.runs import Run, Runs
from cost_models.setting import Setting
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.workload import Workload

__all__ = ["NO_CALIBRATION", "Calibration", "Observation", "calibrate"]

_OWN_SHARE = 0.5
"""Of a predicted time to first token, what must not be a wait for a place if a measured one is to be learnt from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One measured point of an effective layout.

    ttft_s, output_tok_per_s: None where not measured. environment: of the server, as far as it chooses the way of the
    all-reduces (`cost_models.setting.Setting`).
    """

    layout: Layout
    concurrency: int
    tpot_s: float
    ttft_s: float | None = None
    output_tok_per_s: float | None = None
    environment: tuple[tuple[str, str], ...] = ()


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

    Repeats of one point count as their geometric mean, the more of them the more; how they scatter widens intervals.
    """
    setting = setting or Setting()
    launches: dict[tuple[Layout, tuple[tuple[str, str], ...]], list[Observation]] = defaultdict(list)
    for observation in observations:
        launches[observation.layout, observation.environment].append(observation)
    usual = _Usual(model=model, cluster=cluster, workload=workload, setting=setting, constants=constants)
    compared = [_Compared(usual, seen) for seen in launches.values()]
    scatter = _scatter([each.tpot for each in compared]), _scatter([each.ttft for each in compared])
    known = Calibration(residuals=tuple(each.residuals for each in compared), scatter=scatter)
    return replace(known, runs=_runs(usual, compared, known))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Usual:
    """What all measurements have in common."""

    model: Model
    cluster: Cluster
    workload: Workload
    setting: Setting
    constants: Constants

    def surface(self, seen: Sequence[Observation], known: Calibration = NO_CALIBRATION) -> Surface:
        """Of the launch that `seen` are of, at the concurrencies of `seen` and at 1."""
        layout = seen[0].layout
        load = replace(self.workload, concurrencies=tuple(sorted({1, *(each.concurrency for each in seen)})))
        setting = replace(self.setting, environment=seen[0].environment)
        held = memory(self.model, self.cluster, layout, version=setting.version)
        held = replace(held, kv_tokens=max(held.kv_tokens, load.tokens_per_request))
        fitting = ((layout, held),)
        return surface(
            self.model, self.cluster, fitting, load, setting=setting, calibration=known, constants=self.constants
        )


_Logs = list[list[float]]
"""Logarithms of measured over predicted: of every measurement at each concurrency of a sweep."""


class _Compared:
    """The measurements of one launch, beside what is predicted of it."""

    def __init__(self, usual: _Usual, seen: Sequence[Observation]) -> None:
        found = usual.surface(seen)
        self.seen = seen
        self.sweep = found.sweeps[0]
        self.tpot = self.logs([each.tpot_s for each in seen], found.steady.tpot_s[0])
        # While it waits for a place a request waits for tokens of others: that is no time of its own prefill.
        own_s = found.steady.ttft_s[0] - found.steady.queued_s[0]
        is_own = {
            c: own > _OWN_SHARE * ttft
            for c, own, ttft in zip(self.sweep.concurrencies, own_s, found.steady.ttft_s[0], strict=True)
        }
        first = [each.ttft_s if is_own[each.concurrency] else None for each in seen]
        self.ttft = self.logs(first, found.steady.ttft_s[0])

    def logs(self, measured: Sequence[float | None], predicted: Floats) -> _Logs:
        return [
            [
                math.log(value / float(at))
                for each, value in zip(self.seen, measured, strict=True)
                if each.concurrency == concurrency and value is not None
            ]
            for concurrency, at in zip(self.sweep.concurrencies, predicted, strict=True)
        ]

    @property
    def residuals(self) -> Residuals:
        tpot, ttft = (
            tuple(sum(logs) / len(logs) if logs else math.nan for logs in each) for each in (self.tpot, self.ttft)
        )
        repeats = tuple(map(len, self.tpot)), tuple(map(len, self.ttft))
        return Residuals(sweep=self.sweep, tpot=tpot, ttft=ttft, repeats=repeats)


def _scatter(sweeps: Iterable[_Logs]) -> float:
    """Standard deviation of repeats about the mean of their point, over all points."""
    repeated = [logs for sweep in sweeps for logs in sweep if len(logs) > 1]
    freedom = sum(len(logs) - 1 for logs in repeated)
    squares = sum(len(logs) * statistics.pvariance(logs) for logs in repeated)
    return math.sqrt(squares / freedom) if freedom else 0.0


def _runs(usual: _Usual, compared: Sequence[_Compared], known: Calibration) -> Runs:
    """Of every launch with a measured rate, beside what follows from its calibrated times."""
    found = []
    for each in compared:
        rates = usual.surface(each.seen, known).steady.output_tok_per_s[0]
        logs = each.logs([seen.output_tok_per_s for seen in each.seen], rates)
        means = {
            int(at): statistics.fmean(here) for at, here in zip(each.sweep.concurrencies, logs, strict=True) if here
        }
        if means:
            found.append(Run(sweep=each.sweep, logs=means))
    return Runs(measured=tuple(found))
