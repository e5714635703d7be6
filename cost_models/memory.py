"""Whether a layout fits, and how many tokens its KV cache holds.

SGLang 0.5.23 measures the free memory after its communicators are up, keeps `1 - mem_fraction_static` of
it for activations and CUDA graphs, loads the weights, and gives what is left of the fraction to the KV
cache (`srt/mem_cache/kv_cache_configurator.py`, `srt/model_executor/pool_configurator.py`).
"""

from __future__ import annotations

import math
from dataclasses import replace

from cost_models.activations import captured_prefill_tokens, chunk_tokens, least_needs_bytes
from cost_models.memory_shape import Shape, paged, pool_need_bytes, pool_tokens, running_requests, shape_of, state_share
from cost_models.memory_types import DoesNotFit, Memory
from cost_models.reserve import CONTEXT_BYTES
from cost_models.shortfalls import graphs_do_not_fit, pool_does_not_fit, weights_do_not_fit
from search_spaces.hardware import Cluster, Gpu
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.sglang.versions import NEWEST, EngineVersion
from search_spaces.workload import Workload

_CPU_MEM_FRACTION = 0.8


def memory(model: Model, cluster: Cluster, layout: Layout, *, version: EngineVersion = NEWEST) -> Memory:
    """Memory on the fullest GPU under an effective layout, as it is expected.

    A host's CPUs have no reserve, and 0.8 for a fraction that is not given.
    Raises ValueError where `layout` is not effective: a GPU layout without `mem_fraction_static`.
    """
    shape = shape_of(model, cluster.gpu, layout, version)
    return _memory(model, cluster.gpu, layout, shape, shape.reserve_bytes)


def fit(
    model: Model, cluster: Cluster, layout: Layout, workload: Workload, *, version: EngineVersion = NEWEST
) -> Memory | DoesNotFit:
    """The memory of an effective layout, or where and by how much it fails.

    Only what fails under the most favourable assumptions is refused. A layout that fits but whose pool is
    estimated at less than one request of `workload` is returned as holding one.
    """
    gpu = cluster.gpu
    shape = shape_of(model, gpu, layout, version)
    expected = _memory(model, gpu, layout, shape, shape.reserve_bytes)
    room = gpu.memory_bytes - (0 if gpu.is_cpu else CONTEXT_BYTES)
    if shape.fullest_bytes > room:
        return weights_do_not_fit(cluster, layout, expected, room)
    best = _memory(model, gpu, layout, shape, shape.least_reserve_bytes)
    if best.kv_tokens < workload.tokens_per_request:
        return pool_does_not_fit(cluster, layout, shape, expected, workload)
    if not gpu.is_cpu:
        needed = _least_need_bytes(model, layout, shape, workload)
        if best.headroom_bytes < needed:
            return graphs_do_not_fit(cluster, layout, shape, best, needed, workload)
    if expected.kv_tokens >= workload.tokens_per_request:
        return expected
    return replace(expected, kv_tokens=workload.tokens_per_request)


def _memory(model: Model, gpu: Gpu, layout: Layout, shape: Shape, reserve_bytes: int) -> Memory:
    fraction = layout.mem_fraction_static
    if fraction is None:
        if not gpu.is_cpu:
            raise ValueError(f"memory needs an effective layout; {layout.label} has no mem_fraction_static")
        fraction = _CPU_MEM_FRACTION
    usable = gpu.memory_bytes - reserve_bytes
    static = math.floor(usable * fraction)
    budget = static - shape.buffer_bytes
    tokens = pool_tokens(layout, shape, budget)
    pool = budget - shape.fullest_bytes
    limit = layout.max_total_tokens
    if limit is not None and tokens >= paged(limit, layout):
        tokens = paged(limit, layout)
        pool = min(pool, pool_need_bytes(layout, shape, tokens) - shape.fullest_bytes - shape.buffer_bytes)
    needs = shape.needs
    return Memory(
        weights=shape.weights,
        scales_bytes=shape.scales,
        total_bytes=gpu.memory_bytes,
        reserve_bytes=reserve_bytes,
        mem_fraction_static=fraction,
        buffer_bytes=shape.buffer_bytes,
        kv_pool_bytes=pool,
        state_bytes=int(max(pool, 0) * state_share(shape)),
        headroom_bytes=usable - static,
        exchange_bytes=shape.exchange_bytes,
        graph_bytes=needs.graphs,
        activation_bytes=needs.activations,
        least_need_bytes=needs.least + shape.exchange_bytes,
        kv_tokens=tokens,
        kv_replicas=layout.attn_dp_size * layout.dp_size,
        max_running_requests=running_requests(model, layout, shape, tokens, budget),
    )


def _least_need_bytes(model: Model, layout: Layout, shape: Shape, workload: Workload) -> int:
    """What the load of `workload`, or the capture of graphs before it, needs outside the fraction at the very least."""
    asked = min(chunk_tokens(layout), workload.input_tokens * workload.concurrencies[-1])
    tokens = max(asked, captured_prefill_tokens(layout))
    return least_needs_bytes(model, layout, tokens) + shape.exchange_bytes
