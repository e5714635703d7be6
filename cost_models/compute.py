"""Time of one forward pass, by cause: what the busiest rank reads, multiplies, sends and launches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cost_models.communication import all_reduce_s, all_to_all_s, hop_s
from cost_models.constants import Constants
from cost_models.kv_cache import kv_bytes_per_token_layer
from cost_models.routing import distinct_experts, experts_on_fullest_rank, tokens_on_fullest_rank
from cost_models.weights import attention_tp_size, experts_per_rank, layer_weights, lm_head_bytes
from search_spaces.hardware import Cluster, Gpu
from search_spaces.layout import Layout
from search_spaces.model import Component, Model, Scheme

_FUSED_KERNEL_GPUS = (100, 103)
_FUSED_SCHEMES = frozenset(
    {Scheme.FP8_BLOCK, Scheme.FP8_CHANNEL, Scheme.FP8_TENSOR, Scheme.MXFP8, Scheme.NVFP4, Scheme.MXFP4}
)
_ACTIVATION_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One replica's busiest rank: its work per layer, and the time of a pass through all layers.

    `*_bytes` and `*_params` are what the rank holds of one layer; `*_flop_per_s` the peaks of its card for
    that part's number format. All of them follow from model, cluster and layout.
    """

    model: Model
    cluster: Cluster
    layout: Layout
    constants: Constants
    attn_tp: int
    attention_bytes: float
    attention_params: float
    attention_flop_per_s: float
    kv_bytes: float
    core_flop_per_token: float
    prefill_flop_per_token: float
    expert_bytes: float
    expert_params: float
    expert_flop_per_s: float
    router_bytes: float
    shared_bytes: float
    shared_params: float
    shared_flop_per_s: float
    dense_bytes: float
    dense_params: float
    dense_flop_per_s: float
    head_bytes: float
    num_kernels: int

    def decode(self, num_requests: int, context_tokens: float) -> Mapping[str, float]:
        """Seconds between two tokens of each of `num_requests` requests, by cause.

        With pipeline parallelism the requests travel as one micro-batch per stage, and a token takes the
        slowest stage as often as there are micro-batches, or all stages once.
        """
        layout, constants = self.layout, self.constants
        pp = layout.pp_size
        tokens = math.ceil(num_requests / pp)
        tokens_per_rank = math.ceil(tokens / layout.attn_dp_size)
        micro_batches = min(pp, num_requests)
        slowest_stage = math.ceil(self.model.num_layers / pp) / self.model.num_layers
        wait = max(1.0, micro_batches * slowest_stage)
        parts = self._layers(tokens, tokens_per_rank, is_prefill=False)
        parts["attention core"] = self._decode_core_s(tokens_per_rank, context_tokens)
        parts = {name: seconds * wait for name, seconds in parts.items()}
        parts["lm head"] = self._head_s(tokens)
        # Overlapped scheduling is off with pipeline parallelism, so each stage pays for its own step.
        parts["engine step"] = constants.step_s * pp
        parts["requests"] = constants.request_s * num_requests
        if pp > 1:
            parts["pipeline hops"] = pp * hop_s(
                self.cluster, 2 * tokens_per_rank * self.model.hidden_size * _ACTIVATION_BYTES / self.attn_tp
            )
        return parts

    def prefill_s(self, num_prompts: int, prompt_tokens: int) -> float:
        """Seconds until `num_prompts` prompts, one on each of as many attention-DP ranks, are processed."""
        chunk = self.layout.chunked_prefill_size or 0
        num_chunks = math.ceil(prompt_tokens / chunk) if chunk > 0 else 1
        chunk_tokens = math.ceil(prompt_tokens / num_chunks)
        parts = self._layers(num_prompts * chunk_tokens, chunk_tokens, is_prefill=True)
        one_chunk = sum(parts.values()) + self._head_s(num_prompts) + self.constants.step_s * self.layout.pp_size
        if self.layout.pp_size > 1:
            sent = 2 * chunk_tokens * self.model.hidden_size * _ACTIVATION_BYTES / self.attn_tp
            one_chunk += self.layout.pp_size * hop_s(self.cluster, sent)
        # Chunks follow each other through the stages: the first takes them all, each other one stage more.
        passes = 1 + (num_chunks - 1) / self.layout.pp_size
        return passes * (one_chunk + self._prefill_core_s(prompt_tokens) / num_chunks)

    def _layers(self, tokens: int, tokens_per_rank: int, *, is_prefill: bool) -> dict[str, float]:
        """Everything that does not depend on the context.

        `tokens` are those of the whole MoE group, `tokens_per_rank` those on each attention rank.
        """
        model, layout, c = self.model, self.layout, self.constants
        num_moe = model.num_moe_layers
        gpu = self.cluster.gpu
        local_tokens = tokens
        if layout.moe_a2a_backend != "none":
            local_tokens = math.ceil(tokens_per_rank / self.attn_tp)  # the shared expert is replicated
        return {
            "attention weights": model.num_layers
            * self._linear_s(self.attention_bytes, self.attention_params, tokens_per_rank, self.attention_flop_per_s),
            "routed experts": num_moe * self._experts_s(tokens) if num_moe else 0.0,
            "router": num_moe * self.router_bytes / (c.dense_bandwidth * gpu.memory_bytes_per_s),
            "shared expert": num_moe
            * self._linear_s(self.shared_bytes, self.shared_params, local_tokens, self.shared_flop_per_s),
            "dense layers": model.num_mlp_layers
            * self._linear_s(self.dense_bytes, self.dense_params, tokens, self.dense_flop_per_s),
            "communication": self._communication_s(tokens, tokens_per_rank, is_prefill=is_prefill),
            "kernel launches": self.num_kernels * c.kernel_s,
        }

    def _linear_s(self, size_bytes: float, params: float, tokens: int, flop_per_s: float) -> float:
        c = self.constants
        return roofline_s(
            size_bytes / (c.dense_bandwidth * self.cluster.gpu.memory_bytes_per_s),
            2 * tokens * params / (c.dense_flops * flop_per_s),
            c.roofline,
        )

    def _experts_s(self, tokens: int) -> float:
        model, layout, c = self.model, self.layout, self.constants
        tokens = math.ceil(tokens / layout.moe_dp_size)
        distinct = distinct_experts(model.num_experts, model.experts_per_token, c.popularity, tokens)
        num_read = experts_on_fullest_rank(distinct, model.num_experts, layout.ep_size, c.imbalance)
        num_pairs = tokens_on_fullest_rank(
            tokens,
            model.num_experts,
            model.experts_per_token,
            layout.ep_size,
            popularity=c.popularity,
            imbalance=c.imbalance,
        )
        # Turning to the next expert costs the time of `expert_ramp_bytes`, however thin its slice.
        return roofline_s(
            num_read
            * (self.expert_bytes + c.expert_ramp_bytes)
            / (c.expert_bandwidth * self.cluster.gpu.memory_bytes_per_s),
            2 * num_pairs * self.expert_params / (c.expert_flops * self.expert_flop_per_s),
            c.expert_roofline,
        )

    def _decode_core_s(self, tokens_per_rank: int, context_tokens: float) -> float:
        model, gpu, c = self.model, self.cluster.gpu, self.constants
        num_sliding = model.num_sliding_layers
        seen_layers = (model.num_layers - num_sliding) * _seen(model, context_tokens)
        seen_layers += num_sliding * min(context_tokens, model.sliding_window)
        size = seen_layers * self.kv_bytes
        if model.indexer is not None:
            size += model.num_layers * context_tokens * (model.indexer.head_dim + 4)
        return roofline_s(
            tokens_per_rank * size / (c.kv_bandwidth * gpu.memory_bytes_per_s),
            tokens_per_rank * seen_layers * self.core_flop_per_token / (c.attention_flops * gpu.bf16_flop_per_s),
            c.roofline,
        )

    def _prefill_core_s(self, prompt_tokens: int) -> float:
        model = self.model
        num_sliding = model.num_sliding_layers
        seen_layers = (model.num_layers - num_sliding) * _seen(model, prompt_tokens / 2)
        seen_layers += num_sliding * min(prompt_tokens / 2, model.sliding_window)
        flop = prompt_tokens * seen_layers * self.prefill_flop_per_token
        return flop / (self.constants.attention_flops * self.cluster.gpu.bf16_flop_per_s)

    def _head_s(self, tokens: int) -> float:
        params = self.head_bytes / self.model.bytes_per_param(Component.LM_HEAD)
        return self._linear_s(self.head_bytes, params, tokens, self.cluster.gpu.bf16_flop_per_s)

    def _communication_s(self, tokens: int, tokens_per_rank: int, *, is_prefill: bool) -> float:
        model, layout, cluster = self.model, self.layout, self.cluster
        row = model.hidden_size * _ACTIVATION_BYTES
        is_custom = not layout.disable_custom_all_reduce

        def reduce_s(num_tokens: int, num_ranks: int) -> float:
            return all_reduce_s(cluster, num_ranks, num_tokens * row, is_custom_allowed=is_custom)

        after_attention = reduce_s(tokens_per_rank, self.attn_tp)
        # Attention data parallelism gathers every rank's tokens and takes its own back.
        after_mlp = reduce_s(tokens, layout.tp_size) * (1 if layout.attn_dp_size == 1 else 2)
        after_dense = 0.0 if layout.moe_dense_tp_size == 1 else after_mlp
        if layout.moe_a2a_backend == "none":
            after_moe = after_mlp
        else:
            after_moe = self._exchange_s(tokens_per_rank, is_prefill=is_prefill)
        return self.constants.all_reduce * (
            model.num_layers * after_attention + model.num_dense_layers * after_dense + model.num_moe_layers * after_moe
        )

    def _exchange_s(self, tokens_per_rank: int, *, is_prefill: bool) -> float:
        """Dispatch in one byte per value where experts are fp8 or fp4, and combine in two.

        In prefill a token is sent once to each rank that it needs, in decode once for each expert.
        """
        model, ep = self.model, self.layout.ep_size
        copies = float(model.experts_per_token)
        if is_prefill:
            copies = ep * (1 - (1 - 1 / ep) ** model.experts_per_token)
        sent = math.ceil(tokens_per_rank / self.attn_tp) * copies * model.hidden_size
        is_low = Component.ROUTED in model.quantization.components and (model.quantization.scheme in _FUSED_SCHEMES)
        dispatch = all_to_all_s(self.cluster, ep, sent * (1 if is_low else _ACTIVATION_BYTES))
        return dispatch + all_to_all_s(self.cluster, ep, sent * _ACTIVATION_BYTES)


def rank_of(model: Model, cluster: Cluster, layout: Layout, constants: Constants) -> Rank:
    """The busiest rank of one replica of an effective layout."""
    gpu = cluster.gpu
    attn_tp = attention_tp_size(model, layout)
    heads = model.num_attention_heads / attn_tp
    held = layer_weights(model, layout)
    num_experts_held = experts_per_rank(model, layout)
    dense_tp = layout.moe_dense_tp_size or layout.tp_size
    shared_tp = layout.tp_size if layout.moe_a2a_backend == "none" else 1

    def peak(component: Component) -> float:
        return _peak_flop_per_s(model, gpu, component, constants)

    if model.mla is None:
        core = prefill = 2 * heads * 2 * model.head_dim
        absorbed_bytes = 0.0
    else:
        m = model.mla
        # Decode works on latents, prefill on the expanded heads.
        core = 2 * heads * (2 * m.kv_lora_rank + m.qk_rope_head_dim)
        prefill = 2 * heads * (m.qk_nope_head_dim + m.qk_rope_head_dim + m.v_head_dim)
        absorbed = heads * m.kv_lora_rank * (m.qk_nope_head_dim + m.v_head_dim)
        # The absorbed up-projection is kept in two bytes whatever the checkpoint's format.
        absorbed_bytes = absorbed * max(0.0, 2 - model.bytes_per_param(Component.ATTENTION))
    kv_bytes = float(kv_bytes_per_token_layer(model, gpu, attn_tp))
    if model.indexer is not None:
        kv_bytes -= model.indexer.head_dim + 4
    return Rank(
        model=model,
        cluster=cluster,
        layout=layout,
        constants=constants,
        attn_tp=attn_tp,
        attention_bytes=held.attention + absorbed_bytes,
        attention_params=model.attention_params_split / attn_tp + model.attention_params_replicated,
        attention_flop_per_s=peak(Component.ATTENTION),
        kv_bytes=kv_bytes,
        core_flop_per_token=core,
        prefill_flop_per_token=prefill,
        expert_bytes=held.routed / num_experts_held if num_experts_held else 0.0,
        expert_params=model.expert_params / layout.moe_tp_size,
        expert_flop_per_s=peak(Component.ROUTED),
        router_bytes=held.router,
        shared_bytes=held.shared,
        shared_params=model.shared_params / shared_tp,
        shared_flop_per_s=peak(Component.SHARED),
        dense_bytes=held.dense,
        dense_params=model.dense_params / dense_tp,
        dense_flop_per_s=peak(Component.DENSE),
        head_bytes=lm_head_bytes(model, layout),
        num_kernels=_num_kernels(model, gpu, layout),
    )


def roofline_s(memory_s: float, compute_s: float, p: float) -> float:
    """Memory and compute time joined by a p-norm: p = 1 adds them, a large p takes the longer one."""
    return float((memory_s**p + compute_s**p) ** (1 / p))


def _seen(model: Model, context_tokens: float) -> float:
    """Tokens that attention reads: at most `top_k` under a sparse indexer."""
    return context_tokens if model.indexer is None else min(context_tokens, model.indexer.top_k)


def _peak_flop_per_s(model: Model, gpu: Gpu, component: Component, constants: Constants) -> float:
    """bf16's rate, raised by a part of the datasheet's factor for the component's own format.

    Formats that the card has no rate for are computed in bf16, as INT4 is everywhere.
    """
    low = None
    if component in model.quantization.components:
        match model.quantization.scheme:
            case Scheme.FP8_BLOCK | Scheme.FP8_CHANNEL | Scheme.FP8_TENSOR | Scheme.MXFP8:
                low = gpu.fp8_flop_per_s
            case Scheme.NVFP4 | Scheme.MXFP4:
                low = gpu.fp4_flop_per_s
            case Scheme.NONE | Scheme.INT4_GROUP:
                pass
    if low is None:
        return gpu.bf16_flop_per_s
    return float(gpu.bf16_flop_per_s * (low / gpu.bf16_flop_per_s) ** constants.low_precision)


def _num_kernels(model: Model, gpu: Gpu, layout: Layout) -> int:
    """Kernels of one pass, counted from the kernel paths of sglang."""
    if model.indexer is not None:
        attention = 20
    elif model.mla is not None:
        attention = 12
    else:
        attention = 8
    is_fused = (
        gpu.sm in _FUSED_KERNEL_GPUS
        and layout.moe_a2a_backend == "none"
        and Component.ROUTED in model.quantization.components
        and model.quantization.scheme in _FUSED_SCHEMES
    )
    moe = (5 if is_fused else 9) + (3 if model.shared_intermediate_size else 0)
    return model.num_layers * attention + model.num_moe_layers * moe + model.num_dense_layers * 5
