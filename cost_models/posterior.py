"""What measurements of some layouts say of the predictions of all: normal regression on the logarithm of the residual.

The prior covariance of two predictions is what they have in common (`cost_models.uncertainty`): the campaign, each
unproven trait, the collectives' path, the layout, the lengths, and nearby concurrencies of one sweep. Measured
residuals condition it in closed form (C. E. Rasmussen, C. K. I. Williams, Gaussian Processes for Machine Learning,
2006, eq. 2.25-2.26).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cost_models.routing import Floats
from cost_models.runs import NO_RUNS, Runs
from cost_models.sweep import Sweep
from cost_models.uncertainty import (
    CAMPAIGN,
    CROWD,
    LAYOUT,
    LENGTHS,
    MOST_MEASURED,
    NOISE,
    SHAPE,
    Z,
)

_SHAPE_LENGTH = 1.5
"""Natural logarithms of concurrency over which residuals of one sweep lose their likeness."""
_PATH_LENGTH = 2.0
"""The same of messages: what a path costs at one size says less of another."""
_PATH_ALIKE = 0.5
"""Correlation of what the messages of two layouts cost beyond what is assumed: on the opening story's host two of them
differ by a factor that their equal messages do not explain.
"""
_SCALE_POINTS = 4.0
"""Measured points that the prior deviations weigh as much as, when measurements say how large deviations are."""


class Applied(NamedTuple):
    """factor: on the prediction. deviation: of the logarithm of measured over predicted that is left, where that is
    above zero; below it is smaller by `fast_share`.
    """

    factor: Floats
    deviation: Floats
    fast_share: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """Logarithms of measured over predicted, one for each concurrency of a sweep, each the mean of its repeats.

    tpot, ttft: NaN where not measured. repeats: how many measurements of each there are, for both.
    """

    sweep: Sweep
    tpot: tuple[float, ...]
    ttft: tuple[float, ...]
    repeats: tuple[tuple[int, ...], tuple[int, ...]]

    def of(self, which: int) -> tuple[float, ...]:
        return self.ttft if which else self.tpot


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Residuals of finished measurements of one model on one cluster.

    scatter: deviation of repeats of one point from each other, of the time per token and to first token; 0 where
    nothing was repeated. runs: what measured rates are of those that follow from calibrated times.
    """

    residuals: tuple[Residuals, ...] = ()
    scatter: tuple[float, float] = (0.0, 0.0)
    runs: Runs = NO_RUNS

    @property
    def num_points(self) -> int:
        return int(sum(np.sum(~np.isnan(each.tpot)) for each in self.residuals))

    def applied(self, sweeps: Sequence[Sweep]) -> tuple[Applied, Applied]:
        """For the time per output token and to first token: arrays of shape (sweeps, concurrencies)."""
        return self._of(0, sweeps), self._of(1, sweeps)

    def _of(self, which: int, sweeps: Sequence[Sweep]) -> Applied:
        fixed = np.array([[_variance(which, sweep)] for sweep in sweeps])
        fixed = fixed + np.square([_crowd(which, sweep) for sweep in sweeps])
        prior = fixed + np.square([sweep.collectives[which] for sweep in sweeps])
        fast_share = np.sqrt((fixed + np.square([sweep.saved[which] for sweep in sweeps])) / prior)
        noise = self._noise(which)
        found = self._found(which)
        known = ~np.isnan(found)
        if not np.any(known):
            return Applied(np.ones_like(prior), np.sqrt(prior + noise), fast_share)
        given = self._given(which, known)
        inverse = np.linalg.inv(given)
        means = np.empty_like(prior)
        variances = np.empty_like(prior)
        for row, sweep in enumerate(sweeps):
            shared = self._shared(which, sweep, known)
            weights = shared @ inverse
            means[row] = weights @ found[known]
            variances[row] = prior[row] - np.sum(weights * shared, axis=1)
        scale = self._scale(which, known, given)
        deviation = np.sqrt(scale * np.maximum(variances, 0.0) + noise)
        # As far as measurements moved a time up, it may be down again.
        share = np.minimum(1.0, fast_share + np.maximum(means, 0.0) / (Z * deviation))
        return Applied(np.exp(means), deviation, share)

    def ratio_deviation(self, one: Sweep, place: int, other: Sweep, other_place: int) -> float:
        """Of the logarithm of two measured times per token, each at a place among its sweep's concurrencies, beyond
        what is predicted of their ratio: what both have in common falls out of it.
        """
        own = _covariance(0, one, one)[place, place] + _covariance(0, other, other)[other_place, other_place]
        variance = own - 2 * _covariance(0, one, other)[place, other_place]
        known = ~np.isnan(self._found(0))
        if np.any(known):
            apart = self._shared(0, one, known)[place] - self._shared(0, other, known)[other_place]
            given = self._given(0, known)
            variance = self._scale(0, known, given) * (variance - apart @ np.linalg.solve(given, apart))
        return float(np.sqrt(np.maximum(variance, 0.0) + 2 * self._noise(0)))

    def _found(self, which: int) -> Floats:
        return np.array([value for each in self.residuals for value in each.of(which)], dtype=np.float64)

    def _given(self, which: int, known: NDArray[np.bool_]) -> Floats:
        """Covariance of the known measurements."""
        measured = [each.sweep for each in self.residuals]
        given = np.block([[_covariance(which, a, b) for b in measured] for a in measured])[np.ix_(known, known)]
        repeats = np.array([count for each in self.residuals for count in each.repeats[which]])[known]
        return np.asarray(given + self._noise(which) * np.diag(1 / repeats))

    def _noise(self, which: int) -> float:
        """Variance of one measurement about what one and the same point has in the mean."""
        return max(NOISE[which], self.scatter[which]) ** 2

    def _scale(self, which: int, known: NDArray[np.bool_], given: Floats) -> float:
        """By how much variances are larger than stated: at least 1, more where the measurements surprise.

        The posterior mean of a scale with an inverse-gamma prior of weight `_SCALE_POINTS`.
        """
        found = self._found(which)[known]
        surprise = float(found @ np.linalg.solve(given, found))
        return max(1.0, (_SCALE_POINTS + surprise) / (_SCALE_POINTS + len(found)))

    def _shared(self, which: int, sweep: Sweep, known: NDArray[np.bool_]) -> Floats:
        """Covariance of a sweep's predictions with the known measurements."""
        return np.concatenate([_covariance(which, sweep, each.sweep) for each in self.residuals], axis=1)[:, known]


NO_CALIBRATION = Calibration()


def _variance(which: int, sweep: Sweep) -> float:
    """What does not depend on concurrency."""
    return _COMMON[which] + sum(each[which] ** 2 for each in sweep.traits.values())


_COMMON = tuple(sum(each[which] ** 2 for each in (CAMPAIGN, LAYOUT, LENGTHS, SHAPE)) for which in (0, 1))


def _crowd(which: int, sweep: Sweep) -> Floats:
    """Deviation that comes from more running requests than were measured, at each concurrency."""
    return np.asarray(CROWD[which] * np.log(np.maximum(1.0, sweep.running / MOST_MEASURED)))


def _covariance(which: int, one: Sweep, other: Sweep) -> Floats:
    """Of shape (concurrencies of one, concurrencies of the other)."""
    common = CAMPAIGN[which] ** 2
    common += sum(
        one.traits[trait][which] * other.traits[trait][which] for trait in one.traits if trait in other.traits
    )
    same_layout = one.is_of_the_layout_of(other)
    same_lengths = one.lengths == other.lengths
    common += LAYOUT[which] ** 2 * same_layout + LENGTHS[which] ** 2 * (same_layout and same_lengths)
    covariance = np.full((len(one.concurrencies), len(other.concurrencies)), common)
    covariance += np.outer(_crowd(which, one), _crowd(which, other))
    apart = np.subtract.outer(np.log(one.concurrencies), np.log(other.concurrencies))
    if one.path is other.path:
        alike = (1.0 if same_layout else _PATH_ALIKE) * np.exp(-0.5 * (apart / _PATH_LENGTH) ** 2)
        covariance += alike * np.outer(one.collectives[which], other.collectives[which])
    if same_layout and same_lengths:
        covariance += SHAPE[which] ** 2 * np.exp(-0.5 * (apart / _SHAPE_LENGTH) ** 2)
    return covariance
