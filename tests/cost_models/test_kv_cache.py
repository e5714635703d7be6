"""What tokens and requests keep, against sglang 0.5.23's own sizes, run with the models' configs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.kv_cache import (
    kv_bytes_per_token,
    layer_kv_bytes,
    state_bytes_per_request,
)
from cost_models.memory import memory
from search_spaces.catalogue import load_gpu, load_model, model_names, parse_cluster
from search_spaces.layout import Layout

H200 = load_gpu("h200")


def full_layer_bytes(model, gpu, attn_tp, dtype="auto"):
    """One token in one full-attention layer on one rank."""
    caches = [block.kv for block in model.block_kinds if block.kv is not None]
    full = [cache for cache in caches if not cache.window] or caches
    return max(sum(layer_kv_bytes(model, gpu, cache, attn_tp, dtype)) for cache in full)


@pytest.mark.parametrize(
    ("name", "attn_tp", "size"),
    [
        # model_executor/pool_configurator.py: _compute_cell_size, and _cell_size of models with sliding windows
        ("qwen3-32b", 4, 65536),
        ("kimi-k2.5", 8, 70272),
        ("deepseek-v32", 8, 78324),
        ("glm-5.2", 8, 92628),
        ("minimax-m3", 8, 45312),
        ("mimo-v2-flash", 8, 25728),
        ("mimo-v2-flash", 4, 45696),
        ("gemma-4-26b-a4b", 2, 92160),
        ("gpt-oss-120b", 4, 16588.8),
        ("step-3.7-flash", 4, 39321.6),
        ("llama-4-scout", 8, 20889.6),
        ("qwen3.5-397b-a17b", 4, 15360),
        ("nemotron-3-super-fp8", 4, 4096),
        ("kimi-k3", 8, 27648),
    ],
)
def test_a_token_takes_what_the_engine_counts_for_it(name, attn_tp, size):
    model = load_model(name)
    assert kv_bytes_per_token(model, H200, attn_tp, model.blocks, dtype="bfloat16") == pytest.approx(size)


@pytest.mark.parametrize(
    ("name", "attn_tp", "size"),
    [
        # configs/mamba_utils.py: mamba_cache_per_req
        ("qwen3.5-397b-a17b", 1, 192061440),
        ("qwen3.5-397b-a17b", 4, 48015360),
        ("qwen3.5-27b", 2, 76972032),
        ("nemotron-3-super-fp8", 8, 21278720),
        ("nemotron-3-super-fp8", 2, 85114880),
        ("kimi-k3", 8, 56171520),
    ],
)
def test_a_request_keeps_the_states_that_the_engine_counts_for_it(name, attn_tp, size):
    model = load_model(name)
    assert state_bytes_per_request(model, attn_tp, model.blocks) == size


def test_states_of_linear_attention_take_their_share_of_the_pool():
    # 0.9 bytes of states for each of KV cache (mamba_full_memory_ratio)
    held = memory(load_model("qwen3.5-35b-a3b"), parse_cluster("1xh200"), Layout(mem_fraction_static=0.8))
    model = load_model("qwen3.5-35b-a3b")
    per_token = kv_bytes_per_token(model, H200, 1, model.blocks)
    assert held.kv_tokens == pytest.approx(held.kv_pool_bytes / 1.9 / per_token, rel=1e-3)


@given(name=st.sampled_from(model_names()), attn_tp=st.sampled_from([1, 2, 4, 8]))
def test_pipeline_stages_together_keep_what_one_stage_keeps(name, attn_tp):
    model = load_model(name)
    half = model.num_layers // 2
    parts = [kv_bytes_per_token(model, H200, attn_tp, some) for some in (model.blocks[:half], model.blocks[half:])]
    assert sum(parts) == pytest.approx(kv_bytes_per_token(model, H200, attn_tp, model.blocks))


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("auto", 1024), ("bfloat16", 1024), ("fp8_e4m3", 512), ("fp8_e5m2", 512), ("mxfp8", 528), ("nvfp4", 288)],
)
def test_a_kv_cache_of_another_type_takes_so_much_less(dtype, size):
    # Two KV heads of 128 on each of two ranks, keys and values; MXFP8 has a scale for 32 numbers, NVFP4 one for 16.
    assert full_layer_bytes(load_model("qwen3-30b-a3b"), H200, 2, dtype=dtype) == size


def test_latents_in_fp8_are_half_as_large():
    model = load_model("kimi-k2.6")
    assert [full_layer_bytes(model, H200, 8, dtype=dtype) for dtype in ("auto", "fp8_e4m3")] == [1152, 576]


def test_sparse_attention_off_tensorrt_keeps_scales_and_an_unquantised_rotary_part():
    # 512 + 4 scales of 4 bytes + 64 in BF16, and 132 of the indexer (mem_cache/kv_cache_configurator.py:3458).
    model = load_model("deepseek-v32")
    assert full_layer_bytes(model, H200, 8, dtype="fp8_e4m3") == 656 + 132


@pytest.mark.parametrize(
    ("name", "is_fp8"),
    [("kimi-k2.6-nvfp4", True), ("deepseek-v3.1-nvfp4", True), ("deepseek-v3-nvfp4", False), ("kimi-k2.6", False)],
)
def test_modelopt_checkpoints_that_ask_for_an_fp8_cache_get_one(name, is_fp8):
    assert full_layer_bytes(load_model(name), H200, 8) == (576 if is_fp8 else 1152)


@given(name=st.sampled_from(model_names()), attn_tp=st.sampled_from([1, 2, 4, 8]))
def test_rows_and_keys_are_never_negative(name, attn_tp):
    model = load_model(name)
    for block in model.block_kinds:
        if block.kv is not None:
            row, keys = layer_kv_bytes(model, H200, block.kv, attn_tp, "auto")
            assert row > 0
            assert keys >= 0
