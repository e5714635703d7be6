"""What a measured rate is of the one that follows from the times that were measured with it.

A run of few requests begins with all prompts at once and ends with a few stragglers, so its tokens per second are fewer
than those of a steady state with the same times; how many fewer hangs on the client more than on the layout.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cost_models.routing import Floats
from cost_models.sweep import Sweep

_REACH = 1.5
"""Natural logarithms of concurrency over which what was seen at one speaks for another."""
_BETWEEN_LAYOUTS = 0.05
"""Deviation of a layout's own share from that of others, where one layout alone was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One launch. logs: of measured over calibrated rate at concurrencies of `sweep`, the means of repeats."""

    sweep: Sweep
    logs: Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Of all launches whose rates were measured."""

    measured: tuple[Run, ...] = ()

    @property
    def factors(self) -> dict[int, float]:
        """Of measured over calibrated rate at each measured concurrency: the geometric mean over launches."""
        return {at: math.exp(statistics.fmean(logs)) for at, logs in self._pooled.items()}

    def applied(self, sweeps: Sequence[Sweep]) -> tuple[Floats, Floats]:
        """The factor on calibrated rates, and the deviation of its logarithm: arrays of shape (sweeps, concurrencies).

        A launch that was measured has its own factor, others the mean. Away from measured concurrencies the factor
        fades to 1, and what it was stays as a deviation.
        """
        pooled, apart = self._pooled, self._between_layouts
        logs, deviations = [], []
        for sweep in sweeps:
            own = next((run.logs for run in self.measured if run.sweep.is_of_the_layout_of(sweep)), None)
            known = {at: statistics.fmean(each) for at, each in pooled.items()} if own is None else own
            found, faded = _along(known, sweep.concurrencies)
            logs.append(found)
            deviations.append(np.hypot(faded, apart if own is None and known else 0.0))
        return np.exp(logs), np.array(deviations)

    @property
    def _pooled(self) -> dict[int, list[float]]:
        found: dict[int, list[float]] = defaultdict(list)
        for run in self.measured:
            for at, log in run.logs.items():
                found[at].append(log)
        return dict(sorted(found.items()))

    @property
    def _between_layouts(self) -> float:
        pooled = self._pooled.values()
        freedom = sum(len(logs) - 1 for logs in pooled)
        squares = sum(len(logs) * statistics.pvariance(logs) for logs in pooled)
        return max(_BETWEEN_LAYOUTS, math.sqrt(squares / freedom)) if freedom else _BETWEEN_LAYOUTS


NO_RUNS = Runs()


def _along(known: Mapping[int, float], concurrencies: Sequence[float]) -> tuple[Floats, Floats]:
    """The logarithm at each, and how much of what was seen nearby does not reach it."""
    wanted = np.log(concurrencies)
    if not known:
        return np.zeros_like(wanted), np.zeros_like(wanted)
    at = np.log(sorted(known))
    seen = np.interp(wanted, at, [known[each] for each in sorted(known)])
    weight = np.exp(-0.5 * (np.min(np.abs(wanted[:, None] - at[None, :]), axis=1) / _REACH) ** 2)
    return np.asarray(seen * weight), np.asarray(np.abs(seen) * np.sqrt(1 - weight**2))
