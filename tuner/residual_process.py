"""A Gaussian process on how far the truth lies from the prediction, and what one more trial may gain.

Layouts are points; nearby points err alike. The process has a Matern-5/2 kernel over their features
and a constant mean, learnt from the trials so far. Amplitude and length scale are those of the largest
marginal likelihood on a small grid: with a handful of trials nothing finer can be told apart.
(Rasmussen & Williams, Gaussian Processes for Machine Learning, 2006, sections 2.2 and 4.2.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.spatial.distance import cdist
from scipy.stats import norm

Array = NDArray[np.float64]

_AMPLITUDES = (0.05, 0.1, 0.2, 0.4, 0.8)
_LENGTH_SCALES = (0.5, 1.0, 2.0, 4.0)
_MEAN_SPREAD = 1.0
"""Prior standard deviation of the constant mean, in log units: a prediction may be off by e in all its values."""


def _matern(distance: Array, amplitude: float, length: float) -> Array:
    r = np.sqrt(5.0) * distance / length
    return np.asarray(amplitude**2 * (1.0 + r + r**2 / 3.0) * np.exp(-r), dtype=float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """Mean and standard deviation of the residual at each candidate, in log units."""

    mean: Array
    std: Array


def posterior(features: Array, observed: Array, residuals: Array, *, noise: float) -> Posterior:
    """features: (n, d) of all candidates, one unit apart where layouts are one step apart.
    observed: (k,) indices into them, repeats allowed.
    residuals: (k,) log(measured / predicted). noise: standard deviation of one measurement, in log units.
    """
    if len(observed) == 0:
        n = len(features)
        return Posterior(mean=np.zeros(n), std=np.full(n, np.hypot(_AMPLITUDES[3], _MEAN_SPREAD)))
    distance = cdist(features, features[observed])
    among = distance[observed]
    best: tuple[float, float, float] | None = None
    for amplitude in _AMPLITUDES:
        for length in _LENGTH_SCALES:
            k = _matern(among, amplitude, length) + _MEAN_SPREAD**2
            k[np.diag_indices_from(k)] += noise**2
            factor = cho_factor(k, lower=True)
            evidence = -0.5 * residuals @ cho_solve(factor, residuals) - np.log(np.diag(factor[0])).sum()
            if best is None or evidence > best[0]:
                best = (float(evidence), amplitude, length)
    assert best is not None
    _, amplitude, length = best
    k = _matern(among, amplitude, length) + _MEAN_SPREAD**2
    k[np.diag_indices_from(k)] += noise**2
    factor = cho_factor(k, lower=True)
    cross = _matern(distance, amplitude, length) + _MEAN_SPREAD**2
    mean = cross @ cho_solve(factor, residuals)
    explained = np.einsum("ij,ji->i", cross, cho_solve(factor, cross.T))
    variance = amplitude**2 + _MEAN_SPREAD**2 - explained
    return Posterior(mean=mean, std=np.sqrt(np.maximum(variance, 1e-12)))


def expected_improvement(mean: Array, std: Array, best: float) -> Array:
    """Of scores that are better when larger, over the best so far (Jones et al., 1998, eq. 15)."""
    z = (mean - best) / std
    return np.asarray((mean - best) * norm.cdf(z) + std * norm.pdf(z), dtype=float)


def success_probability(features: Array, tried: Array, worked: Array) -> Array:
    """How likely each candidate is to work: a vote of the tried ones, weighted by nearness.

    Half a prior vote for success keeps a failure from closing a region.
    """
    if len(tried) == 0:
        return np.ones(len(features))
    weight = _matern(cdist(features, features[tried]), 1.0, 0.75)
    return np.asarray((0.5 + weight @ worked) / (0.5 + weight.sum(axis=1)), dtype=float)
