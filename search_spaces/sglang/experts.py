"""The experts of a launch: how they are stored, which kernels run them, how they reach their tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from search_spaces.model import Component, Scheme
from search_spaces.sglang.rule import Launch, Rule

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

_FUSED_ONLY = frozenset({*(runner for _, runner in _FUSED_FUNCTIONS), "experimental_sgl_trtllm"})

_TRTLLM = frozenset({"experimental_sgl_trtllm", "flashinfer_trtllm"})
"""Two words for one set of weights' layouts (layers/moe/utils.py:133)."""

_MARLIN = frozenset({"experimental_sgl_marlin", "marlin"})
"""Likewise (layers/moe/utils.py:162)."""

_ANY = "auto"

_OF_FP8 = frozenset({*_TRTLLM, "flashinfer_megamoe", "flashinfer_trtllm_routed", "hpc_ops"})

DEEPEP_CLASS = frozenset({"deepep", "mooncake", "nixl"})

DEEPEP_CAPACITY = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"


def scheme_of_experts(launch: Launch) -> Scheme:
    quantization = launch.model.quantization
    return quantization.scheme if Component.ROUTED in quantization.components else Scheme.NONE


def kind_of_experts(launch: Launch) -> str:
    scheme = scheme_of_experts(launch)
    return "unquantised" if scheme is Scheme.NONE else str(scheme)


def runner_of_experts(launch: Launch) -> str:
    """The runner that the experts' quantisation builds, or `auto` where that is one which takes any backend."""
    chooses = _CHOOSERS.get(scheme_of_experts(launch), _runner_of_fp8)
    return chooses(launch, launch.effective.moe_runner_backend)


def _runner_of_unquantised(_: Launch, asked: str) -> str:
    """As in layers/quantization/unquant.py:1173."""
    if asked in _TRTLLM:
        return "flashinfer_trtllm"
    return asked if asked in ("flashinfer_trtllm_routed", "flashinfer_cutlass") else _ANY


def _runner_of_int4(launch: Launch, asked: str) -> str:
    """As in compressed_tensors.py:912: Marlin's, unless Triton's; TensorRT-LLM's kernels need none."""
    is_triton = asked == "triton" or (asked == "auto" and launch.target.is_sm100)
    return _ANY if is_triton or asked in _TRTLLM else "marlin"


def _runner_of_fp8_channels(_: Launch, asked: str) -> str:
    """As in compressed_tensors/schemes/compressed_tensors_w8a8_fp8_moe.py:356."""
    return asked if asked in _TRTLLM or asked == "flashinfer_trtllm_routed" else _ANY


def _runner_of_nvfp4(launch: Launch, asked: str) -> str:
    """As in modelopt_quant.py:3115."""
    if launch.effective.moe_a2a_backend == "megamoe":
        return _ANY
    if asked != "auto":
        return asked
    return "marlin" if 80 <= launch.cluster.gpu.sm < 100 else "flashinfer_trtllm"


def _runner_of_mxfp4(launch: Launch, asked: str) -> str:
    """As in mxfp4.py:1437; in fp8.py:443 for the FP4 experts of a checkpoint that is FP8 otherwise."""
    if launch.model.quantization.method != "fp8":
        is_megamoe = launch.effective.moe_a2a_backend == "megamoe"
        return _ANY if is_megamoe and asked == "flashinfer_mxfp4" else asked
    if asked in _MARLIN:
        return "marlin"
    if asked == "flashinfer_mxfp4":
        return asked if launch.target.is_sm90 or launch.target.is_sm120 else _ANY
    return _runner_of_fp8(launch, asked)


def _runner_of_fp8(launch: Launch, asked: str) -> str:
    """As in fp8.py:2960, and modelopt_quant.py:1348 for ModelOpt's."""
    if launch.model.quantization.method == "modelopt_fp8":
        return asked if asked == "flashinfer_cutlass" else _ANY
    return asked if asked in _OF_FP8 else _ANY


_CHOOSERS: dict[Scheme, Callable[[Launch, str], str]] = {
    Scheme.NONE: _runner_of_unquantised,
    Scheme.FP8_CHANNEL: _runner_of_fp8_channels,
    Scheme.INT4_GROUP: _runner_of_int4,
    Scheme.NVFP4: _runner_of_nvfp4,
    Scheme.MXFP4: _runner_of_mxfp4,
}


def is_marlin(launch: Launch) -> bool:
    return runner_of_experts(launch) in _MARLIN


def unpacks_nvfp4(launch: Launch) -> bool:
    """Whether a GPU without FP4 arithmetic can serve NVFP4 experts: by Marlin's kernels (modelopt_quant.py:2377)."""
    runner = launch.effective.moe_runner_backend
    return runner in _MARLIN or (runner == "auto" and 80 <= launch.cluster.gpu.sm < 100)


def pair_is_missing(launch: Launch) -> bool:
    runner = runner_of_experts(launch)
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


_FUSING_DEEPSEEK = frozenset({"DeepseekV3ForCausalLM", "GlmMoeDsaForCausalLM"})
_FUSING_OTHERS = frozenset({"Glm4MoeForCausalLM", "MiniMaxM3SparseForConditionalGeneration"})


def fuses_shared_experts(launch: Launch) -> bool:
    """Whether the shared expert is one more routed one, and so divided as those are.

    As in models/deepseek_v2.py:3325, glm4_moe.py:1012 and minimax_m3.py:2023.
    """
    run, model = launch.effective, launch.model
    quantised = model.quantization.components
    differ = (Component.ROUTED in quantised) != (Component.SHARED in quantised)
    if run.disable_shared_experts_fusion or run.ep_size != 1 or run.moe_a2a_backend == "deepep" or differ:
        return False
    if model.architecture in _FUSING_OTHERS:
        return True
    overlaps = run.enable_two_batch_overlap or run.enable_single_batch_overlap
    fits = model.num_experts == 256 and scheme_of_experts(launch) is not Scheme.INT4_GROUP
    unpacks = scheme_of_experts(launch) is Scheme.NVFP4 and launch.target.is_sm90 and run.moe_runner_backend in _MARLIN
    return model.architecture in _FUSING_DEEPSEEK and fits and not overlaps and not unpacks


def of_experts(*rules: Rule) -> tuple[Rule, ...]:
    """The rules, for models that have experts."""
    return tuple(replace(rule, broken=_with_experts(rule.broken)) for rule in rules)


def _with_experts(broken: Callable[[Launch], bool]) -> Callable[[Launch], bool]:
    return lambda launch: launch.model.is_moe and broken(launch)
