"""What one token, and one request, keeps in the KV cache of a rank.

Paths are under `sglang/srt/` of 0.5.23; sizes are those of `model_executor/pool_configurator.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cost_models.compressed_cache import ROW_EXTRA_BYTES, CompressedPool
from search_spaces.hardware import Gpu
from search_spaces.model import Model
from search_spaces.parts import Block, KvCache

SLIDING_POOL_RATIO = 0.8
"""Tokens that a sliding layer's pool holds for each one of a full layer's (`swa_full_tokens_ratio`)."""
STATE_POOL_RATIO = 0.9
"""Bytes for states of linear attention for each byte of KV cache (`mamba_full_memory_ratio`)."""
STATE_SLOTS_PER_REQUEST = 3
"""States kept for each running request, those that the prefix cache points at among them
(mem_cache/kv_cache_configurator.py:227); 1 without prefix cache."""
_CONVOLUTION_BYTES = 2  # configs/mamba_utils.py:62

_USUAL = CompressedPool()

_ELEMENT_BYTES = {
    "bf16": 2.0,
    "bfloat16": 2.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "mxfp8": 1 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
    "fp4_e2m1": 0.5 + 1 / 16,
    "fp4_mx_block16": 0.5 + 1 / 16,
}
"""One number of the cache with its share of scales, by `--kv-cache-dtype`; `auto` is the model's own type."""


class LayerKvBytes(NamedTuple):
    """row_bytes: what attention reads of one token in one layer. index_bytes: what its indexer reads."""

    row_bytes: float
    index_bytes: float


def kv_bytes_per_token(
    model: Model,
    gpu: Gpu,
    attn_tp: int,
    blocks: Iterable[Block],
    *,
    dtype: str = "auto",
    compressed: CompressedPool = _USUAL,
) -> float:
    """KV cache of one token in `blocks` on one rank, in bytes; sliding layers count with their share of tokens.

    compressed: what DeepSeek-V4's pool is sized for.
    """
    known: dict[int, float] = {}
    size = 0.0
    for block in blocks:
        if block.kv is None:
            continue
        of_block = known.get(id(block))
        if of_block is None:
            if block.kv.is_compressed:
                of_block = compressed.bytes_per_token(block.kv)
            else:
                of_block = _layer_bytes(model, gpu, block.kv, attn_tp, dtype)
                of_block *= SLIDING_POOL_RATIO if block.kv.window else 1.0
            known[id(block)] = of_block
        size += of_block
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


def _layer_bytes(model: Model, gpu: Gpu, cache: KvCache, attn_tp: int, dtype: str) -> float:
    """One token in one layer, of all that the pool keeps."""
    if cache.is_compressed:
        return _USUAL.bytes_per_token(cache)
    return sum(layer_kv_bytes(model, gpu, cache, attn_tp, dtype))


def layer_kv_bytes(model: Model, gpu: Gpu, cache: KvCache, attn_tp: int, dtype: str) -> LayerKvBytes:
    """One token in one layer on one of `attn_tp` ranks, in bytes; one row of the compressed ones for DeepSeek-V4.

    Sparse attention keeps FP8 of itself from compute capability 10 on: raw latents, but latents with scales and an
    unquantised rotary part off TensorRT-LLM's kernels (kv_cache_configurator.py:3412). DeepSeek's indexer keeps FP8
    keys and one FP32 scale for each 128 of them.
    """
    keys = float(cache.index_values + cache.index_values // 128 * 4)
    if cache.is_compressed:
        return LayerKvBytes(cache.values + ROW_EXTRA_BYTES, keys)
    if model.mla is None:
        heads = max(1, cache.num_heads // attn_tp)
        return LayerKvBytes(heads * cache.values * _element_bytes(model, dtype), cache.index_values * model.dtype_bytes)
    if model.indexer is None:
        return LayerKvBytes(cache.values * _element_bytes(model, dtype), 0.0)
    is_fp8 = gpu.sm >= 100 if dtype == "auto" else dtype.startswith("fp8")
    if not is_fp8:
        return LayerKvBytes(cache.values * model.dtype_bytes, keys)
    is_raw = gpu.sm >= 100 and not (model.architecture == "GlmMoeDsaForCausalLM" and gpu.sm >= 120)
    if is_raw:
        return LayerKvBytes(cache.values, keys)
    latent = model.mla.kv_lora_rank
    return LayerKvBytes(latent + latent // 128 * 4 + model.mla.qk_rope_head_dim * 2, keys)


def _element_bytes(model: Model, dtype: str) -> float:
    if dtype == "auto":
        return 1.0 if model.has_fp8_kv else float(model.dtype_bytes)
    return _ELEMENT_BYTES.get(dtype, float(model.dtype_bytes))
