"""The window of memory fractions that a layout works with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.fractions import workable_fractions
from cost_models.memory import fit, memory
from cost_models.memory_types import Memory
from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.layout import Layout
from search_spaces.sglang.resolution import resolve
from search_spaces.workload import Workload

WORKLOAD = Workload()


def effective(model, cluster, **flags):
    return resolve(Layout(**flags), model, cluster)[0]


@pytest.mark.parametrize(
    ("name", "cluster", "flags"),
    [
        ("kimi-k2.6", "8xrtx-pro-6000", {"tp_size": 8}),
        ("kimi-k2.6", "8xrtx-pro-6000", {"tp_size": 8, "ep_size": 8}),
        ("kimi-k2.6", "8xrtx-pro-6000", {"pp_size": 8}),
        ("deepseek-v3", "8xh200", {"tp_size": 8, "attn_dp_size": 8, "moe_a2a_backend": "deepep"}),
        ("qwen3-30b-a3b", "1xh100", {}),
    ],
)
def test_within_the_window_it_fits_without_being_tight_and_outside_of_it_not(name, cluster, flags):
    model, cluster = load_model(name), parse_cluster(cluster)
    layout = effective(model, cluster, **flags)
    low, high = workable_fractions(model, cluster, layout, WORKLOAD)
    for fraction in (low, (low + high) / 2, high):
        held = fit(model, cluster, layout.changed(mem_fraction_static=fraction), WORKLOAD)
        assert isinstance(held, Memory)
        assert not held.is_tight

    def at(fraction):
        return memory(model, cluster, layout.changed(mem_fraction_static=fraction))

    assert at(low).kv_tokens >= WORKLOAD.tokens_per_request > at(low - 0.002).kv_tokens
    assert at(high + 0.002).is_tight


def test_kimi_on_four_cards_has_no_window():
    model, cluster = load_model("kimi-k2.6"), parse_cluster("8xrtx-pro-6000")
    assert workable_fractions(model, cluster, effective(model, cluster, tp_size=4, ep_size=2), WORKLOAD) is None


def test_the_window_can_be_empty_though_the_weights_fit():
    """A 72B model of 8-bit weights whole on each of two cards of 80 GB, as attention data parallelism keeps it."""
    model, cluster = load_model("llama-3.1-70b-instruct-fp8"), parse_cluster("1xh100")
    layout = effective(model, cluster)
    assert workable_fractions(model, cluster, layout, Workload(input_tokens=100_000, output_tokens=1000)) is None


@given(longer=st.integers(1, 100_000), shorter=st.integers(1, 100_000))
def test_longer_requests_never_widen_the_window(longer, shorter):
    model, cluster = load_model("deepseek-v3"), parse_cluster("8xh200")
    layout = effective(model, cluster, tp_size=8)
    lengths = sorted((shorter, longer))
    windows = [
        workable_fractions(model, cluster, layout, Workload(input_tokens=length, output_tokens=2)) for length in lengths
    ]
    assert windows[0] is not None
    assert windows[1] is None or windows[0][0] <= windows[1][0]
