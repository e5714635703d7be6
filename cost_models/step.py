"""Time of one forward pass of a fleet, by cause: what the busiest ranks read, multiply, send and launch.

All arrays have shape (layouts, points). Paths are under `sglang/srt/` of 0.5.23.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.constants import Constants
from cost_models.fleet import Fleet
from cost_models.routing import Floats, experts_on_fullest_rank, tokens_on_fullest_rank

Parts = dict[str, Floats]
"""Seconds by cause; the parts sum to the pass."""

COLLECTIVES = ("attention all-reduce", "MLP all-reduce", "expert exchange", "pipeline hops")
"""The parts that are messages between GPUs."""


@dataclass(frozen=True, slots=True)
class _Pass:
    """tokens: of the whole MoE group. rank_tokens: of one attention rank."""

    fleet: Fleet
    constants: Constants
    tokens: Floats
    rank_tokens: Floats
    is_prefill: bool


def decode_step(fleet: Fleet, running: Floats, c: Constants) -> Parts:
    """One step in which each of `running` requests of a replica gains its next token or tokens.

        step = max(layers + H, m (q layers + H)) + pp step_s + requests + hops
        layers = weights + collectives + KV cache + launches + drafting

    H: LM head, in the last stage. m: micro-batches, `min(pp, running)`; q: share of all layers in the slowest stage.
    A token takes all stages once, or the slowest one, taken to hold the head, as often as there are micro-batches. A
    micro-batch holds `running / pp` requests, and with attention data parallelism each rank is padded to the fullest
    one. KV cache: `R(requests kv_read_bytes / (e BW), tokens core_flop / (f F))`, R as in `_roofline`, e and f the
    reached shares of the datasheet's BW (bytes/s) and F (flop/s). Launches: kernels times seconds each in a captured
    CUDA graph; beyond the largest graph, what Python takes to launch them where the GPU is not the slower of the two.
    Step and schedule: SGLang's overlapped scheduler, `managers/scheduler.py`, and `managers/scheduler_pp_mixin.py`.
    """
    w = fleet.work
    requests = np.ceil(running / w.pp)
    rank_requests = np.ceil(requests / w.attn_dp)
    rank_tokens = rank_requests * w.verified
    this = _Pass(fleet, c, rank_tokens * w.attn_dp, rank_tokens, is_prefill=False)
    parts = _layers(this)
    parts["KV cache"] = _roofline(
        rank_requests * w.kv_read_bytes / (c.kv_bandwidth * w.bandwidth),
        rank_tokens * w.core_flop / (c.attention_flops * w.bf16_peak),
        c.roofline,
    )
    overhead = _overhead(fleet, c)
    captured_s = w.num_kernels * c.kernel_s(w.is_blackwell) * overhead
    # More requests than any captured CUDA graph holds are launched kernel by kernel, while the GPU works.
    eager_s = w.num_kernels * c.eager_kernel_s * overhead
    on_gpu = total_s(parts) + captured_s
    launched_s = captured_s + _roofline(on_gpu, eager_s, c.roofline) - on_gpu
    parts["kernel launches"] = np.where(rank_requests <= w.captured_requests, captured_s, launched_s)
    if np.any(w.draft_steps):
        # Each drafted token passes one more layer and the head.
        a_layer = total_s(parts) / w.num_layers
        parts["drafting"] = w.draft_steps * (a_layer + _head(this) + c.step_s * overhead)
    micro_batches = np.minimum(w.pp, running)
    layers_s, head_s = total_s(parts), _head(this)
    sets_pace = micro_batches * (w.slowest_stage * layers_s + head_s) > layers_s + head_s
    parts = {
        name: seconds * np.where(sets_pace, micro_batches * w.slowest_stage, 1.0) for name, seconds in parts.items()
    }
    parts["LM head"] = head_s * np.where(sets_pace, micro_batches, 1.0)
    # Overlapped scheduling is off with pipeline parallelism, so each stage pays for its own step.
    parts["engine step"] = c.step_s * w.pp * overhead * np.ones_like(running)
    parts["requests"] = c.request_s * np.ceil(running / w.attn_dp) * overhead
    parts["pipeline hops"] = (w.pp - 1) * fleet.sent_s("hop", 2 * rank_tokens * w.row_bytes / w.attn_tp)
    return parts


def prefill_pass(fleet: Fleet, prompts: Floats, c: Constants, *, hidden: float = 0.0) -> Parts:
    """All of `prompts` prompts together, dealt out to the attention-DP ranks, chunk after chunk.

        pass = (1 + (n - 1) / pp) (layers + attention core + launches + LM head + pp step_s + hops)

    n: chunks, see `num_prefill_chunks`; a chunk follows the one before it stage by stage. Attention core: flop of the
    causal half of all pairs of tokens over `f F`, the reached share of the datasheet's bf16 rate (flop/s).

    The engine launches the kernels of a prefill one by one from Python, which takes as long as small prompts need on
    the GPU, or longer. hidden: share of those launches that pass while the GPU still works on something else.
    """
    w = fleet.work
    of_rank = w.input_tokens * np.maximum(1.0, prompts / w.attn_dp)
    num_chunks = num_prefill_chunks(fleet, prompts)  # A last, partial chunk counts for its share of a full one.
    rank_tokens = np.ceil(of_rank / num_chunks / w.prompt_shards)
    tokens = np.ceil(w.input_tokens * prompts / num_chunks)
    this = _Pass(fleet, c, tokens, rank_tokens, is_prefill=True)
    parts = _layers(this)
    core_flop = w.prefill_core_flop * np.maximum(1.0, prompts / w.attn_dp) / num_chunks / w.prompt_shards
    parts["attention core"] = core_flop / (c.attention_flops * w.bf16_peak)
    on_gpu = total_s(parts)
    # Attention data parallelism synchronises its ranks before each pass, which leaves nothing to hide behind.
    seen = np.where(w.attn_dp > 1, 1.0, 1 - hidden)
    launches = w.num_kernels * c.eager_kernel_s * seen * _overhead(fleet, c)
    parts["kernel launches"] = _roofline(on_gpu, launches, c.roofline) - on_gpu
    # Chunks follow each other through the stages: the first takes them all, each other one stage more.
    passes = 1 + (num_chunks - 1) / w.pp
    parts["LM head"] = _head(_Pass(fleet, c, prompts, np.ones_like(prompts), is_prefill=True)) / num_chunks
    parts["engine step"] = c.step_s * w.pp * _overhead(fleet, c) * np.ones_like(prompts)
    parts["pipeline hops"] = (w.pp - 1) * fleet.sent_s("hop", 2 * rank_tokens * w.row_bytes / w.attn_tp)
    return {name: passes * seconds for name, seconds in parts.items()}


def total_s(parts: Parts) -> Floats:
    """All of a pass."""
    return np.asarray(sum(parts.values()))


def num_prefill_chunks(fleet: Fleet, prompts: Floats) -> Floats:
    """Full forward passes that `prompts` prompts together are worth, at least 1: a rank computes at most a chunk of
    tokens in each.
    """
    w = fleet.work
    tokens = w.input_tokens * np.maximum(1.0, prompts / w.attn_dp)
    return np.where(w.chunk_tokens > 0, np.maximum(1.0, tokens / np.maximum(w.chunk_tokens, 1)), 1.0)


def _layers(this: _Pass) -> Parts:
    """Everything that depends on the number of tokens alone."""
    w, c = this.fleet.work, this.constants
    everyone, own = this.tokens, this.rank_tokens
    shared = np.where(w.shared_is_local, np.ceil(own / w.attn_tp), everyone)
    dense = np.where(w.dense_is_local, own, everyone)
    return {
        "attention weights": _linear(
            this, (w.attention_bytes, w.attention_matrices), w.attention_params, own, w.attention_peak
        ),
        "routed experts": _experts(this),
        "router": w.router_bytes / (c.dense_bandwidth * w.bandwidth) * np.ones_like(everyone),
        "shared experts": _linear(this, (w.shared_bytes, w.shared_matrices), w.shared_params, shared, w.shared_peak),
        "dense layers": _linear(this, (w.dense_bytes, w.dense_matrices), w.dense_params, dense, w.dense_peak),
        **_communication(this),
    }


def _linear(this: _Pass, read: tuple[Floats, Floats], params: Floats, tokens: Floats, peak: Floats) -> Floats:
    """Linear layers: `R((bytes + matrices dense_ramp_bytes) / (e BW), 2 tokens params / (f F))`, R as in `_roofline`.

    read: bytes, and the matrices that they lie in: to begin with each costs the time of `dense_ramp_bytes`.
    params: multiply-accumulates for each token, two flop each. e, f: reached shares of the datasheet's BW (bytes/s) and
    F (flop/s; see `_reached_peak`). The roofline of Williams, Waterman and Patterson (CACM 52(4), 2009), rounded off.
    """
    w, c = this.fleet.work, this.constants
    size_bytes, matrices = read
    return _roofline(
        (size_bytes + matrices * c.dense_ramp_bytes) / (c.dense_bandwidth * w.bandwidth),
        2 * tokens * params / (c.dense_flops * _reached_peak(w.bf16_peak, peak, c)),
        c.roofline,
    )


def _head(this: _Pass) -> Floats:
    w = this.fleet.work
    tokens = np.where(w.head_is_local, this.rank_tokens, this.tokens)
    return _linear(this, (w.head_bytes, np.ones_like(w.head_bytes)), w.head_params, tokens, w.bf16_peak)


def _experts(this: _Pass) -> Floats:
    """Per MoE layer, on the fullest expert-parallel rank: `R(D (b + expert_ramp_bytes) / (e BW), 2 P params / (f F))`.

    D: distinct experts that its tokens touch; P: pairs of a token and an expert; both from `cost_models.routing`.
    b: bytes of one expert's slice; params: of that slice. R, e, f, BW, F as in `_linear`. Turning to the next expert
    costs the time of `expert_ramp_bytes`, however thin its slice.
    """
    w, c = this.fleet.work, this.constants
    tokens = np.ceil(this.tokens / w.moe_dp)
    distinct, variance = this.fleet.routed(tokens, c.popularity)
    num_read = experts_on_fullest_rank(distinct, w.num_experts, w.ep, c.imbalance)
    num_pairs = tokens_on_fullest_rank(tokens, w.num_experts, w.top_k, w.ep, variance=variance, imbalance=c.imbalance)
    layers = np.where(w.expert_bytes > 0, w.num_moe_layers, 0.0)
    return layers * _roofline(
        num_read * (w.expert_bytes + c.expert_ramp_bytes) / (c.expert_bandwidth * w.bandwidth),
        2 * num_pairs * w.expert_params / (c.expert_flops * _reached_peak(w.bf16_peak, w.expert_peak, c)),
        c.roofline,
    )


def _communication(this: _Pass) -> Parts:
    """Seconds of `collectives` times one curve of time over size for each message, layer by layer.

    Sizes are tokens times `row_bytes` (hidden size, two bytes each), of one attention rank after attention, of the
    group around the MLP: attention data parallelism gathers every rank's tokens before a layer's MLP and scatters
    them after it (`layers/dp_attention.py`, `layers/layer_boundary/`). Experts behind an all-to-all backend need no
    all-reduce, but an exchange. Curves: `cost_models.communication`.
    """
    w, fleet, c = this.fleet.work, this.fleet, this.constants
    everyone, own = this.tokens * w.row_bytes, this.rank_tokens * w.row_bytes
    after_mlp = (
        fleet.sent_s("after_mlp", everyone) + fleet.sent_s("gather", everyone) + fleet.sent_s("scatter", everyone)
    )
    exchanged = np.where(w.uses_exchange, w.num_moe_layers, 0.0)
    num_mlp = np.where(w.dense_is_local, 0.0, w.num_dense_layers) + w.num_moe_layers - exchanged
    parts = {
        "attention all-reduce": c.collectives * w.num_layers * fleet.sent_s("after_attention", own),
        "MLP all-reduce": c.collectives * num_mlp * after_mlp,
    }
    parts["expert exchange"] = c.collectives * exchanged * _exchange(this) if np.any(exchanged) else 0.0 * everyone
    return parts


def _exchange(this: _Pass) -> Floats:
    """Dispatch in the experts' own precision, and combine in two bytes.

    In prefill a token is sent once to each rank that it needs, `ep (1 - (1 - 1/ep)^k)` of them for k experts a token
    drawn evenly; in decode once for each expert, k times (DeepEP's normal and low-latency kernels).
    """
    w, fleet = this.fleet.work, this.fleet
    mode = "prefill" if this.is_prefill else "decode"
    copies = w.ep * (1 - (1 - 1 / w.ep) ** w.top_k) if this.is_prefill else w.top_k
    sent = np.ceil(this.rank_tokens / w.attn_tp) * copies * w.row_bytes
    dispatched = sent * w.dispatch_bytes / 2
    return fleet.sent_s(f"{mode}_dispatch", dispatched) + fleet.sent_s(f"{mode}_combine", sent)


def _overhead(fleet: Fleet, c: Constants) -> Floats:
    """Of launches and bookkeeping, relative to SGLang 0.5.6."""
    w = fleet.work
    of_release = np.exp(-c.release_gain * w.release_age)
    return np.where(w.is_vllm, c.vllm_overhead, np.where(w.is_trtllm, c.trtllm_overhead, of_release))


def _reached_peak(bf16: Floats, own: Floats, c: Constants) -> Floats:
    """bf16's rate, raised by a part of the datasheet's factor for the format at hand."""
    return bf16 * (own / bf16) ** c.low_precision


def _roofline(memory_s: Floats, compute_s: Floats, p: float) -> Floats:
    """Memory and compute time joined by a p-norm: p = 1 adds them, a large p takes the longer one."""
    if p == 2:
        return np.sqrt(memory_s * memory_s + compute_s * compute_s)
    return np.asarray((memory_s**p + compute_s**p) ** (1 / p))
