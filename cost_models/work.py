"""What the busiest rank of a layout reads, multiplies, sends and launches: the numbers that step times follow from.

Paths are under `sglang/srt/` of 0.5.23.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from cost_models.attention_core import core_reads
from cost_models.expert_weights import experts_per_rank
from cost_models.kernels import captured_requests, num_kernels, num_matrices
from cost_models.kv_cache import state_bytes_per_request
from cost_models.rates import FP4, FP8, peak_of, scheme_of
from cost_models.routing import Floats
from cost_models.setting import Client, ServingEngine, Setting
from cost_models.weights import attention_tp_size, layer_weights, lm_head_bytes
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.model import Component, Model
from search_spaces.placement import shared_experts_are_whole
from search_spaces.sglang.speculation import needs_draft
from search_spaces.workload import Workload

Number = TypeVar("Number", float, Floats)

_ACTIVATION_BYTES = 2
_AGE_ZERO = 6
"""SGLang 0.5.6, in the middle of the measured releases: the one that launch times are stated of."""
OLDEST_MEASURED = 5
NEWEST_MEASURED = 10
"""The first and the last SGLang 0.5.N of which points with a time per token are bundled."""


class Work(NamedTuple, Generic[Number]):
    """One replica of one layout under one workload; sums over all layers, on the busiest rank of each stage.

    Each is a number, or a column with one for each of many layouts.
    *_bytes: weights that one pass reads. *_params: multiply-accumulates for each token. *_matrices: linear modules
    among them. *_peak: the card's datasheet rate for that part's number format, in flop/s. kv_read_bytes, core_flop:
    of one request's cache in one decode step; prefill_core_flop: of one prompt. expert_*: one expert's slice on the
    rank, one layer. *_is_local: whether the part works on one attention rank's tokens instead of on all of the
    group's. row_bytes: one token's activations. slowest_stage: largest share of all layers in one pipeline stage.
    prompt_shards: ranks that share a prompt's tokens: context parallelism without `--enable-prefill-cp` computes each
    token on every one of them (layers/cp/base.py:279). verified: tokens that a request brings to one decode step;
    accepted: those that it gains. draft_steps: passes of the drafting layer before it. num_kernels: of one pass.
    captured_requests: most of one attention rank whose step is a CUDA graph. most_running: requests that one replica
    runs at once. release_age: see `release_age`.
    """

    replicas: Number
    tp: Number
    pp: Number
    attn_dp: Number
    prompt_shards: Number
    attn_tp: Number
    moe_dp: Number
    ep: Number
    num_layers: Number
    num_moe_layers: Number
    num_dense_layers: Number
    slowest_stage: Number
    bandwidth: Number
    bf16_peak: Number
    is_blackwell: Number
    row_bytes: Number
    attention_bytes: Number
    attention_params: Number
    attention_peak: Number
    attention_matrices: Number
    kv_read_bytes: Number
    core_flop: Number
    prefill_core_flop: Number
    num_experts: Number
    top_k: Number
    expert_bytes: Number
    expert_params: Number
    expert_peak: Number
    router_bytes: Number
    shared_bytes: Number
    shared_matrices: Number
    shared_params: Number
    shared_peak: Number
    shared_is_local: Number
    dense_bytes: Number
    dense_matrices: Number
    dense_params: Number
    dense_peak: Number
    dense_is_local: Number
    head_bytes: Number
    head_params: Number
    head_is_local: Number
    num_kernels: Number
    captured_requests: Number
    chunk_tokens: Number
    uses_exchange: Number
    dispatch_bytes: Number
    verified: Number
    draft_steps: Number
    input_tokens: Number
    output_tokens: Number
    accepted: Number
    most_running: Number
    release_age: Number
    is_vllm: Number
    is_trtllm: Number
    is_inferencex: Number
    is_burst: Number


def work_of(
    model: Model, cluster: Cluster, layout: Layout, workload: Workload, setting: Setting, most_running: int
) -> Work[float]:
    """The work of an effective layout."""
    gpu = cluster.gpu
    attn_tp = attention_tp_size(model, layout)
    held = layer_weights(model, layout)
    num_experts_held = experts_per_rank(model, layout)
    num_dense = model.num_layers - model.num_moe_layers
    shared_is_local = shared_experts_are_whole(model, layout)
    dense_tp = layout.moe_dense_tp_size or layout.tp_size
    context = workload.input_tokens + workload.output_tokens / 2
    core = core_reads(model, gpu, layout, attn_tp, context)
    prompt = core_reads(model, gpu, layout, attn_tp, workload.input_tokens / 2)
    head_bytes = lm_head_bytes(model, layout)
    drafts = needs_draft(layout)
    return Work(
        replicas=layout.dp_size,
        tp=layout.tp_size,
        pp=layout.pp_size,
        attn_dp=layout.attn_dp_size,
        prompt_shards=layout.attn_cp_size if layout.enable_prefill_cp else 1,
        attn_tp=attn_tp,
        moe_dp=layout.moe_dp_size,
        ep=layout.ep_size,
        num_layers=model.num_layers,
        num_moe_layers=model.num_moe_layers,
        num_dense_layers=num_dense,
        slowest_stage=-(-model.num_layers // layout.pp_size) / model.num_layers,
        bandwidth=gpu.memory_bytes_per_s,
        bf16_peak=gpu.bf16_flop_per_s,
        is_blackwell=gpu.sm >= 100,
        row_bytes=model.hidden_size * _ACTIVATION_BYTES,
        attention_bytes=model.num_layers * held.attention + _absorbed_bytes(model, attn_tp),
        attention_params=model.num_layers
        * (model.attention_params_split / attn_tp + model.attention_params_replicated),
        attention_peak=peak_of(model, gpu, Component.ATTENTION),
        attention_matrices=num_matrices(model, Component.ATTENTION),
        kv_read_bytes=core.size_bytes + 2 * state_bytes_per_request(model, attn_tp, model.blocks),
        core_flop=core.flop,
        prefill_core_flop=workload.input_tokens * prompt.prefill_flop,
        num_experts=max(1, model.num_experts),
        top_k=max(1, model.experts_per_token),
        expert_bytes=held.routed / num_experts_held if num_experts_held else 0.0,
        expert_params=model.expert_params / layout.moe_tp_size,
        expert_peak=peak_of(model, gpu, Component.ROUTED),
        router_bytes=model.num_moe_layers * held.router,
        shared_bytes=model.num_moe_layers * held.shared,
        shared_matrices=num_matrices(model, Component.SHARED),
        shared_params=model.num_moe_layers * model.shared_params / (1 if shared_is_local else layout.tp_size),
        shared_peak=peak_of(model, gpu, Component.SHARED),
        shared_is_local=shared_is_local,
        dense_bytes=model.num_mlp_layers * held.dense,
        dense_matrices=num_matrices(model, Component.DENSE),
        dense_params=model.num_mlp_layers * model.dense_params / dense_tp,
        dense_peak=peak_of(model, gpu, Component.DENSE),
        dense_is_local=layout.moe_dense_tp_size == 1,
        head_bytes=head_bytes,
        head_params=head_bytes / model.bytes_per_param(Component.LM_HEAD),
        head_is_local=layout.enable_dp_lm_head,
        num_kernels=num_kernels(model, gpu, layout, setting.engine),
        captured_requests=captured_requests(layout),
        chunk_tokens=max(layout.chunked_prefill_size or 0, 0),
        uses_exchange=layout.moe_a2a_backend != "none",
        dispatch_bytes=1 if scheme_of(model, Component.ROUTED) in FP8 | FP4 else _ACTIVATION_BYTES,
        verified=max(1, layout.speculative_num_draft_tokens or 1) if layout.speculative_algorithm else 1,
        draft_steps=max(1, layout.speculative_num_steps or 1) if drafts else 0,
        input_tokens=workload.input_tokens,
        output_tokens=workload.output_tokens,
        accepted=workload.acceptance_length if layout.speculative_algorithm else 1.0,
        most_running=most_running,
        release_age=release_age(setting),
        is_vllm=setting.engine is ServingEngine.VLLM,
        is_trtllm=setting.engine is ServingEngine.TRTLLM,
        is_inferencex=setting.client is Client.INFERENCEX and setting.engine is ServingEngine.SGLANG,
        is_burst=setting.client is Client.BURST,
    )


def release_age(setting: Setting) -> float:
    """SGLang releases after 0.5.6, within the measured ones: what later ones gained is not known, and not assumed."""
    if setting.engine is not ServingEngine.SGLANG:
        return 0.0
    return float(min(max(setting.patch, OLDEST_MEASURED), NEWEST_MEASURED) - _AGE_ZERO)


def _absorbed_bytes(model: Model, attn_tp: int) -> float:
    """MLA's up-projection is kept a second time, absorbed, in two bytes whatever the checkpoint's format."""
    if model.mla is None:
        return 0.0
    m = model.mla
    absorbed = model.num_attention_heads / attn_tp * m.kv_lora_rank * (m.qk_nope_head_dim + m.v_head_dim)
    return model.num_layers * absorbed * max(0.0, 2 - model.bytes_per_param(Component.ATTENTION))
