"""The physical limit of a box: what no layout, kernel or engine can exceed for a model under a load.

One thing in it is assumed and no law of nature: how many experts so many tokens are routed to, by the popularity that
the whole cost model assumes. Requests that all chose the same few experts would read less.
"""

from __future__ import annotations

import numpy as np

from cost_models.attention_core import core_reads
from cost_models.constants import DEFAULT
from cost_models.kv_cache import state_bytes_per_request
from cost_models.prediction import Limit
from cost_models.rates import best_peak
from cost_models.routing import distinct_experts, routing
from cost_models.weights import stage_weights
from search_spaces.hardware import Cluster, Gpu
from search_spaces.layout import Layout
from search_spaces.model import Component, Model
from search_spaces.workload import Workload

_FP4_CACHE_SINCE_SM = 100
_NOT_READ = frozenset({Component.EMBED, Component.VISION, Component.DRAFT, Component.ROUTED})


def limits(model: Model, cluster: Cluster, workload: Workload) -> tuple[Limit, ...]:
    """At each concurrency of `workload`.

    In the time that it takes to give every running request one token, the box must at least read, once and shared out
    evenly over all memories, the weights that are not experts, the experts that so many tokens are routed to, and
    every request's KV cache; and multiply each token with the parameters that are active for it, at the datasheet's
    highest rate, with each request's prompt on top. The longer of the two bounds the rate; nothing is lost to
    kernels, messages or waiting. An acceptance length above 1 reads less often, and multiplies no less.
    """
    gpu = cluster.gpu
    whole = _whole(gpu)
    held = stage_weights(model, whole, 0)
    routed = held[Component.ROUTED]
    always = sum(size for component, size in held.items() if component not in _NOT_READ)
    context = workload.input_tokens + workload.output_tokens / 2
    reads = core_reads(model, gpu, whole, 1, context)
    request_bytes = reads.size_bytes + 2 * state_bytes_per_request(model, 1, model.blocks)
    active = _active_params(model)
    prompt = core_reads(model, gpu, whole, 1, workload.input_tokens / 2)
    token_flop = 2 * active + reads.flop
    prompt_flop = workload.input_tokens * (2 * (active - model.embedding_params) + prompt.prefill_flop)
    flop_per_output = token_flop + prompt_flop / workload.output_tokens
    table = routing(max(1, model.num_experts), max(1, model.experts_per_token), DEFAULT.popularity)
    bandwidth = cluster.num_gpus * gpu.memory_bytes_per_s
    rate = cluster.num_gpus * best_peak(model, gpu)
    found = []
    for concurrency in workload.concurrencies:
        share = float(distinct_experts(table, np.array(float(concurrency)))) / max(1, model.num_experts)
        size = always + share * routed + concurrency * request_bytes
        by_memory = concurrency * workload.acceptance_length / (size / bandwidth)
        by_compute = rate / flop_per_output
        found.append(
            Limit(
                concurrency=concurrency,
                output_tok_per_s=min(by_memory, by_compute),
                bound_by="memory bandwidth" if by_memory <= by_compute else "compute",
            )
        )
    return tuple(found)


def _whole(gpu: Gpu) -> Layout:
    """All of it in one place, with the smallest KV cache that the engine can be asked for on that card."""
    return Layout(kv_cache_dtype="nvfp4" if gpu.sm >= _FP4_CACHE_SINCE_SM else "fp8_e4m3")


def _active_params(model: Model) -> float:
    """Parameters that one token is multiplied with."""
    attention = model.num_layers * (model.attention_params_split + model.attention_params_replicated)
    experts = model.experts_per_token * model.expert_params + model.shared_params + model.router_params
    moe = model.num_moe_layers * experts if model.num_moe_layers else 0.0
    return attention + moe + model.num_mlp_layers * model.dense_params + model.embedding_params
