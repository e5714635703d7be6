"""Which CUDA graphs are captured, and for which sizes (arg_groups/cuda_graph_hook.py of 0.5.23).

Decode graphs hold requests, prefill graphs hold tokens.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from search_spaces.layout import Layout
from search_spaces.sglang.prefill_graphs import captures_context_parallel_prefill, captures_prefill
from search_spaces.sglang.target import Target
from search_spaces.sglang.version_facts import VersionFacts

_DEEPEP_PREFILL_TOKENS = 2048
"""What stands in for the largest prefill graph while it is not known yet (cuda_graph_hook.py:328)."""


LARGEST_LISTED = 2**17
"""Sizes up to here are listed one by one; a multiple of every step, and more than any GPU captures."""

MOST_SIZES = 2**28
"""The engine lists all sizes that it is asked to capture: so many take some 10 GB of its memory."""


def names_prefill_backend(asked: Layout) -> bool:
    """Whether the flags settle the prefill graph, which no incompatibility then overrides."""
    return asked.cuda_graph_backend_prefill is not None or asked.disable_prefill_cuda_graph or asked.dwdp_size > 1


class GraphPlan(NamedTuple):
    """Backends of both phases, and the prefill sizes where they are settled before the chunk is known."""

    decode: str
    prefill: str
    prefill_sizes: tuple[int, ...] | None
    prefill_limit: int | None

    def changes(self) -> dict[str, Any]:
        return {
            "cuda_graph_backend_decode": self.decode,
            "cuda_graph_backend_prefill": self.prefill,
            "cuda_graph_bs_prefill": self.prefill_sizes,
            "cuda_graph_max_bs_prefill": self.prefill_limit,
        }


def graph_plan(layout: Layout, target: Target, facts: VersionFacts) -> GraphPlan:
    """Backends as asked for and as the rest of the flags allows them (cuda_graph_hook.py:387)."""
    is_off = layout.dwdp_size > 1
    mode = layout.disaggregation_mode
    decode = layout.cuda_graph_backend_decode
    if decode is None:
        decode = "disabled" if is_off or layout.disable_decode_cuda_graph or mode == "prefill" else "full"
    sizes, limit = layout.cuda_graph_bs_prefill, layout.cuda_graph_max_bs_prefill
    prefill = layout.cuda_graph_backend_prefill
    if prefill is None:
        cannot = is_off or layout.disable_prefill_cuda_graph or not captures_prefill(layout, target, facts)
        prefill = "disabled" if cannot else facts.prefill_graph
    if prefill == "breakable" and layout.moe_a2a_backend == "deepep" and facts.aligns_deepep_prefill:
        sizes, limit = _aligned_for_deepep(sizes, limit)
    if mode == "decode" and facts.drops_prefill_graphs_on_decode and not names_prefill_backend(layout):
        prefill = "disabled"
    return GraphPlan(decode, prefill, sizes, limit)


def context_parallel_graphs(asked: Layout, layout: Layout, target: Target, facts: VersionFacts) -> dict[str, Any]:
    """Prefill graphs are switched on again where context parallelism turns out to support them (:94)."""
    if names_prefill_backend(asked) or not captures_context_parallel_prefill(layout, facts):
        return {}
    if not captures_prefill(layout, target, facts) or layout.disaggregation_mode == "decode":
        return {"cuda_graph_backend_prefill": "disabled"}
    sizes, limit = layout.cuda_graph_bs_prefill, layout.cuda_graph_max_bs_prefill
    if layout.moe_a2a_backend == "deepep":
        sizes, limit = _aligned_for_deepep(sizes, limit)
    return {
        "cuda_graph_backend_prefill": "breakable",
        "cuda_graph_bs_prefill": sizes,
        "cuda_graph_max_bs_prefill": limit,
    }


def _aligned_for_deepep(sizes: tuple[int, ...] | None, limit: int | None) -> tuple[tuple[int, ...] | None, int | None]:
    """DeepEP hangs on prefill graphs whose size is no multiple of 8 (cuda_graph_hook.py:315)."""
    found = prefill_graph_sizes(min(limit or _DEEPEP_PREFILL_TOKENS, LARGEST_LISTED)) if sizes is None else sizes
    aligned = tuple(sorted({-(-size // 8) * 8 for size in found}))
    if aligned == tuple(sorted(found)) or (sizes is None and (limit or 0) > LARGEST_LISTED):
        return sizes, limit
    return aligned, aligned[-1]


def num_prefill_graphs(max_tokens: int) -> int:
    """How many sizes `prefill_graph_sizes` would list, without listing them."""
    listed = prefill_graph_sizes(min(max_tokens, LARGEST_LISTED))
    return len(listed) + max(0, max_tokens - LARGEST_LISTED) // 512


def num_decode_graphs(effective: Layout) -> int:
    """How many sizes the engine lists for decode; above 512 one every 32 or, with drafts, 16 requests."""
    most = effective.cuda_graph_max_bs_decode or 0
    if effective.cuda_graph_bs_decode is not None or most <= LARGEST_LISTED:
        return len(decode_graph_sizes(effective))
    step = 16 if effective.speculative_algorithm is not None else 32
    return most // (1 if effective.disable_cuda_graph_padding else step)


@cache
def prefill_graph_sizes(max_tokens: int) -> tuple[int, ...]:
    """Token counts captured up to `max_tokens`, which itself is only among them by chance (cuda_graph_hook.py:476)."""
    steps = (
        *range(4, 33, 4),
        *range(48, 257, 16),
        *range(288, 513, 32),
        *range(576, 1025, 64),
        *range(1280, 4097, 256),
        *range(4608, max_tokens + 1, 512),
    )
    return tuple(size for size in steps if size <= max_tokens)


@cache
def _decode_graph_sizes(max_requests: int, *, drafts: bool, pads: bool) -> tuple[int, ...]:
    if max_requests > LARGEST_LISTED:
        return (*_decode_graph_sizes(LARGEST_LISTED, drafts=drafts, pads=pads), max_requests)
    if not pads:
        return tuple(range(1, max_requests + 1)) or (max_requests,)
    if drafts:
        steps = (
            *range(1, 9),
            *range(10, 33, 2),
            *range(40, 65, 4),
            *range(72, 257, 8),
            *range(272, max_requests + 1, 16),
        )
    else:
        steps = (1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, max_requests + 1, 32))
    sizes = tuple(size for size in steps if size <= max_requests)
    return sizes if max_requests in sizes else (*sizes, max_requests)


def decode_graph_sizes(effective: Layout) -> tuple[int, ...]:
    """Batch sizes captured for decode, before those are left out that ranks cannot share (cuda_graph_hook.py:497).

    Of those above `LARGEST_LISTED` the largest alone.
    """
    if effective.cuda_graph_bs_decode is not None:
        return effective.cuda_graph_bs_decode
    return _decode_graph_sizes(
        effective.cuda_graph_max_bs_decode or 0,
        drafts=effective.speculative_algorithm is not None,
        pads=not effective.disable_cuda_graph_padding,
    )
