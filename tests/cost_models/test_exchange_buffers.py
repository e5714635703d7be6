"""Buffers of all-to-all backends, against what their libraries compute."""

from __future__ import annotations

import pytest

from cost_models.exchange_buffers import exchange_bytes
from cost_models.memory import memory
from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.layout import Layout

V3 = load_model("deepseek-v3")


def deepep(ep_size, mode):
    return Layout(tp_size=ep_size, ep_size=ep_size, moe_a2a_backend="deepep", deepep_mode=mode)


def test_low_latency_buffers_hold_every_token_at_every_expert_whatever_the_ranks():
    # DeepEP csrc/config.hpp, LowLatencyLayout: 256 experts, 128 tokens, 7168 in BF16 and 56 scales of 4 bytes, 4 times
    expected = 4 * 256 * 128 * (7168 * 2 + 56 * 4)
    assert [exchange_bytes(V3, deepep(ranks, "low_latency")) for ranks in (8, 16, 64)] == [expected] * 3


def test_normal_buffers_grow_with_the_peers_of_a_node_and_then_with_nodes():
    row = 7168 * 2 + 8 + 128 * 16
    assert exchange_bytes(V3, deepep(4, "normal")) == 10 * 4 * 256 * row
    assert exchange_bytes(V3, deepep(8, "normal")) == 10 * 8 * 256 * row
    assert exchange_bytes(V3, deepep(32, "normal")) == 10 * 8 * 288 * row + 2 * 10 * 4 * 128 * row


def test_the_automatic_mode_keeps_both():
    both, normal, low = (exchange_bytes(V3, deepep(8, mode)) for mode in ("auto", "normal", "low_latency"))
    assert both == normal + low


def test_flashinfer_keeps_its_workspace_inside_the_static_fraction():
    """ep_size * tokens * (BF16 out with experts and weights, BF16 back), at least 4096 tokens."""
    layout = Layout(
        tp_size=8,
        ep_size=8,
        attn_dp_size=8,
        moe_a2a_backend="flashinfer",
        mem_fraction_static=0.8,
        chunked_prefill_size=1024,
    )
    size = 8 * 4096 * (7168 * 2 + 8 * 8 + 7168 * 2)
    assert exchange_bytes(V3, layout) == size
    held = memory(V3, parse_cluster("8xb200"), layout)
    assert held.buffer_bytes == size
    assert held.exchange_bytes == 0


@pytest.mark.parametrize(
    "backend", ["deepep", "deepep_v2", "flashinfer", "megamoe", "mooncake", "mori", "nixl", "pplx"]
)
def test_a_single_rank_of_experts_exchanges_nothing(backend):
    spread = Layout(tp_size=8, ep_size=8, moe_a2a_backend=backend, chunked_prefill_size=8192)
    assert exchange_bytes(V3, spread) > 0
    assert exchange_bytes(V3, spread.changed(tp_size=1, ep_size=1)) == 0


def test_without_a_backend_there_are_no_buffers():
    assert exchange_bytes(V3, Layout(tp_size=8, ep_size=8)) == 0
