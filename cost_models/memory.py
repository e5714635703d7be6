"""Whether a layout fits, and how many tokens its KV cache holds.

SGLang 0.5.23 measures the free memory after its communicators are up, keeps `1 - mem_fraction_static` of
it for activations and CUDA graphs, loads the weights, and gives what is left of the fraction to the KV
cache (`srt/mem_cache/kv_cache_configurator.py`, `srt/model_executor/pool_configurator.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from cost_models.kv_cache import STATE_POOL_RATIO, kv_bytes_per_token
from cost_models.prediction import DoesNotFit, Memory
from cost_models.weights import attention_tp_size, own_draft, stage_layers, stage_weights
from search_spaces.hardware import Cluster, Gpu
from search_spaces.layout import Layout
from search_spaces.model import Component, Model
from search_spaces.verdict import Stage
from search_spaces.workload import Workload

_GIB = 2**30
_RESERVE_BYTES = 3 * _GIB
"""Card total minus what is free before weights load, fitted to reported KV token counts: DeepSeek-R1 on
8x H200 with tp 8 and fraction 0.82 holds about 509,000 tokens."""
_LEAST_RESERVE_BYTES = 3 * _GIB // 2
"""The smallest plausible reserve. Fitting is judged with it, so that nothing that may work is lost."""
_CONTEXT_BYTES = _GIB // 2
"""What a CUDA context and its communicators take at the very least, before any weight is loaded."""
_CPU_MEM_FRACTION = 0.8
_LARGEST_ACTIVATIONS_BYTES = _GIB * 3 // 4
_GRAPHS_BYTES = _GIB // 4
_LATENT_PREFILL_GRAPHS_BYTES = 1536 * 2**20
"""What the engine reserves for captured prefill with MLA (sglang 0.5.23, arg_groups/memory_hook.py:294)."""
_RUNNERS_WITH_ROUTED_ROWS = frozenset({"auto", "deep_gemm", "marlin", "triton"})
_LARGEST_FRACTION = 0.97
"""Above it no advice to raise the fraction is given: graphs and activations need the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _StageMemory:
    weights: tuple[tuple[Component, int], ...]
    weight_bytes: int
    bytes_per_token: int


def memory(model: Model, cluster: Cluster, layout: Layout) -> Memory:
    """Memory on the fullest GPU under an effective layout.

    A host's CPUs have no reserve, and 0.8 for a fraction that is not given.
    Raises ValueError where `layout` is not effective: a GPU layout without `mem_fraction_static`.
    """
    return _memory(model, cluster.gpu, layout, _reserve_bytes(cluster.gpu, _RESERVE_BYTES))


def fit(model: Model, cluster: Cluster, layout: Layout, workload: Workload) -> Memory | DoesNotFit:
    """The memory of an effective layout, or where and by how much it fails.

    Only what fails under the most favourable assumptions is refused. A layout that fits but whose pool is
    estimated at less than one request of `workload` is returned as holding one.
    """
    expected = memory(model, cluster, layout)
    room = expected.total_bytes - _reserve_bytes(cluster.gpu, _CONTEXT_BYTES)
    if expected.weight_bytes > room:
        return _weights_do_not_fit(layout, expected, room)
    best = _memory(model, cluster.gpu, layout, _reserve_bytes(cluster.gpu, _LEAST_RESERVE_BYTES))
    if best.kv_tokens < workload.tokens_per_request:
        return _pool_does_not_fit(model, cluster.gpu, layout, expected, workload)
    needed = _headroom_need_bytes(model, layout)
    if best.headroom_bytes < needed and not cluster.gpu.is_cpu:
        return _graphs_do_not_fit(layout, best, needed)
    return replace(expected, kv_tokens=max(expected.kv_tokens, workload.tokens_per_request))


def _memory(model: Model, gpu: Gpu, layout: Layout, reserve_bytes: int) -> Memory:
    fraction = layout.mem_fraction_static
    if fraction is None:
        if not gpu.is_cpu:
            raise ValueError(f"memory needs an effective layout; {layout.label} has no mem_fraction_static")
        fraction = _CPU_MEM_FRACTION
    stages = _stages(model, gpu, replace(layout, mem_fraction_static=None))
    usable = gpu.memory_bytes - reserve_bytes
    static = math.floor(usable * fraction)
    fullest = max(stages, key=lambda stage: stage.weight_bytes)
    page = layout.page_size or 1
    tokens = min(max(static - stage.weight_bytes, 0) // stage.bytes_per_token for stage in stages)
    return Memory(
        weights=fullest.weights,
        total_bytes=gpu.memory_bytes,
        reserve_bytes=reserve_bytes,
        mem_fraction_static=fraction,
        kv_pool_bytes=static - fullest.weight_bytes,
        headroom_bytes=usable - static,
        kv_tokens=tokens // page * page,
        kv_replicas=layout.attn_dp_size * layout.dp_size,
    )


@lru_cache(maxsize=4096)
def _stages(model: Model, gpu: Gpu, layout: Layout) -> tuple[_StageMemory, ...]:
    attn_tp = attention_tp_size(model, layout)
    # States of linear attention get their share of the pool first (mem_cache/kv_cache_configurator.py:3354).
    share = 1 + STATE_POOL_RATIO if model.linear_attention is not None else 1
    stages = []
    for stage, layers in enumerate(stage_layers(model.num_layers, layout.pp_size)):
        blocks = model.blocks[layers.start : layers.stop]
        draft = own_draft(model, layout)
        if draft is not None:
            # The engine gives a draft layer's cache to every stage (model_executor/pool_configurator.py:264).
            blocks += (draft,)
        weights = stage_weights(model, layout, stage)
        stages.append(
            _StageMemory(
                weights=tuple(weights.items()),
                weight_bytes=sum(weights.values()),
                bytes_per_token=max(1, round(kv_bytes_per_token(model, gpu, attn_tp, blocks) * share)),
            )
        )
    return tuple(stages)


def _reserve_bytes(gpu: Gpu, on_gpu_bytes: int) -> int:
    return 0 if gpu.is_cpu else on_gpu_bytes


def _headroom_need_bytes(model: Model, layout: Layout) -> int:
    """The least that activations of one prefill chunk and the CUDA graphs can do with, in bytes.

    Deliberately small: hidden states, residual and one gate-up projection of a chunk; one output row for each token
    and expert that it is routed to, where a runner keeps them (layers/moe/moe_runner/triton_utils/fused_moe.py:874);
    graph pools, and for captured prefill of latent attention what the engine itself sets aside for it.
    """
    chunk = max(layout.chunked_prefill_size or 0, 0)
    row = model.hidden_size * model.dtype_bytes
    activations = min(chunk * row * 4, _LARGEST_ACTIVATIONS_BYTES)
    routed = 0
    if layout.moe_a2a_backend == "none" and layout.moe_runner_backend in _RUNNERS_WITH_ROUTED_ROWS:
        routed = chunk * layout.attn_dp_size * model.experts_per_token * row
    captures_prefill = model.mla is not None and layout.cuda_graph_backend_prefill not in {None, "disabled"}
    prefill_graphs = _LATENT_PREFILL_GRAPHS_BYTES if captures_prefill else 0
    return _GRAPHS_BYTES + activations + routed + prefill_graphs


def _weights_do_not_fit(layout: Layout, expected: Memory, room: int) -> DoesNotFit:
    missing = expected.weight_bytes - room
    return DoesNotFit(
        layout=layout,
        stage=Stage.WEIGHTS,
        memory=expected,
        shortfall_bytes=missing,
        message=(
            f"weights must fit on one GPU: {_gib(expected.weight_bytes)} do not fit into "
            f"{_gib(room)} ({_gib(missing)} too much); {_spread(layout, expected.weight_bytes / room)}"
        ),
    )


def _pool_does_not_fit(model: Model, gpu: Gpu, layout: Layout, expected: Memory, workload: Workload) -> DoesNotFit:
    """With figures of the expected reserve, so that what is advised fits for sure."""
    request = workload.tokens_per_request
    # The stage whose pool is smallest is the one that decides.
    stages = _stages(model, gpu, replace(layout, mem_fraction_static=None))
    page = layout.page_size or 1
    tokens = math.ceil(request / page) * page
    needed = max(stage.weight_bytes + tokens * stage.bytes_per_token for stage in stages)
    usable = expected.total_bytes - expected.reserve_bytes
    static = math.floor(usable * expected.mem_fraction_static)
    least = math.ceil(needed / usable * 1000) / 1000
    is_enough = least <= _LARGEST_FRACTION
    fix = (
        f"raise --mem-fraction-static to at least {least:.3f}"
        if is_enough
        else _spread(layout, needed / usable / expected.mem_fraction_static)
    )
    what = (
        "weights leave nothing for the KV cache"
        if expected.kv_pool_bytes <= 0
        else f"the KV cache must hold one request of {request} tokens but holds {expected.kv_tokens}"
    )
    return DoesNotFit(
        layout=layout,
        stage=Stage.KV_POOL,
        memory=expected,
        shortfall_bytes=max(1, needed - static),
        least_fraction=least if is_enough else None,
        message=(
            f"{what}: {expected.mem_fraction_static:g} of {_gib(usable)} is {_gib(static)}, "
            f"weights take {_gib(expected.weight_bytes)}, weights and one request need {_gib(needed)}; {fix}"
        ),
    )


def _graphs_do_not_fit(layout: Layout, best: Memory, needed: int) -> DoesNotFit:
    usable = best.total_bytes - best.reserve_bytes
    most = max(0.0, 1 - needed / usable)
    return DoesNotFit(
        layout=layout,
        stage=Stage.GRAPHS,
        memory=best,
        shortfall_bytes=needed - best.headroom_bytes,
        message=(
            f"activations and CUDA graphs need at least {_gib(needed)} outside the static fraction, but "
            f"{best.mem_fraction_static:g} leaves {_gib(best.headroom_bytes)}; "
            f"lower --mem-fraction-static to at most {math.floor(most * 1000) / 1000:.3f}"
        ),
    )


def _spread(layout: Layout, factor: float) -> str:
    """Advice to divide the weights over more GPUs; `factor` is how many times too large they are."""
    ranks = layout.tp_size * layout.pp_size
    more = 2 ** math.ceil(math.log2(ranks * factor))
    return (
        f"spread each replica over more GPUs: --tp-size times --pp-size of at least {max(more, 2 * ranks)} "
        f"instead of {ranks}"
    )


def _gib(size: float) -> str:
    return f"{size / _GIB:.2f} GiB"
