"""The numbers of the cost model that no datasheet gives: a few fitted ones, and fixed ones beside them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Every constant of the step-time and steady-state formulas that a fit may move.

    Fitted on measured serving points of SGLang (`tests/golden/serving_sweeps.jsonl`, rows marked as used for
    fitting), to the time per output token:
    expert_flops: reached share of the tensor peak, routed experts.
    kernel_s: time of one kernel beyond its bytes and flops.

    Fitted to the time to first token, which differs more between such campaigns than with the layout:
    ttft_floor_s, ttft_queue, ttft_steps: what passes without any work; how much of each concurrent prompt's
        prefill is waited for; decode steps waited for.

    Round values between what is physically possible and what kernel timings show, not fitted:
    expert_bandwidth: reached share of the memory bandwidth, routed experts, for large slices.
    expert_ramp_bytes: bytes that could have been read while a kernel turns to the next expert, so that a
        thin slice of an expert is read at a lower rate than a whole one.
    dense_bandwidth, kv_bandwidth: as `expert_bandwidth`, linear layers and the KV cache.
    dense_flops, attention_flops: as `expert_flops`.
    all_reduce: factor on the measured all-reduce curves.
    step_s: one engine step apart from its kernels.
    request_s: per running request and decode step (sampling, detokenising, batch bookkeeping).
    prefill_interference: share of the other requests' prefill time that a running request waits for.
    ttft_kv_wait: for each request without a place in the KV cache, the share of a request's time it waits.
    popularity: exponent of a Zipf law over experts; 0 is uniform routing.
    imbalance: how far the fullest rank of expert parallelism lies above the mean, as a share of what the
        largest of `ep_size` normal draws would.
    low_precision: exponent with which a datasheet's low-precision speed-up over bf16 arrives.
    roofline, expert_roofline: p of the p-norm that joins memory and compute time.
    """

    expert_flops: float = 0.32
    kernel_s: float = 4.83e-6

    ttft_floor_s: float = 0.230
    ttft_queue: float = 0.106
    ttft_steps: float = 0.78

    expert_bandwidth: float = 0.95
    expert_ramp_bytes: float = 2e6
    dense_bandwidth: float = 0.8
    kv_bandwidth: float = 0.8
    dense_flops: float = 0.6
    attention_flops: float = 0.35
    all_reduce: float = 1.0
    step_s: float = 0.5e-3
    request_s: float = 20e-6
    prefill_interference: float = 1.0
    ttft_kv_wait: float = 0.9
    popularity: float = 0.8
    imbalance: float = 0.5
    low_precision: float = 0.6
    roofline: float = 2.0
    expert_roofline: float = 1.3


DEFAULT = Constants()
