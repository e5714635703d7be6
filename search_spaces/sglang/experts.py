"""The experts of a launch: how they are stored, which kernels run them, how they reach their tokens."""

from __future__ import annotations

from search_spaces.model import Component, Scheme
from search_spaces.sglang.rule import Launch

_FUSED_FUNCTIONS = frozenset(
    {
        ("none", "flashinfer_cutlass"),
        ("none", "flashinfer_cutedsl"),
        ("none", "flashinfer_mxfp4"),
        ("none", "flashinfer_trtllm"),
        ("none", "flashinfer_trtllm_routed"),
        ("none", "hpc_ops"),
        ("none", "marlin"),
        ("flashinfer", "flashinfer_cutlass"),
        ("flashinfer", "flashinfer_cutedsl"),
        ("flashinfer", "flashinfer_trtllm"),
        ("flashinfer", "flashinfer_trtllm_routed"),
        ("deepep", "flashinfer_cutedsl"),
        ("flashinfer_megamoe", "flashinfer_megamoe"),
    }
)
"""(all-to-all backend, runner) with a kernel, for the runners that have no other path (layers/moe/moe_runner/)."""

_FUSED_ONLY = frozenset(runner for _, runner in _FUSED_FUNCTIONS)

DEEPEP_CLASS = frozenset({"deepep", "mooncake", "nixl"})

DEEPEP_CAPACITY = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"


def scheme_of_experts(launch: Launch) -> Scheme:
    quantization = launch.model.quantization
    return quantization.scheme if Component.ROUTED in quantization.components else Scheme.NONE


def kind_of_experts(launch: Launch) -> str:
    scheme = scheme_of_experts(launch)
    return "unquantised" if scheme is Scheme.NONE else str(scheme)


def runner_of_experts(launch: Launch) -> str:
    """The runner that the experts' quantisation ends up with."""
    runner = launch.effective.moe_runner_backend
    match scheme_of_experts(launch):
        case Scheme.INT4_GROUP if runner != "flashinfer_trtllm":
            return "marlin"
        case Scheme.NVFP4 if runner == "auto":
            # layers/quantization/modelopt_quant.py:3117
            return "marlin" if 80 <= launch.cluster.gpu.sm < 100 else "flashinfer_trtllm"
        case _:
            return runner


def pair_is_missing(launch: Launch) -> bool:
    runner, scheme = runner_of_experts(launch), scheme_of_experts(launch)
    is_megamoe = launch.effective.moe_a2a_backend == "megamoe"
    if is_megamoe and (scheme is Scheme.NVFP4 or not falls_back_from_megamoe(launch)):
        return False
    if runner == "marlin" and scheme not in (Scheme.INT4_GROUP, Scheme.NVFP4):
        return False
    if runner == "flashinfer_mxfp4" and scheme is not Scheme.MXFP4:
        return False
    return runner in _FUSED_ONLY and (launch.effective.moe_a2a_backend, runner) not in _FUSED_FUNCTIONS


def pads_experts(launch: Launch) -> bool:
    """TensorRT-LLM's kernels round an expert's width up."""
    return launch.effective.moe_runner_backend in ("flashinfer_trtllm", "flashinfer_trtllm_routed")


def falls_back_from_megamoe(launch: Launch) -> bool:
    """Whether `megamoe` is asked for and the experts are none of those it has kernels for.

    DeepSeek's class then runs its plain path (layers/moe/mega_moe.py:163).
    """
    suited = (launch.target.is_sm90 and scheme_of_experts(launch) is Scheme.FP8_BLOCK) or (
        launch.target.is_sm100 and scheme_of_experts(launch) in (Scheme.NVFP4, Scheme.MXFP4)
    )
    return launch.effective.moe_a2a_backend == "megamoe" and not suited
