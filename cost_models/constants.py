"""The numbers of the cost model that no datasheet gives: twelve fitted ones, and fixed ones beside them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Every constant of the step-time and steady-state formulas.

    Fitted (`SPREAD` says how well), by `tuner.fitting` to the bundled measured points that are marked for it
    (`cost_models/measured_sweeps.jsonl`):
    expert_bandwidth: reached share of the memory bandwidth, routed experts, for large slices.
    expert_flops: reached share of the tensor peak, routed experts.
    dense_bandwidth: as `expert_bandwidth`, linear layers.
    kernel_hopper_s, kernel_blackwell_s: one kernel beyond its bytes and flops, inside a CUDA graph; up to Hopper, and
        from Blackwell on.
    request_s: per running request and decode step (sampling, detokenising, batch bookkeeping).
    release_gain: by which share one release of SGLang lowers launches and bookkeeping, 0.5.5 to 0.5.10.
    eager_kernel_s: one kernel launched from Python, as prefill's are.
    eager_hidden: share of those launches that pass beside running decode steps.
    ttft_queue: share of the other running requests' prompts that a new request waits for.
    ttft_steps: decode steps that it waits for.
    inferencex_wait_s: what SGLang's points of the InferenceX campaigns add to the time to first token.

    Round values between what is physically possible and what kernel timings show, not fitted:
    expert_ramp_bytes: bytes that could have been read while a kernel turns to the next expert, so that a
        thin slice of an expert is read at a lower rate than a whole one. dense_ramp_bytes: the same for each matrix of
        the linear layers.
    kv_bandwidth, dense_flops, attention_flops: as above, for the KV cache, linear layers, and attention's core.
    collectives: factor on the curves of collectives.
    step_s: one engine step apart from its kernels and requests.
    ttft_floor_s: HTTP and tokenisation of one request.
    prefill_interference: share of the other requests' prefill time that a running request waits for.
    popularity: exponent of a Zipf law over experts; 0 is uniform routing.
    imbalance: how far the fullest rank of expert parallelism lies above the mean, as a share of what the
        largest of `ep_size` normal draws would.
    low_precision: exponent with which a datasheet's low-precision speed-up over bf16 arrives.
    roofline: p of the p-norm that joins memory and compute time.

    Of other engines, fitted to their own points: what their launches and bookkeeping take, relative to SGLang 0.5.6:
    vllm_overhead, trtllm_overhead.
    """

    expert_bandwidth: float = 0.833
    expert_flops: float = 0.228
    dense_bandwidth: float = 0.661
    kernel_hopper_s: float = 4.67e-6
    kernel_blackwell_s: float = 4.56e-6
    request_s: float = 23.4e-6
    release_gain: float = 0.0471
    eager_kernel_s: float = 41.8e-6
    eager_hidden: float = 0.458
    ttft_queue: float = 0.0649
    ttft_steps: float = 1.02
    inferencex_wait_s: float = 0.216

    expert_ramp_bytes: float = 1e6
    dense_ramp_bytes: float = 0.5e6
    kv_bandwidth: float = 0.75
    dense_flops: float = 0.6
    attention_flops: float = 0.35
    collectives: float = 1.0
    step_s: float = 0.4e-3
    ttft_floor_s: float = 0.01
    prefill_interference: float = 1.0
    popularity: float = 0.8
    imbalance: float = 0.5
    low_precision: float = 0.6
    roofline: float = 2.0

    vllm_overhead: float = 0.832
    trtllm_overhead: float = 0.63

    def kernel_s(self, is_blackwell: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(is_blackwell, self.kernel_blackwell_s, self.kernel_hopper_s)


DEFAULT = Constants()

PRIOR = Constants(
    expert_bandwidth=0.9,
    expert_flops=0.3,
    dense_bandwidth=0.8,
    kernel_hopper_s=4.5e-6,
    kernel_blackwell_s=4.5e-6,
    request_s=25e-6,
    release_gain=0.05,
    eager_kernel_s=55e-6,
    eager_hidden=0.5,
    ttft_queue=0.08,
    ttft_steps=1.0,
    inferencex_wait_s=0.15,
    vllm_overhead=0.75,
    trtllm_overhead=0.6,
)
"""Where the fit starts, and is held near: round values between what is physically possible and what kernel timings,
times to first token with a single request, and the order of the constants of other engines show.
"""

SPREAD = {
    "expert_bandwidth": 0.10,
    "expert_flops": 0.25,
    "dense_bandwidth": 0.41,
    "kernel_hopper_s": 0.12,
    "kernel_blackwell_s": 0.08,
    "request_s": 0.45,
    "release_gain": 0.38,
    "eager_kernel_s": 0.25,
    "eager_hidden": 0.37,
    "ttft_queue": 0.31,
    "ttft_steps": 0.49,
    "inferencex_wait_s": 0.26,
    "vllm_overhead": 0.02,
    "trtllm_overhead": 0.03,
}
"""Of each fitted constant the standard deviation that the fit leaves, as a share of it; one of 0.5 is the prior's own:
the points tell nothing.
"""
