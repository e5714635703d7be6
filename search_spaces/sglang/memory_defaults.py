"""Sizes that the engine chooses by the GPU's memory (sglang 0.5.23, arg_groups/memory_hook.py:54-402).

All arithmetic is in MiB, as in the engine, so that its rounding comes out the same.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from search_spaces.layout import Layout
from search_spaces.sglang.cuda_graphs import GraphPlan, num_prefill_graphs
from search_spaces.sglang.speculation import algorithm_of
from search_spaces.sglang.target import Target
from search_spaces.sglang.version_facts import VersionFacts, facts_of
from search_spaces.sglang.versions import NEWEST


class _Tier(NamedTuple):
    """Cards below `limit_mib`: prefill chunk, and decode-graph batch limit for tp_size < 4 and above."""

    limit_mib: float
    chunk: int
    narrow_graph: int
    wide_graph: int


_SMALL_CARD_FROM_MIB = 20 * 1024
_SMALL_CARD_LIMIT_MIB = 35 * 1024
_TIERS = (
    _Tier(20 * 1024, 2048, 8, 8),
    _Tier(60 * 1024, 4096, 32, 160),
    _Tier(160 * 1024, 8192, 256, 512),
    _Tier(float("inf"), 16384, 512, 512),
)
_UNKNOWN_MEMORY = _Tier(0, 4096, 160, 160)

_NEWEST_FACTS = facts_of(NEWEST)

_CPU_GRAPH_MAX_BS = 32
"""On CPUs `--torch-compile-max-bs` (32) takes the place of the decode graph's limit."""

_FLOOR_FROM_MIB = 60 * 1024
_LARGEST_PIPELINE_PREFILL_GRAPH = 8192
_EXPANDING_ARCHITECTURES = frozenset({"Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"})


def sizes_by_memory(layout: Layout, graphs: GraphPlan, target: Target, facts: VersionFacts) -> dict[str, Any]:
    """Chunk, graph limits and memory fraction where the flags leave them open."""
    chunk = layout.chunked_prefill_size
    if chunk is None:
        chunk = default_chunked_prefill_size(target, facts)
    decode = _decode_limit(layout, target, facts)
    prefill = graphs.prefill_limit
    if prefill is None:
        prefill = _prefill_limit(layout, graphs, target, facts, chunk)
    if facts.limits_graph_to_context and layout.context_length is not None:
        prefill = min(prefill, layout.context_length)
    fraction = layout.mem_fraction_static
    if fraction is None:
        fraction = _mem_fraction(layout, graphs, target, facts, chunk=chunk, decode=decode, prefill=prefill)
    return {
        "chunked_prefill_size": chunk,
        "cuda_graph_max_bs_decode": decode,
        "cuda_graph_max_bs_prefill": prefill,
        "mem_fraction_static": fraction,
    }


def default_chunked_prefill_size(target: Target, facts: VersionFacts = _NEWEST_FACTS) -> int:
    """Tokens of one prefill chunk, before attention data parallelism divides it."""
    return _tier(target, facts).chunk


def default_decode_graph_max_bs(target: Target, layout: Layout, facts: VersionFacts = _NEWEST_FACTS) -> int:
    """Largest decode batch that is captured as a CUDA graph."""
    if target.is_cpu:
        return _CPU_GRAPH_MAX_BS
    tier = _tier(target, facts)
    limit = tier.narrow_graph if layout.tp_size < 4 else tier.wide_graph
    requests = layout.max_running_requests
    if requests is None:
        return limit
    if limit < requests <= 512 and facts.expands_vision_graphs and _expands_decode_graphs(layout, target):
        return requests
    return min(limit, requests) if facts.limits_graph_to_requests else limit


def _expands_decode_graphs(layout: Layout, target: Target) -> bool:
    """Qwen3-VL on Hopper cards from 60 GiB (model_overrides/qwen3_vl.py:40)."""
    return (
        target.is_sm90
        and (target.capacity_mib or 0) >= _FLOOR_FROM_MIB
        and target.is_multimodal
        and target.model.architecture in _EXPANDING_ARCHITECTURES
        and layout.cuda_graph_bs_decode is None
    )


def _decode_limit(layout: Layout, target: Target, facts: VersionFacts) -> int:
    if layout.cuda_graph_bs_decode:
        return max(layout.cuda_graph_bs_decode)
    if layout.cuda_graph_max_bs_decode is not None and not target.is_cpu:
        return layout.cuda_graph_max_bs_decode
    return default_decode_graph_max_bs(target, layout, facts)


def _prefill_limit(layout: Layout, graphs: GraphPlan, target: Target, facts: VersionFacts, chunk: int) -> int:
    """Tokens of the largest prefill graph (memory_hook.py:231)."""
    limit = chunk
    if target.is_mla:
        limit = facts.largest_mla_prefill_graph
        if facts.version >= NEWEST:
            limit = min(limit, chunk)
    is_staged = layout.pp_size > 1 and facts.limits_pipeline_graphs
    if is_staged and graphs.prefill == "breakable" and graphs.prefill_sizes is None:
        limit = min(limit, _LARGEST_PIPELINE_PREFILL_GRAPH)
    return limit if layout.max_total_tokens is None else min(limit, layout.max_total_tokens)


def _mem_fraction(
    layout: Layout, graphs: GraphPlan, target: Target, facts: VersionFacts, *, chunk: int, decode: int, prefill: int
) -> float:
    """`--mem-fraction-static` where none is given; can be negative, the engine does not clamp it."""
    capacity = target.capacity_mib
    if capacity is None:
        return facts.cpu_mem_fraction
    mode = layout.disaggregation_mode if facts.sizes_by_role else "null"
    if mode == "decode":
        running = layout.max_running_requests or decode or 1
        tokens = running * (layout.speculative_num_draft_tokens or 1)
    else:
        tokens = chunk if chunk > 0 else layout.max_prefill_tokens
    reserved = 512 + 1.5 * max(tokens, 2048) + layout.tp_size * layout.pp_size / 8 * 1024
    reserved += _graph_reserve(layout, graphs, target, facts, decode=decode, prefill=prefill)
    if capacity > _FLOOR_FROM_MIB:
        reserved = max(reserved, 10 * 1024)
    captures_decode = mode != "prefill" and graphs.decode != "disabled"
    if captures_decode and layout.moe_a2a_backend == "deepep" and facts.sizes_by_role:
        reserved += 2 * 1024
    reserved += _draft_reserve(layout, facts)
    fraction = round((capacity - reserved) / capacity, 3)
    keeps_vision = target.is_multimodal and not (mode == "decode" and facts.keeps_vision_memory_on_decode)
    return fraction * target.vision_factor if keeps_vision else fraction


def _draft_reserve(layout: Layout, facts: VersionFacts) -> int:
    """What a draft model is given (server_args.py:1490 of 0.5.13); nothing since 0.5.14."""
    match algorithm_of(layout):
        case None | "NGRAM":
            return 0
        case "STANDALONE":
            return facts.standalone_reserve_mib
        case _:
            return facts.draft_reserve_mib


def _graph_reserve(
    layout: Layout, graphs: GraphPlan, target: Target, facts: VersionFacts, *, decode: int, prefill: int
) -> float:
    """`reserve_for_graph_mb` (memory_hook.py:346)."""
    reserved = 0.0
    mode = layout.disaggregation_mode if facts.sizes_by_role else "null"
    if mode != "prefill":
        if graphs.decode != "disabled" or not facts.sizes_by_role:
            reserved += decode * 2
        if layout.attn_dp_size > 1:
            reserved += decode * layout.attn_dp_size * (4.5 if decode > 300 else 3)
    if mode != "decode" and graphs.prefill != "disabled":
        if target.is_mla:
            reserved += 1.5 * 1024
        else:
            sizes = graphs.prefill_sizes
            reserved += 8 * (num_prefill_graphs(prefill) if sizes is None else len(sizes))
        if graphs.prefill == "breakable" and layout.moe_a2a_backend == "deepep" and facts.aligns_deepep_prefill:
            reserved += 1024
    return reserved


def _tier(target: Target, facts: VersionFacts) -> _Tier:
    capacity = target.capacity_mib
    if capacity is not None and _SMALL_CARD_FROM_MIB <= capacity < _SMALL_CARD_LIMIT_MIB:
        return _Tier(_SMALL_CARD_LIMIT_MIB, *facts.small_card)
    return _tier_of(capacity)


@cache
def _tier_of(capacity_mib: int | None) -> _Tier:
    if capacity_mib is None:
        return _UNKNOWN_MEMORY
    return next(tier for tier in _TIERS if capacity_mib < tier.limit_mib)
