"""How tokens spread over experts and ranks: what the fullest rank has to read and to compute. Vectorised."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_MOST_TOKENS = 2.0**20
_GRID = np.unique(np.concatenate([np.arange(65.0), np.round(np.geomspace(64, _MOST_TOKENS, 200))]))
"""Numbers of tokens at which the distinct experts are summed up; between them they are interpolated."""


class Routing(NamedTuple):
    """Of one model's experts under a Zipf law: expert i is chosen with probability pi_i ~ i**-popularity.

    distinct: expected experts that at least one of so many tokens (`_GRID`) is routed to. variance: of E * pi.
    """

    distinct: Floats
    variance: float


@lru_cache(maxsize=512)
def routing(num_experts: int, experts_per_token: int, popularity: float) -> Routing:
    """A token chooses expert i with probability q_i = min(1, k * pi_i), independently: D(T) = sum 1 - (1 - q_i)**T."""
    weights = np.arange(1, num_experts + 1, dtype=np.float64) ** -popularity
    shares = weights / np.sum(weights)
    missed = 1.0 - np.minimum(1.0, experts_per_token * shares)
    distinct = np.sum(1.0 - missed[None, :] ** _GRID[:, None], axis=1)
    return Routing(distinct=distinct, variance=float(np.var(num_experts * shares)))


def distinct_experts(table: Routing, num_tokens: Floats) -> Floats:
    """Expected distinct experts of `num_tokens` tokens, of any shape."""
    return np.interp(num_tokens, _GRID, table.distinct)


def experts_on_fullest_rank(distinct: Floats, num_experts: Floats, ep_size: Floats, imbalance: float) -> Floats:
    """Distinct experts that the fullest of `ep_size` ranks has to read.

    The mean plus `imbalance * sqrt(2 ln ep_size)` standard deviations of a hypergeometric draw.
    """
    mean = distinct / ep_size
    spread = np.sqrt(np.maximum(0.0, mean * (1 - 1 / ep_size) * (1 - distinct / num_experts)))
    return np.minimum(num_experts / ep_size, mean + _largest_of(ep_size, imbalance) * spread)


def tokens_on_fullest_rank(
    num_tokens: Floats,
    num_experts: Floats,
    experts_per_token: Floats,
    ep_size: Floats,
    *,
    variance: Floats,
    imbalance: float,
) -> Floats:
    """Token-expert pairs that the fullest of `ep_size` ranks has to compute.

    Spread by chance and by uneven popularity; at most every token with as many experts as the rank has.
    """
    mean = num_tokens * experts_per_token / ep_size
    uneven = variance * ep_size / (2 * num_experts)
    spread = np.sqrt(mean * (1 - 1 / ep_size) + mean**2 * uneven)
    most = num_tokens * np.minimum(experts_per_token, num_experts / ep_size)
    return np.minimum(mean + _largest_of(ep_size, imbalance) * spread, most)


def _largest_of(ep_size: Floats, imbalance: float) -> Floats:
    return np.asarray(imbalance * np.sqrt(2 * np.log(ep_size)))
