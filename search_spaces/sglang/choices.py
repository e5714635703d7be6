"""The words that the engine's MoE options accept (sglang 0.5.23, arg_groups/choices.py)."""

from __future__ import annotations

from search_spaces.sglang.versions import OLDEST, EngineVersion

_A2A_SINCE = {
    "none": OLDEST,
    "deepep": OLDEST,
    "mooncake": OLDEST,
    "nixl": EngineVersion(0, 5, 10),
    "mori": OLDEST,
    "ascend_fuseep": OLDEST,
    "flashinfer": OLDEST,
    "megamoe": EngineVersion(0, 5, 12),
    "deepep_v2": EngineVersion(0, 5, 19),
    "pplx": EngineVersion(0, 5, 17),
    "ascend_tp": EngineVersion(0, 5, 16),
    "flashinfer_megamoe": EngineVersion(0, 5, 20),
}
"""The first version of each all-to-all backend, in the order of the engine's own message."""

MOE_RUNNER_BACKENDS = (
    "auto",
    "deep_gemm",
    "triton",
    "triton_kernel",
    "flashinfer_trtllm",
    "experimental_sgl_trtllm",
    "flashinfer_trtllm_routed",
    "flashinfer_cutlass",
    "flashinfer_mxfp4",
    "flashinfer_cutedsl",
    "flashinfer_megamoe",
    "cutlass",
    "aiter",
    "marlin",
    "humming",
    "experimental_sgl_marlin",
    "lora_cutedsl",
    "lora_triton",
    "lora_marlin",
    "hpc_ops",
    "megamoe",
    "intel_xpu",
)

DEEPEP_MODES = ("auto", "normal", "low_latency")


def moe_a2a_backends(version: EngineVersion) -> tuple[str, ...]:
    """What `--moe-a2a-backend` accepts."""
    return tuple(name for name, since in _A2A_SINCE.items() if since <= version)
