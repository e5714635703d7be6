"""What attention reads and computes of the tokens before it, for one request on one rank."""

from __future__ import annotations

from typing import NamedTuple

from cost_models.kv_cache import layer_kv_bytes
from search_spaces.hardware import Gpu
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.parts import KvCache


class CoreReads(NamedTuple):
    """Sums over all layers, for one query token.

    size_bytes: KV cache that is read. flop: multiply-adds counted twice, in decode. prefill_flop: the same in
    prefill, where latent attention works on expanded heads.
    """

    size_bytes: float
    flop: float
    prefill_flop: float


def core_reads(model: Model, gpu: Gpu, layout: Layout, attn_tp: int, context_tokens: float) -> CoreReads:
    """One token that attends to `context_tokens` before it.

    Sliding layers see their window, sparse ones what their indexer picks, whose keys are read for all tokens; the
    compressed caches of DeepSeek-V4 hold one row for several tokens. Decode context parallelism divides the tokens.
    """
    heads = model.num_attention_heads / attn_tp
    decode_head_flop, prefill_head_flop = _flop_per_head(model)
    size = seen_layers = picking_flop = 0.0
    for block, count in model.kind_counts:
        if block.kv is None:
            continue
        held = layer_kv_bytes(model, gpu, block.kv, attn_tp, layout.kv_cache_dtype)
        seen = _seen_tokens(model, block.kv, context_tokens) / layout.dcp_size
        seen_layers += count * seen
        size += count * (seen * held.row_bytes + context_tokens * held.index_bytes / layout.dcp_size)
        picking_flop += count * context_tokens / layout.dcp_size * _flop_of_picking(model, gpu, block.kv)
    return CoreReads(
        size_bytes=size,
        flop=seen_layers * heads * decode_head_flop + picking_flop,
        prefill_flop=seen_layers * heads * prefill_head_flop + picking_flop,
    )


def _seen_tokens(model: Model, cache: KvCache, context_tokens: float) -> float:
    """Rows of the cache that one token reads."""
    if cache.is_compressed:
        compressed = context_tokens / cache.compress_ratio if cache.compress_ratio else 0.0
        if model.indexer is not None and cache.index_values:
            compressed = min(compressed, model.indexer.top_k)
        return min(context_tokens, cache.window or context_tokens) + compressed
    seen = min(context_tokens, cache.window) if cache.window else context_tokens
    return min(seen, model.indexer.top_k) if model.indexer is not None and cache.index_values else seen


def _flop_of_picking(model: Model, gpu: Gpu, cache: KvCache) -> float:
    """Of a sparse indexer, for each token that it scores: all its heads on every rank, since its projections are
    replicated (layers/attention/dsa/dsa_indexer.py:344); in FP8, where the card has that, in half the time.
    """
    if model.indexer is None or not cache.index_values:
        return 0.0
    scored = 1 / cache.compress_ratio if cache.compress_ratio else 1.0
    half = 1.0 if gpu.fp8_flop_per_s is None else 0.5
    return 2.0 * model.indexer.num_heads * model.indexer.head_dim * scored * half


def _flop_per_head(model: Model) -> tuple[float, float]:
    """Of one query head for each token that it sees: scores and values; decode, prefill."""
    if model.mla is None:
        flop = 2.0 * (model.head_dim + (model.v_head_dim or model.head_dim))
        return flop, flop
    m = model.mla
    # Decode works on latents, prefill on the expanded heads.
    return (
        2.0 * (2 * m.kv_lora_rank + m.qk_rope_head_dim),
        2.0 * (m.qk_nope_head_dim + m.qk_rope_head_dim + m.v_head_dim),
    )
