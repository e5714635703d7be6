"""How tokens spread over experts: closed forms and bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.routing import distinct_experts, experts_on_fullest_rank, routing, tokens_on_fullest_rank

experts = st.sampled_from([8, 64, 128, 256, 384])
popularities = st.sampled_from([0.0, 0.3, 0.8, 1.2, 1.5])


def distinct(num_experts, k, popularity, num_tokens) -> float:
    return float(distinct_experts(routing(num_experts, k, popularity), np.array(float(num_tokens))))


@given(num_experts=experts, k=st.integers(1, 8), num_tokens=st.integers(1, 4096))
def test_uniform_routing_is_the_textbook_coupon_collector(num_experts, k, num_tokens):
    expected = num_experts * (1 - (1 - k / num_experts) ** num_tokens)
    # Exact up to 64 tokens, interpolated beyond.
    rel = 1e-9 if num_tokens <= 64 else 1e-3
    assert distinct(num_experts, k, 0.0, num_tokens) == pytest.approx(expected, rel=rel)


@given(num_experts=experts, k=st.integers(1, 8), s=popularities, num_tokens=st.integers(1, 4096))
def test_distinct_experts_rise_with_the_tokens_and_stay_below_all(num_experts, k, s, num_tokens):
    fewer = distinct(num_experts, k, s, num_tokens)
    more = distinct(num_experts, k, s, num_tokens + 1)
    assert 0 < fewer <= more <= num_experts * (1 + 1e-12)


@given(
    num_experts=experts,
    share=st.floats(0.001, 1),
    ep_size=st.sampled_from([1, 2, 4, 8]),
    imbalance=st.floats(0, 2),
)
def test_the_fullest_rank_reads_at_least_the_mean_and_at_most_all_it_holds(num_experts, share, ep_size, imbalance):
    touched = share * num_experts
    read = experts_on_fullest_rank(*map(np.array, (touched, num_experts, ep_size)), imbalance)
    assert touched / ep_size * (1 - 1e-12) <= read <= num_experts / ep_size


@given(
    num_experts=experts,
    num_tokens=st.integers(1, 8192),
    ep_size=st.sampled_from([1, 2, 4, 8]),
    s=popularities,
    imbalance=st.floats(0, 2),
)
def test_the_fullest_rank_computes_between_the_mean_and_everything(num_experts, num_tokens, ep_size, s, imbalance):
    k = min(8, num_experts // 2)
    pairs = tokens_on_fullest_rank(
        *map(np.array, (num_tokens, num_experts, k, ep_size)),
        variance=np.array(routing(num_experts, k, s).variance),
        imbalance=imbalance,
    )
    assert num_tokens * k / ep_size * (1 - 1e-12) <= pairs <= num_tokens * k * (1 + 1e-12)
