"""What one token, and one request, keeps in the KV cache of a rank.

Paths are under `sglang/srt/` of 0.5.23; sizes are those of `model_executor/pool_configurator.py`, with the KV cache's
automatic dtype and no speculative draft.
"""

from __future__ import annotations

from collections.abc import Iterable

from search_spaces.hardware import Gpu
from search_spaces.model import Model
from search_spaces.parts import Block, KvCache

SLIDING_POOL_RATIO = 0.8
"""Tokens that a sliding layer's pool holds for each one of a full layer's (`swa_full_tokens_ratio`)."""
_COMPRESSED_SLIDING_POOL_RATIO = 0.1  # arg_groups/model_overrides/deepseek_v4.py:48
STATE_POOL_RATIO = 0.9
"""Bytes for states of linear attention for each byte of KV cache (`mamba_full_memory_ratio`)."""
_CONVOLUTION_BYTES = 2  # configs/mamba_utils.py:62


def kv_bytes_per_token_layer(model: Model, gpu: Gpu, attn_tp: int) -> int:
    """KV cache of one token in one full-attention layer on one rank, in bytes."""
    caches = [block.kv for block in model.block_kinds if block.kv is not None]
    full = [cache for cache in caches if not cache.window] or caches
    return round(max((_layer_bytes(model, gpu, cache, attn_tp) for cache in full), default=0))


def kv_bytes_per_token(model: Model, gpu: Gpu, attn_tp: int, blocks: Iterable[Block]) -> float:
    """KV cache of one token in `blocks` on one rank, in bytes; sliding layers count with their share of tokens."""
    size = 0.0
    for block in blocks:
        if block.kv is not None:
            share = SLIDING_POOL_RATIO if block.kv.window and not block.kv.is_compressed else 1.0
            size += share * _layer_bytes(model, gpu, block.kv, attn_tp)
    return size


def state_bytes_per_request(model: Model, attn_tp: int, blocks: Iterable[Block]) -> int:
    """States of linear attention that one request keeps in `blocks` on one rank, in bytes (configs/mamba_utils.py:116).

    The convolution keeps its last inputs, the recurrence one matrix a value head.
    """
    size = 0
    for block in blocks:
        linear = block.linear_attention
        if linear is not None:
            size += linear.conv_channels // attn_tp * (linear.conv_kernel - 1) * _CONVOLUTION_BYTES
            size += linear.num_value_heads // attn_tp * linear.state_values * model.state_dtype_bytes
    return size


def _layer_bytes(model: Model, gpu: Gpu, cache: KvCache, attn_tp: int) -> float:
    """One token in one layer.

    The dtype is the model's own, but fp8 for sparse attention from compute capability 10 on (raw latents; GLM on
    12.x keeps scales and an unquantised rotary part). DeepSeek's indexer keeps fp8 keys and one fp32 scale per 128 of
    them.
    """
    if cache.is_compressed:
        return _compressed_bytes(cache)
    index = cache.index_values + cache.index_values // 128 * 4 if model.indexer is not None else 0
    if model.mla is not None:
        if model.indexer is None or gpu.sm < 100:
            return cache.values * model.dtype_bytes + index
        if model.architecture == "GlmMoeDsaForCausalLM" and gpu.sm >= 120:
            latent = model.mla.kv_lora_rank
            return latent + latent // 128 * 4 + model.mla.qk_rope_head_dim * 2 + index
        return cache.values + index
    heads = max(1, cache.num_heads // attn_tp)
    return (heads * cache.values + cache.index_values) * model.dtype_bytes


def _compressed_bytes(cache: KvCache) -> float:
    """DeepSeek-V4 (pool_configurator.py:1353): fp8 latents with an unquantised rotary part and 8 bytes of scales, for a
    tenth of all tokens in each layer, and for one in `compress_ratio` of them besides; its indexer's keys likewise.
    """
    row = cache.values + 64 + 8
    size = _COMPRESSED_SLIDING_POOL_RATIO * row
    if cache.compress_ratio:
        size += row / cache.compress_ratio
    if cache.index_values:
        size += (cache.index_values + 4) / cache.compress_ratio
    return size
