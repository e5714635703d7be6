"""What all layouts share that differ in their memory fraction alone: weights, sizes of pools, needs outside them.

Paths are under `sglang/srt/` of 0.5.23.
"""

from __future__ import annotations

import math
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from cost_models.activations import Needs, needs_of
from cost_models.compressed_cache import CompressedPool
from cost_models.exchange_buffers import FIRST_IN_POOL, exchange_bytes
from cost_models.kv_cache import (
    STATE_POOL_RATIO,
    STATE_SLOTS_PER_REQUEST,
    kv_bytes_per_token,
    state_bytes_per_request,
)
from cost_models.reserve import expected_reserve_bytes, least_reserve_bytes
from cost_models.weights import (
    Remembered,
    attention_tp_size,
    own_draft,
    placed_weights,
    placement_key,
    stage_layers,
)
from search_spaces.hardware import Gpu
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.parts import Component
from search_spaces.sglang.target import Target
from search_spaces.sglang.versions import EngineVersion, release_0_5

_FEATURE_CACHE_BYTES = 100 * 2**20
"""A multimodal model's cache of embeddings, kept out of the pool (mem_cache/kv_cache_configurator.py:202)."""
_FEATURE_CACHE_SINCE = release_0_5(18)
_DEFAULT_DEEPSEEK_V4_REQUESTS = 256
_LEAST_REQUESTS, _MOST_REQUESTS = 2048, 4096
"""Bounds of the requests that run at once by default (mem_cache/kv_cache_configurator.py:3123)."""

_shape_key = attrgetter(
    "deepep_mode",
    "kv_cache_dtype",
    "page_size",
    "chunked_prefill_size",
    "max_prefill_tokens",
    "enable_dynamic_chunking",
    "disaggregation_mode",
    "max_running_requests",
    "cuda_graph_backend_decode",
    "cuda_graph_max_bs_decode",
    "cuda_graph_backend_prefill",
    "cuda_graph_bs_prefill",
    "cuda_graph_max_bs_prefill",
    "speculative_num_draft_tokens",
    "disable_radix_cache",
    "dcp_size",
)
"""Besides `placement_key`, all of a layout that what is remembered of it depends on."""


class StageShape(NamedTuple):
    """fixed_bytes: of the pool, whatever its tokens. state_bytes: of linear attention for one request."""

    weight_bytes: int
    bytes_per_token: float
    fixed_bytes: int
    state_bytes: int


class Shape(NamedTuple):
    """All that layouts share which differ in their memory fraction alone."""

    stages: tuple[StageShape, ...]
    weights: tuple[tuple[Component, int], ...]
    scales: tuple[tuple[Component, int], ...]
    fullest_bytes: int
    reserve_bytes: int
    least_reserve_bytes: int
    buffer_bytes: int
    exchange_bytes: int
    needs: Needs


_SHAPES = Remembered()


def shape_of(model: Model, gpu: Gpu, layout: Layout, version: EngineVersion) -> Shape:
    key = (model, gpu.key, gpu.sm, gpu.memory_bytes, version, placement_key(layout), _shape_key(layout))
    known: Shape | None = _SHAPES.get(key)
    if known is None:
        known = _new_shape(model, gpu, layout, version)
        _SHAPES.keep(key, known)
    return known


def _new_shape(model: Model, gpu: Gpu, layout: Layout, version: EngineVersion) -> Shape:
    placed = placed_weights(model, layout, version)
    totals = [sum(round(size.total) for size in held.values()) for held in placed]
    fullest = max(range(len(totals)), key=totals.__getitem__)
    exchanged = 0 if gpu.is_cpu else exchange_bytes(model, layout)
    is_in_pool = layout.moe_a2a_backend in FIRST_IN_POOL
    buffers = exchanged if is_in_pool else 0
    if version >= _FEATURE_CACHE_SINCE and not gpu.is_cpu and Target(model=model, gpu=gpu).is_multimodal:
        buffers += _FEATURE_CACHE_BYTES
    return Shape(
        stages=_stage_shapes(model, gpu, layout, version, totals),
        weights=tuple((part, round(size.total)) for part, size in placed[fullest].items()),
        scales=tuple((part, round(size.scales)) for part, size in placed[fullest].items()),
        fullest_bytes=totals[fullest],
        reserve_bytes=expected_reserve_bytes(gpu, layout),
        least_reserve_bytes=least_reserve_bytes(gpu, layout),
        buffer_bytes=buffers,
        exchange_bytes=0 if is_in_pool else exchanged,
        needs=needs_of(model, gpu, layout),
    )


def _stage_shapes(
    model: Model, gpu: Gpu, layout: Layout, version: EngineVersion, totals: list[int]
) -> tuple[StageShape, ...]:
    drafts = layout.speculative_num_draft_tokens or 1 if layout.speculative_algorithm is not None else 0
    is_compressed = any(block.kv is not None and block.kv.is_compressed for block in model.block_kinds)
    limit = layout.max_running_requests or _DEFAULT_DEEPSEEK_V4_REQUESTS
    compressed = CompressedPool(
        requests=max(1, limit // max(layout.attn_dp_size, 1)),
        chunk_tokens=max(layout.chunked_prefill_size or 0, 0),
        draft_tokens=drafts,
        keeps_prefixes=not layout.disable_radix_cache,
        version=version,
    )
    pools = _pools(
        model,
        gpu,
        layout.pp_size,
        attention_tp_size(model, layout),
        layout.kv_cache_dtype,
        own_draft(model, layout) is not None,
        compressed if is_compressed else CompressedPool(),
    )
    return tuple(StageShape(weight_bytes, *pool) for weight_bytes, pool in zip(totals, pools, strict=True))


@lru_cache(maxsize=1024)
def _pools(
    model: Model,
    gpu: Gpu,
    pp_size: int,
    attn_tp: int,
    dtype: str,
    has_draft_layer: bool,
    compressed: CompressedPool,
) -> tuple[tuple[float, int, int], ...]:
    """Of each stage's pool: bytes of a token, bytes whatever its tokens, and states of a request."""
    # States of linear attention get their share of the pool first (mem_cache/kv_cache_configurator.py:3354).
    share = 1 + STATE_POOL_RATIO if model.linear_attention is not None else 1
    pools = []
    for layers in stage_layers(model.num_layers, pp_size):
        blocks = model.blocks[layers.start : layers.stop]
        if has_draft_layer and model.draft_layer is not None:
            # The engine gives a draft layer's cache to every stage (model_executor/pool_configurator.py:264).
            blocks += (model.draft_layer,)
        size = kv_bytes_per_token(model, gpu, attn_tp, blocks, dtype=dtype, compressed=compressed)
        states = state_bytes_per_request(model, attn_tp, blocks)
        pools.append((max(1.0, size * share), compressed.fixed_bytes(blocks), states))
    return tuple(pools)


def pool_tokens(layout: Layout, shape: Shape, budget: int) -> int:
    """What the smallest of all stages' pools holds (model_executor/pool_configurator.py:637)."""
    fewest = math.inf
    for stage in shape.stages:
        pool = budget - stage.weight_bytes - stage.fixed_bytes
        fewest = min(fewest, max(pool, 0) // stage.bytes_per_token)
    return paged(int(fewest) * max(layout.dcp_size, 1), layout)


def state_share(shape: Shape) -> float:
    """The share of the pool that states of linear attention get (mem_cache/kv_cache_configurator.py:3354)."""
    has_states = any(stage.state_bytes for stage in shape.stages)
    return STATE_POOL_RATIO / (1 + STATE_POOL_RATIO) if has_states else 0.0


def paged(tokens: int, layout: Layout) -> int:
    page = layout.page_size or 1
    return tokens // page * page


def pool_need_bytes(layout: Layout, shape: Shape, tokens: int) -> int:
    """The static memory with which every stage holds its weights and `tokens`."""
    page = layout.page_size or 1
    held = math.ceil(math.ceil(tokens / page) * page / max(layout.dcp_size, 1))
    most = max(stage.weight_bytes + stage.fixed_bytes + held * stage.bytes_per_token for stage in shape.stages)
    return math.ceil(most) + shape.buffer_bytes


def running_requests(model: Model, layout: Layout, shape: Shape, tokens: int, budget: int) -> int:
    """Requests that one pool's scheduler runs at once (mem_cache/kv_cache_configurator.py:3119)."""
    asked = layout.max_running_requests
    if asked is None:
        context = layout.context_length or model.context_length or 1
        most = max(min(int(tokens / context * 512), _MOST_REQUESTS), _LEAST_REQUESTS)
    else:
        most = max(1, asked // max(layout.attn_dp_size, 1))
    most = min(most, tokens // 2)
    for stage in shape.stages:
        if stage.state_bytes:
            states = max(budget - stage.weight_bytes, 0) * state_share(shape)
            slots = 1 if layout.disable_radix_cache else STATE_SLOTS_PER_REQUEST
            most = min(most, int(states // stage.state_bytes) // slots)
    return most
