"""How tokens spread over experts and ranks: what the fullest rank has to read and to compute."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


@lru_cache(maxsize=65536)
def distinct_experts(num_experts: int, experts_per_token: int, popularity: float, num_tokens: int) -> float:
    """Expected number of experts that at least one of `num_tokens` tokens is routed to.

    Expert i is chosen by a token with probability min(1, k * pi_i), pi_i ~ i**-popularity, independently.
    """
    chosen = np.minimum(1.0, experts_per_token * _popularities(num_experts, popularity))
    return float(np.sum(1.0 - (1.0 - chosen) ** num_tokens))


def experts_on_fullest_rank(distinct: float, num_experts: int, ep_size: int, imbalance: float) -> float:
    """Distinct experts that the fullest of `ep_size` ranks has to read.

    The mean plus `imbalance * sqrt(2 ln ep_size)` standard deviations of a hypergeometric draw.
    """
    mean = distinct / ep_size
    spread = math.sqrt(max(0.0, mean * (1 - 1 / ep_size) * (1 - distinct / num_experts)))
    return min(num_experts / ep_size, mean + _largest_of(ep_size, imbalance) * spread)


def tokens_on_fullest_rank(
    num_tokens: float,
    num_experts: int,
    experts_per_token: int,
    ep_size: int,
    *,
    popularity: float,
    imbalance: float,
) -> float:
    """Token-expert pairs that the fullest of `ep_size` ranks has to compute.

    Spread by chance and by uneven popularity; at most every token with as many experts as the rank has.
    """
    mean = num_tokens * experts_per_token / ep_size
    uneven = _popularity_variance(num_experts, popularity) * ep_size / (2 * num_experts)
    spread = math.sqrt(mean * (1 - 1 / ep_size) + mean**2 * uneven)
    most = num_tokens * min(experts_per_token, num_experts / ep_size)
    return min(mean + _largest_of(ep_size, imbalance) * spread, most)


def _largest_of(ep_size: int, imbalance: float) -> float:
    return imbalance * math.sqrt(2 * math.log(ep_size))


@lru_cache(maxsize=256)
def _popularities(num_experts: int, popularity: float) -> NDArray[np.float64]:
    weights: NDArray[np.float64] = np.arange(1, num_experts + 1, dtype=np.float64) ** -popularity
    return weights / np.sum(weights)


@lru_cache(maxsize=256)
def _popularity_variance(num_experts: int, popularity: float) -> float:
    return float(np.var(num_experts * _popularities(num_experts, popularity)))
