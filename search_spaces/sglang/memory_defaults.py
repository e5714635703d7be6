"""Sizes that the engine chooses by the GPU's memory (sglang 0.5.23, arg_groups/memory_hook.py:54-402).

All arithmetic is in MiB, as in the engine, so that its rounding comes out the same.
"""

from __future__ import annotations

from typing import NamedTuple

from search_spaces.layout import Layout
from search_spaces.sglang.target import Target


class _Tier(NamedTuple):
    """Cards below `limit_mib`: prefill chunk, and decode-graph batch limit for tp_size < 4 and above."""

    limit_mib: float
    chunk: int
    narrow_graph: int
    wide_graph: int


_TIERS = (
    _Tier(20 * 1024, 2048, 8, 8),
    _Tier(35 * 1024, 4096, 48, 160),
    _Tier(60 * 1024, 4096, 32, 160),
    _Tier(160 * 1024, 8192, 256, 512),
    _Tier(float("inf"), 16384, 512, 512),
)
_UNKNOWN_MEMORY = _Tier(0, 4096, 160, 160)

_CPU_GRAPH_MAX_BS = 32
"""On CPUs `--torch-compile-max-bs` (32) takes the place of the decode graph's limit."""

_CPU_MEM_FRACTION = 0.95
_MAX_PREFILL_TOKENS = 16384
_FLOOR_FROM_MIB = 60 * 1024

_KIMI_VISION_FACTOR = 0.95 * (1 - 0.1 * (27 * 1152**2 / (24 * 1024**2) - 1))
"""`adjust_mem_fraction_for_vlm` (memory_hook.py:405) for Kimi's 27-layer, 1152-wide vision tower."""


def default_chunked_prefill_size(target: Target) -> int:
    """Tokens of one prefill chunk, before attention data parallelism divides it."""
    return _tier(target).chunk


def default_decode_graph_max_bs(target: Target, layout: Layout) -> int:
    """Largest decode batch that is captured as a CUDA graph."""
    if target.gpu.is_cpu:
        return _CPU_GRAPH_MAX_BS
    tier = _tier(target)
    limit = tier.narrow_graph if layout.tp_size < 4 else tier.wide_graph
    return limit if layout.max_running_requests is None else min(limit, layout.max_running_requests)


def default_mem_fraction_static(target: Target, layout: Layout, *, has_prefill_graph: bool) -> float:
    """`--mem-fraction-static` where none is given; can be negative, the engine does not clamp it.

    layout: with its chunk (not yet divided by attention data parallelism) and decode-graph limit set.
    """
    capacity = target.capacity_mib
    if capacity is None:
        return _CPU_MEM_FRACTION
    chunk = layout.chunked_prefill_size or 0
    graph_bs = layout.cuda_graph_max_bs_decode or 0
    activation_tokens = max(chunk if chunk > 0 else _MAX_PREFILL_TOKENS, 2048)
    reserved = 512 + 1.5 * activation_tokens + layout.tp_size * layout.pp_size / 8 * 1024
    reserved += 2 * graph_bs
    if layout.attn_dp_size > 1:
        reserved += graph_bs * layout.attn_dp_size * (4.5 if graph_bs > 300 else 3)
    uses_deepep = layout.moe_a2a_backend == "deepep"
    if has_prefill_graph:
        reserved += 1536 if target.model.mla else 8 * _num_prefill_graphs(chunk, aligned_to_8=uses_deepep)
        reserved += 1024 if uses_deepep else 0
    if capacity > _FLOOR_FROM_MIB:
        reserved = max(reserved, 10 * 1024)
    reserved += 2048 if uses_deepep else 0
    fraction = round((capacity - reserved) / capacity, 3)
    return fraction * _KIMI_VISION_FACTOR if target.is_multimodal else fraction


def decode_graph_batch_sizes(max_bs: int) -> tuple[int, ...]:
    """Batch sizes captured up to `max_bs` (arg_groups/cuda_graph_hook.py:497, without speculation)."""
    steps = (1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, max_bs + 1, 32))
    sizes = tuple(size for size in steps if size <= max_bs)
    return sizes if max_bs in sizes else (*sizes, max_bs)


def _num_prefill_graphs(chunk: int, *, aligned_to_8: bool) -> int:
    """How many token counts prefill captures (cuda_graph_hook.py:476).

    With DeepEP the list is fixed before the chunk is known, up to 2048 tokens in multiples of 8 (:315).
    """
    max_tokens = 2048 if aligned_to_8 else chunk
    steps = (
        *range(4, 33, 4),
        *range(48, 257, 16),
        *range(288, 513, 32),
        *range(576, 1025, 64),
        *range(1280, 4097, 256),
        *range(4608, max_tokens + 1, 512),
    )
    sizes = {size for size in steps if size <= max_tokens}
    return len({-(-size // 8) * 8 for size in sizes} if aligned_to_8 else sizes)


def _tier(target: Target) -> _Tier:
    capacity = target.capacity_mib
    if capacity is None:
        return _UNKNOWN_MEMORY
    return next(tier for tier in _TIERS if capacity < tier.limit_mib)
