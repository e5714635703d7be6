"""Automatic sizes against what SGLang 0.5.23 resolved on the named GPU (executed)."""

from __future__ import annotations

import pytest

from search_spaces.catalogue import load_gpu, load_model
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.sglang.cuda_graphs import decode_graph_sizes, prefill_graph_sizes
from search_spaces.sglang.memory_defaults import (
    default_chunked_prefill_size,
    default_decode_graph_max_bs,
)
from search_spaces.sglang.resolution import resolve
from search_spaces.sglang.target import Target


def resolved(model, gpu, **sizes):
    cluster = Cluster(gpu=load_gpu(gpu), gpus_per_node=8)
    return resolve(Layout(**sizes), load_model(model), cluster)[0]


@pytest.mark.parametrize(
    ("model", "gpu", "sizes", "fraction"),
    [
        ("qwen3-30b-a3b", "h100", {"tp_size": 1}, 0.830),
        ("qwen3-30b-a3b", "h100", {"tp_size": 2}, 0.828),
        ("qwen3-30b-a3b", "h100", {"tp_size": 4}, 0.819),
        ("qwen3-30b-a3b", "h100", {"tp_size": 8}, 0.812),
        ("qwen3-30b-a3b", "h100", {"tp_size": 8, "attn_dp_size": 8}, 0.586),
        (
            "qwen3-30b-a3b",
            "h100",
            {"tp_size": 8, "attn_dp_size": 8, "cuda_graph_max_bs_decode": 300},
            0.729,
        ),
        (
            "qwen3-30b-a3b",
            "h100",
            {"tp_size": 8, "attn_dp_size": 8, "cuda_graph_max_bs_decode": 128},
            0.784,
        ),
        ("deepseek-v3", "h200", {"tp_size": 8}, 0.886),
        ("deepseek-v3", "h200", {"tp_size": 8, "attn_dp_size": 8}, 0.758),
        ("deepseek-v3", "h200", {"tp_size": 8, "attn_dp_size": 8, "moe_a2a_backend": "deepep"}, 0.736),
        ("deepseek-v3", "b200", {"tp_size": 8}, 0.844),
        ("qwen3-235b-a22b", "h100", {"tp_size": 32, "attn_dp_size": 32}, -0.129),
        ("deepseek-v3", "h100", {"tp_size": 32, "attn_dp_size": 32}, -0.143),
        ("kimi-k2.6", "rtx-pro-6000", {"tp_size": 8}, 0.757810361328125),
        ("kimi-k2.6", "rtx-pro-6000", {"tp_size": 8, "attn_dp_size": 8}, 0.5858701953125),
        ("kimi-k2.6", "h200", {"tp_size": 1, "pp_size": 8}, 0.8187626953125),
        ("kimi-k2.6", "b200", {"tp_size": 8, "moe_a2a_backend": "deepep"}, 0.7523519433593749),
    ],
)
def test_the_memory_fraction_is_the_engines_own(model, gpu, sizes, fraction):
    assert resolved(model, gpu, **sizes).mem_fraction_static == pytest.approx(fraction, abs=1e-12)


@pytest.mark.parametrize(
    ("gpu", "chunk", "narrow", "wide"),
    [
        ("rtx-4090", 4096, 48, 160),
        ("rtx-5090", 4096, 48, 160),
        ("l40s", 4096, 32, 160),
        ("h100", 8192, 256, 512),
        ("rtx-pro-6000", 8192, 256, 512),
        ("h200", 8192, 256, 512),
        ("b200", 16384, 512, 512),
        ("cpu", 4096, 32, 32),
    ],
)
def test_chunk_and_graph_limit_follow_the_memory(gpu, chunk, narrow, wide):
    target = Target(model=load_model("qwen3-30b-a3b"), gpu=load_gpu(gpu))
    assert default_chunked_prefill_size(target) == chunk
    assert default_decode_graph_max_bs(target, Layout(tp_size=2)) == narrow
    assert default_decode_graph_max_bs(target, Layout(tp_size=4)) == wide


def test_a_limit_on_requests_limits_the_graphs():
    assert resolved("deepseek-v3", "h200", tp_size=8, max_running_requests=100).cuda_graph_max_bs_decode == 100


def test_captured_batch_sizes_end_at_the_limit():
    assert decode_graph_sizes(Layout(cuda_graph_max_bs_decode=20)) == (1, 2, 4, 8, 12, 16, 20)
    assert decode_graph_sizes(Layout(cuda_graph_max_bs_decode=512))[-3:] == (480, 496, 512)


def test_drafts_capture_every_small_batch():
    drafting = Layout(cuda_graph_max_bs_decode=12, speculative_algorithm="EAGLE")
    assert decode_graph_sizes(drafting) == (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)


def test_sizes_that_are_asked_for_are_those_captured():
    asked = Layout(cuda_graph_bs_decode=(1, 2, 4))
    assert decode_graph_sizes(asked) == (1, 2, 4)
    assert resolved("deepseek-v3", "h200", tp_size=8, cuda_graph_bs_decode=(1, 2, 4)).cuda_graph_max_bs_decode == 4


def test_without_padding_every_batch_size_is_captured():
    assert decode_graph_sizes(Layout(cuda_graph_max_bs_decode=5, disable_cuda_graph_padding=True)) == (1, 2, 3, 4, 5)


def test_prefill_graphs_leave_out_a_limit_between_their_steps():
    assert prefill_graph_sizes(50) == (4, 8, 12, 16, 20, 24, 28, 32, 48)


def test_deepep_captures_prefill_in_multiples_of_eight():
    sizes = resolved("deepseek-v3", "h200", tp_size=8, moe_a2a_backend="deepep").cuda_graph_bs_prefill
    assert sizes is not None
    assert all(size % 8 == 0 for size in sizes)
    assert sizes[-1] == 2048
