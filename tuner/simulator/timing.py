"""How long one engine step takes, in simulated seconds.

An event model of its own: it shares facts (`Model`, `Cluster`, `Layout`) with the tuner's cost model, and
nothing else, so that a search against the simulator is not a search against the predictor's own formulas.

What is physics: bytes over bandwidth, flops over peak, latency plus bytes over link for collectives. What
is INVENTED, because nothing published says how large it is, is marked so below; the invented sizes are
chosen so that six published measurements come out: Kimi K2.6 INT4 on eight RTX PRO 6000 over PCIe gives, at
concurrency 1 and at its peak, 26.3 and 808 output tok/s under TP8, 36.9 and 396 under PP8, 65.3 and 961
under TP8 EP8 (the project's opening story, measured on such a machine; the workload is unknown and taken
as 1024 tokens in, 512 out, `--mem-fraction-static 0.9`).
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from search_spaces.hardware import Cluster, LinkKind
from search_spaces.layout import Layout
from search_spaces.model import Component, Model, Scheme
from tuner.simulator.links import Links

# Shares of the datasheet's peak that a kernel reaches.
_BANDWIDTH_SHARE = 0.95
_KV_BANDWIDTH_SHARE = 0.71
_LINEAR_FLOP_SHARE = 0.6
_EXPERT_FLOP_SHARE = 0.35
_ATTENTION_FLOP_SHARE = 0.35

_RAMP_BYTES = 2.2e6
"""Bytes a kernel reads before half of the bandwidth is reached: small slices are read slowly."""

_KERNEL_S = 6.0e-6
_HOST_KERNEL_S = 20e-6
_STEP_S = 1.0e-3
"""Scheduling, sampling and the copy of the results, once a step."""
_REQUEST_S = 41e-6
"""The same for each running request of the busiest scheduler."""

_SLOW_PATH_S = 388e-6
"""INVENTED cause, published size: a step of TP8 takes 22.7 ms longer than one of TP8 EP8 on PCIe, and no
layout term explains it. It is put down to a slow sum over the ranks that share an expert: 388 us a layer
over eight ranks, in proportion for fewer, none where each expert is whole or GPUs talk over NVLink."""
_SLOW_PATH_RANKS = 8

_POPULARITY = 0.95
"""INVENTED: the i-th most popular expert of a layer is chosen in proportion to i^-0.95."""

_EXPERT_SPREAD = 0.46
"""INVENTED: standard deviations by which the fullest EP rank exceeds the mean, per sqrt(2 ln ep)."""
_IMBALANCE = 0.03
_IMBALANCE_HALF_TOKENS = 64.0
"""INVENTED: popular experts make the fullest EP rank slower by 3 % for each doubling of ep, fully so once
a batch is much larger than 64 tokens."""

_BUBBLE_S = 1.65e-3
_BUBBLE_STAGES = 8
"""INVENTED cause, published size: under pipeline parallelism every running request but the first costs 1.65 ms
a step at eight stages (in proportion to the boundaries between them): batches and results that cross the
stages on the CPU leave bubbles."""
_STAGE_SEND_S = 30e-6

_GATHER_SKEW = 0.15
"""INVENTED: attention-DP ranks wait for each other before they gather; 15 % of a collective's time for each
doubling of their number."""

_QUIRK = 0.025
"""INVENTED: each layout is up to 2.5 % faster or slower than its terms say, always by the same amount."""
_RUN_NOISE = 0.007
_STEP_NOISE = 0.01
"""INVENTED: standard deviations of a whole run's pace and of one step's, drawn from the seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLoad:
    """What one attention-DP rank brings to a step.

    decode_context_tokens: KV entries that its decoding requests read, summed.
    prefill_attended_tokens: for each prefilled token the tokens before it, summed.
    requests: all that are under way on this rank, whether or not this step serves them.
    """

    decode_requests: int = 0
    decode_context_tokens: int = 0
    prefill_tokens: int = 0
    prefill_requests: int = 0
    prefill_attended_tokens: float = 0.0
    requests: int = 0

    @property
    def tokens(self) -> int:
        return self.decode_requests + self.prefill_tokens


class StepTimer:
    """Durations of the steps of one engine (one replica)."""

    def __init__(self, model: Model, cluster: Cluster, layout: Layout, *, seed: int) -> None:
        """`layout` is the effective one."""
        self._model = model
        self._layout = layout
        self._gpu = cluster.gpu
        self._links = Links(cluster)
        self._attn_tp = max(layout.attn_tp_size, 1)
        self._moe_tp = max(layout.moe_tp_size, 1)
        popularity = np.arange(1, model.num_experts + 1, dtype=float) ** -_POPULARITY
        self._choice = np.minimum(1.0, model.experts_per_token * popularity / popularity.sum())
        self._experts_s = cache(self._uncached_experts_s)
        identity = _identity(cluster, layout)
        self._noise = random.Random(f"{seed}|{identity}")  # noqa: S311  # repeatable noise, not a secret
        quirk = _QUIRK * (2.0 * _uniform(identity) - 1.0)
        self._pace = (1.0 + quirk) * math.exp(self._noise.gauss(0.0, _RUN_NOISE))
        self._launch_total_s = self._launch_s()

    def step_s(self, loads: Sequence[RankLoad]) -> float:
        """One step in which every rank works through its load, the ranks in lockstep."""
        exact = self._prefill_step_s(loads) if any(r.prefill_tokens for r in loads) else self._decode_step_s(loads)
        return exact * self._pace * math.exp(self._noise.gauss(0.0, _STEP_NOISE))

    def _decode_step_s(self, loads: Sequence[RankLoad]) -> float:
        """One token for every running request.

        A pipeline of pp stages holds up to pp micro-batches: a round takes as long as one of them needs
        through all stages.
        """
        pp = self._layout.pp_size
        busiest = max(r.decode_requests for r in loads)
        micro_batches = min(pp, busiest)
        total = math.ceil(sum(r.decode_requests for r in loads) / micro_batches)
        fullest = math.ceil(busiest / micro_batches)
        context = max(r.decode_context_tokens for r in loads) / micro_batches
        seconds = self._pass_s(total, fullest, rows=total) + self._kv_read_s(context)
        seconds += _STEP_S + _REQUEST_S * busiest
        if pp > 1:
            seconds += (pp - 1) * _STAGE_SEND_S
            seconds += _BUBBLE_S * (busiest - 1) * (pp - 1) / (_BUBBLE_STAGES - 1)
        return seconds

    def _prefill_step_s(self, loads: Sequence[RankLoad]) -> float:
        """Prompt on some ranks, while the others decode.

        A pipeline that is full of other requests is held up for one stage's time, an empty one for all.
        """
        pp = self._layout.pp_size
        total = sum(r.tokens for r in loads)
        fullest = max(r.tokens for r in loads)
        rows = sum(r.decode_requests + r.prefill_requests for r in loads)
        seconds = self._pass_s(total, fullest, rows=rows)
        seconds += max(
            self._kv_read_s(r.decode_context_tokens) + self._prefill_attention_s(r.prefill_attended_tokens)
            for r in loads
        )
        micro_batches = min(pp, max(r.requests for r in loads))
        seconds *= (1.0 + (pp - 1) / micro_batches) / pp
        return seconds + _STEP_S + _REQUEST_S * max(r.decode_requests + r.prefill_requests for r in loads)

    def _launch_s(self) -> float:
        """Launches of the kernels of all layers."""
        m = self._model
        attention = 8 if m.mla is None else 12 if m.indexer is None else 20
        moe = 9 + (3 if m.shared_intermediate_size else 0)
        kernels = m.num_layers * attention + m.num_moe_layers * moe + m.num_dense_layers * 5
        return kernels * (_HOST_KERNEL_S if self._gpu.is_cpu else _KERNEL_S)

    def _pass_s(self, tokens: int, rank_tokens: int, *, rows: int) -> float:
        """All layers once for `tokens` tokens, `rank_tokens` of them on the fullest attention rank.

        rows: tokens for which the vocabulary is scored. Launches hide behind long kernels, not short ones.
        """
        m, layout = self._model, self._layout
        attention = self._linear_s(
            Component.ATTENTION,
            m.attention_params_replicated + m.attention_params_split / self._attn_tp,
            rank_tokens,
            kernels=4,
        )
        dense_ranks = layout.moe_dense_tp_size or layout.tp_size
        dense = self._linear_s(Component.DENSE, m.dense_params / dense_ranks, tokens, kernels=2)
        shared_ranks = 1 if layout.moe_a2a_backend != "none" else layout.tp_size
        shared = self._linear_s(Component.SHARED, m.shared_params / shared_ranks, tokens, kernels=2)
        router = self._linear_s(Component.ROUTER, m.router_params, tokens, kernels=1)
        head = self._linear_s(Component.LM_HEAD, m.embedding_params / layout.tp_size, rows, kernels=1)
        work_s = (
            m.num_layers * attention
            + m.num_moe_layers * (self._experts_s(tokens) + shared + router)
            + m.num_dense_layers * dense
            + head
        )
        exchange_s = (
            m.num_layers * self._attention_exchange_s(rank_tokens)
            + m.num_moe_layers * self._moe_exchange_s(tokens, rank_tokens)
            + m.num_dense_layers * self._links.all_reduce_s(self._activation_bytes(tokens), layout.tp_size)
        )
        return math.hypot(work_s, self._launch_total_s) + exchange_s

    def _uncached_experts_s(self, tokens: int) -> float:
        """Routed experts of one layer on the fullest EP rank.

        `tokens` tokens touch sum over i of 1 - (1 - q_i)^tokens different ones, where q_i is how likely a
        token is to choose expert i.
        """
        m, ep = self._model, self._layout.ep_size
        touched = float(np.sum(1.0 - (1.0 - self._choice) ** tokens))
        mean = touched / ep
        spread = math.sqrt(mean * (1.0 - 1.0 / ep) * (1.0 - touched / max(m.num_experts, 1)))
        fullest = min(mean + _EXPERT_SPREAD * math.sqrt(2.0 * math.log(ep)) * spread, m.num_experts / ep)
        params = m.expert_params / self._moe_tp
        weight_bytes = fullest * params * m.bytes_per_param(Component.ROUTED)
        routed_tokens = tokens * m.experts_per_token / ep
        flop_s = 2.0 * params * routed_tokens / (_EXPERT_FLOP_SHARE * self._flop_per_s(Component.ROUTED))
        imbalance = 1.0 + _IMBALANCE * math.log2(ep) * tokens / (tokens + _IMBALANCE_HALF_TOKENS)
        return math.hypot(self._read_s(weight_bytes, kernels=2), flop_s) * imbalance

    def _attention_exchange_s(self, rank_tokens: int) -> float:
        size = self._activation_bytes(rank_tokens)
        return self._links.all_reduce_s(size, self._attn_tp) + self._links.all_reduce_s(size, self._layout.attn_cp_size)

    def _moe_exchange_s(self, tokens: int, rank_tokens: int) -> float:
        """What ranks tell each other around the experts of one layer."""
        layout = self._layout
        size = self._activation_bytes(tokens)
        if layout.moe_a2a_backend != "none":
            return self._links.all_to_all_s(
                self._activation_bytes(rank_tokens) / self._attn_tp, layout.ep_size, self._model.experts_per_token
            )
        seconds = self._links.all_reduce_s(size, layout.tp_size)
        if layout.attn_dp_size > 1:
            # All rows are gathered before the experts, and summed after them.
            seconds *= 2.0 * (1.0 + _GATHER_SKEW * math.log2(layout.attn_dp_size))
        if self._gpu.link is LinkKind.PCIE:
            seconds += _SLOW_PATH_S * (self._moe_tp - 1) / (_SLOW_PATH_RANKS - 1)
        return seconds

    def _linear_s(self, component: Component, params: float, tokens: int, *, kernels: int) -> float:
        """A linear part of one layer: its weights are read once, or its products take longer."""
        if params == 0 or tokens == 0:
            return 0.0
        read_s = self._read_s(params * self._model.bytes_per_param(component), kernels=kernels)
        flop_s = 2.0 * params * tokens / (_LINEAR_FLOP_SHARE * self._flop_per_s(component))
        return math.hypot(read_s, flop_s)

    def _read_s(self, size_bytes: float, *, kernels: int) -> float:
        return (size_bytes + kernels * _RAMP_BYTES) / (_BANDWIDTH_SHARE * self._gpu.memory_bytes_per_s)

    def _kv_read_s(self, context_tokens: float) -> float:
        m = self._model
        size = context_tokens * m.kv_values_per_token_layer(self._attn_tp) * 2.0 * m.num_layers
        return size / (_KV_BANDWIDTH_SHARE * self._gpu.memory_bytes_per_s)

    def _prefill_attention_s(self, attended_tokens: float) -> float:
        m = self._model
        widths = 2 * m.head_dim if m.mla is None else m.mla.qk_nope_head_dim + m.mla.qk_rope_head_dim + m.mla.v_head_dim
        heads = max(1, m.num_attention_heads // self._attn_tp)
        flops = 2.0 * heads * widths * attended_tokens * m.num_layers / self._layout.attn_cp_size
        return flops / (_ATTENTION_FLOP_SHARE * self._gpu.bf16_flop_per_s)

    def _activation_bytes(self, tokens: int) -> float:
        return 2.0 * tokens * self._model.hidden_size

    def _flop_per_s(self, component: Component) -> float:
        """INT4 weights are multiplied in bf16; FP8 and FP4 at their own rate where the GPU has one."""
        gpu, quantization = self._gpu, self._model.quantization
        if component not in quantization.components:
            return gpu.bf16_flop_per_s
        match quantization.scheme:
            case Scheme.NONE | Scheme.INT4_GROUP:
                return gpu.bf16_flop_per_s
            case Scheme.FP8_BLOCK | Scheme.FP8_CHANNEL | Scheme.FP8_TENSOR | Scheme.MXFP8:
                return gpu.fp8_flop_per_s or gpu.bf16_flop_per_s
            case Scheme.NVFP4 | Scheme.MXFP4:
                return gpu.fp4_flop_per_s or gpu.bf16_flop_per_s


def _identity(cluster: Cluster, layout: Layout) -> str:
    sizes = (
        layout.tp_size,
        layout.pp_size,
        layout.dp_size,
        layout.attn_dp_size,
        layout.attn_cp_size,
        layout.ep_size,
        layout.moe_dp_size,
    )
    return f"{cluster.gpu.key}|{sizes}|{layout.moe_a2a_backend}"


def _uniform(text: str) -> float:
    """A number in [0, 1) that is always the same for `text`."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") / 2**64
