"""Rules that stop the construction of the experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from search_spaces.architectures.table import ARCHITECTURES
from search_spaces.parts import Scheme
from search_spaces.sglang.experts import (
    DEEPEP_CAPACITY,
    DEEPEP_CLASS,
    kind_of_experts,
    pads_experts,
    pair_is_missing,
    runner_of_experts,
    scheme_of_experts,
)
from search_spaces.sglang.rule import CHOICES, EXPERTS, SIZES, Launch, Rule, says
from search_spaces.sglang.versions import EngineVersion, release_0_5
from search_spaces.verdict import Stage

_SIZED = frozenset({CHOICES, SIZES})

_WITH_EXPERTS = frozenset({CHOICES, SIZES, EXPERTS})

_PAIRS_CHECKED_SINCE = EngineVersion(0, 5, 13)
"""Servers of INT4 experts with `--moe-a2a-backend flashinfer` are known to have started before."""

_MXFP4_RUNNERS = frozenset({"auto", "deep_gemm", "flashinfer_mxfp4", "humming", "marlin", "triton", "triton_kernel"})


def _expert_width(launch: Launch) -> int:
    return launch.model.moe_intermediate_size // launch.effective.moe_tp_size


def _num_redundant(launch: Launch) -> int:
    """Redundant experts in the engine's books; some classes keep none."""
    if not ARCHITECTURES[launch.model.architecture].keeps_expert_books:
        return 0
    return launch.asked.ep_num_redundant_experts


def _expert_splits(launch: Launch) -> int:
    """What the model's class compares with its number of experts."""
    match ARCHITECTURES[launch.model.architecture].compares_experts_with:
        case "tp":
            return launch.effective.tp_size
        case "moe_tp":
            return launch.effective.moe_tp_size
        case "nothing":
            return 0


def _of_experts(*rules: Rule) -> tuple[Rule, ...]:
    """The rules, for models that have experts."""
    return tuple(replace(rule, broken=_with_experts(rule.broken)) for rule in rules)


def _with_experts(broken: Callable[[Launch], bool]) -> Callable[[Launch], bool]:
    return lambda launch: launch.model.is_moe and broken(launch)


_NOT_PLACED = frozenset(
    {
        "Gemma4ForConditionalGeneration",
        "KimiK3ForConditionalGeneration",
        "Llama4ForConditionalGeneration",
        "MixtralForCausalLM",
    }
)
"""Sparse architectures read here whose experts get no place before the model is built (they lack
`get_model_config_for_expert_location`, eplb/expert_location.py:754)."""


def _is_placed_first(launch: Launch) -> bool:
    return launch.model.architecture not in _NOT_PLACED


def _leaves_experts_over(launch: Launch) -> bool:
    return (launch.model.num_experts + _num_redundant(launch)) % launch.effective.ep_size != 0


def _experts_left_over(launch: Launch) -> str:
    return (
        f"ep_size must divide the number of experts with the redundant ones, but {launch.effective.ep_size} does not "
        f"divide {launch.model.num_experts} + {_num_redundant(launch)}"
    )


PLACES = (
    Rule(
        id="ep.divides_experts",
        stage=Stage.MODEL,
        source="eplb/expert_location.py:256",
        broken=lambda launch: (
            launch.model.num_experts > 0 and _is_placed_first(launch) and _leaves_experts_over(launch)
        ),
        message=_experts_left_over,
        exception="AssertionError",
        needs=_SIZED,
    ),
)

CONSTRUCTION = _of_experts(
    Rule(
        id="experts.at_least_tp",
        stage=Stage.MODEL,
        source="models/qwen3_moe.py:246, qwen2_moe.py:273, deepseek_v2.py:714, glm4_moe.py:422, minimax_m2.py:520",
        broken=lambda launch: _expert_splits(launch) > launch.model.num_experts,
        message=lambda launch: (
            f"TP must not exceed the number of experts, but {_expert_splits(launch)} > {launch.model.num_experts}"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            f"Tensor parallel size {_expert_splits(launch)} is greater than the number of experts "
            f"{launch.model.num_experts}."
        ),
        needs=_WITH_EXPERTS,
    ),
    Rule(
        id="quant.nvfp4.gpu",
        stage=Stage.MODEL,
        source="layers/quantization/modelopt_quant.py:2383",
        broken=lambda launch: (
            scheme_of_experts(launch) is Scheme.NVFP4
            and not (launch.target.is_sm100 or launch.target.is_sm120)
            and runner_of_experts(launch) != "marlin"
        ),
        message=lambda launch: (
            f"NVFP4 experts need a Blackwell GPU or --moe-runner-backend marlin, not "
            f"{runner_of_experts(launch)} on {launch.cluster.gpu.key}"
        ),
        exception="ValueError",
        engine_text=says(
            "Current platform does not support NVFP4 quantization with the selected MoE backend. Please use "
            "Blackwell and above, or use moe_runner_backend=marlin on SM80+."
        ),
        since=release_0_5(13),
    ),
    Rule(
        id="quant.mxfp4.runner",
        stage=Stage.MODEL,
        source="layers/quantization/mxfp4.py:1474",
        broken=lambda launch: (
            launch.model.quantization.method == "mxfp4"
            and (
                launch.effective.moe_runner_backend not in _MXFP4_RUNNERS
                or (
                    launch.effective.moe_runner_backend == "flashinfer_mxfp4"
                    and not (launch.target.is_sm90 or launch.target.is_sm100 or launch.target.is_sm120)
                )
            )
        ),
        message=lambda launch: (
            f"MXFP4 experts have no --moe-runner-backend {launch.effective.moe_runner_backend} on "
            f"{launch.cluster.gpu.key}; known: {', '.join(sorted(_MXFP4_RUNNERS))}"
        ),
        exception="NotImplementedError",
        engine_text=lambda launch: (
            "moe_runner_backend=flashinfer_mxfp4 requires SM90, SM100, or SM120."
            if launch.effective.moe_runner_backend == "flashinfer_mxfp4"
            else "Mxfp4MoEMethod has no MoeRunner for backend=MoeRunnerBackend."
            f"{launch.effective.moe_runner_backend.upper()}"
        ),
        cuda_only=True,
        since=release_0_5(17),
    ),
    Rule(
        id="runner.hpc_ops.gpu",
        stage=Stage.MODEL,
        source="layers/moe/moe_runner/runner.py:152",
        broken=lambda launch: launch.effective.moe_runner_backend == "hpc_ops" and not launch.target.is_sm90,
        message=lambda launch: f"--moe-runner-backend hpc_ops needs a Hopper GPU, not {launch.cluster.gpu.key}",
        exception="ValueError",
        engine_text=lambda launch: (
            "--moe-runner-backend hpc_ops requires an SM90 (Hopper) GPU (the HPC-Ops kernels ship sm90a only), "
            f"got sm{launch.cluster.gpu.sm}."
        ),
        cuda_only=True,
    ),
    Rule(
        id="ep.splits_experts",
        stage=Stage.MODEL,
        source="layers/moe/fused_moe_triton/layer.py:414",
        broken=lambda launch: not _is_placed_first(launch) and _leaves_experts_over(launch),
        message=_experts_left_over,
        exception="AssertionError",
        needs=_SIZED,
    ),
    Rule(
        id="moe_tp.divides_width",
        stage=Stage.MODEL,
        source="layers/moe/fused_moe_triton/layer.py:427",
        broken=lambda launch: launch.model.moe_intermediate_size % launch.effective.moe_tp_size != 0,
        message=lambda launch: (
            f"moe_tp_size must divide the experts' width, but {launch.effective.moe_tp_size} does not divide "
            f"{launch.model.moe_intermediate_size}"
        ),
        exception="AssertionError",
        needs=_WITH_EXPERTS,
        cuda_only=True,
    ),
    Rule(
        id="quant.mxfp4.width",
        stage=Stage.MODEL,
        source="layers/quantization/mxfp4_flashinfer_cutlass_moe.py:69",
        broken=lambda launch: (
            scheme_of_experts(launch) is Scheme.MXFP4
            and launch.model.quantization.method == "fp8"
            and launch.effective.moe_runner_backend == "flashinfer_mxfp4"
            and (launch.target.is_sm90 or launch.target.is_sm120)
            and launch.model.moe_intermediate_size % launch.effective.moe_tp_size == 0
            and _expert_width(launch) % 128 != 0
        ),
        message=lambda launch: (
            "an FP4 expert's part on one rank must be a multiple of 128, but "
            f"{launch.model.moe_intermediate_size} / {launch.effective.moe_tp_size} = {_expert_width(launch)}"
        ),
        exception="ValueError",
        engine_text=says(
            "Mxfp4FlashinferCutlassMoEMethod requires hidden_size and intermediate_size_per_partition to be multiples "
            "of 128"
        ),
        needs=_WITH_EXPERTS,
    ),
    Rule(
        id="quant.fp8_block.experts",
        stage=Stage.MODEL,
        source="layers/quantization/fp8.py:1589",
        broken=lambda launch: (
            scheme_of_experts(launch) is Scheme.FP8_BLOCK
            and not pads_experts(launch)
            and launch.model.moe_intermediate_size % launch.effective.moe_tp_size == 0
            and _expert_width(launch) % launch.model.quantization.group_size != 0
        ),
        message=lambda launch: (
            f"an expert's part on one rank must be a multiple of the {launch.model.quantization.group_size}-wide "
            f"FP8 block, but {launch.model.moe_intermediate_size} / {launch.effective.moe_tp_size} = "
            f"{_expert_width(launch)} (moe_tp_size = tp_size / ep_size / moe_dp_size)"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            f"The output_size of gate's and up's weight = {_expert_width(launch)} is not divisible by weight "
            f"quantization block_n = {launch.model.quantization.group_size}."
        ),
        needs=_WITH_EXPERTS,
        cuda_only=True,
    ),
)

DISPATCH = _of_experts(
    Rule(
        id="runner.a2a_pair",
        stage=Stage.MODEL,
        source="layers/moe/moe_runner/runner.py:178",
        broken=pair_is_missing,
        message=lambda launch: (
            f"--moe-runner-backend {runner_of_experts(launch)} has no kernel for --moe-a2a-backend "
            f"{launch.effective.moe_a2a_backend} ({kind_of_experts(launch)} experts)"
        ),
        exception="NotImplementedError",
        engine_text=lambda launch: (
            f"Runner backend MoeRunnerBackend.{runner_of_experts(launch).upper()} requires a fused func for a2a "
            f"backend {launch.effective.moe_a2a_backend}, but none is registered."
        ),
        since=_PAIRS_CHECKED_SINCE,
        cuda_only=True,
    ),
    Rule(
        id="dispatch.mode",
        stage=Stage.MODEL,
        source="layers/moe/token_dispatcher/mooncake.py:344, nixl.py:482",
        backends=frozenset({"mooncake", "nixl"}),
        broken=lambda launch: (
            launch.effective.moe_a2a_backend in ("mooncake", "nixl") and launch.effective.deepep_mode != "low_latency"
        ),
        message=lambda launch: (
            f"--moe-a2a-backend {launch.effective.moe_a2a_backend} needs --deepep-mode low_latency, but it is "
            f"{launch.effective.deepep_mode}"
        ),
        exception="NotImplementedError",
        engine_text=lambda launch: (
            "Normal mode is not supported for Nixl EP yet." if launch.effective.moe_a2a_backend == "nixl" else ""
        ),
    ),
    Rule(
        id="deepep.deep_gemm",
        stage=Stage.MODEL,
        source="layers/moe/ep_moe/layer.py:175",
        broken=lambda launch: (
            launch.effective.moe_a2a_backend in DEEPEP_CLASS
            and launch.effective.deepep_mode != "normal"
            and scheme_of_experts(launch) is not Scheme.NONE
            and launch.cluster.gpu.sm < 90
            and launch.effective.moe_runner_backend != "humming"
        ),
        message=lambda launch: (
            f"--moe-a2a-backend {launch.effective.moe_a2a_backend} needs DeepGEMM for quantised experts, which "
            f"{launch.cluster.gpu.key} is too old for"
        ),
        exception="AssertionError",
        engine_text=lambda launch: f"DeepEP DeepEPMode.{launch.effective.deepep_mode.upper()} mode requires deep_gemm",
        cuda_only=True,
    ),
    Rule(
        id="deepep.limit",
        stage=Stage.MODEL,
        source="layers/moe/token_dispatcher/deepep.py:409",
        broken=lambda launch: (
            launch.effective.moe_a2a_backend == "deepep" and launch.limit(DEEPEP_CAPACITY, 128) > 1024
        ),
        message=lambda launch: f"{DEEPEP_CAPACITY} must not exceed 1024, but is {launch.limit(DEEPEP_CAPACITY, 128)}",
        exception="AssertionError",
    ),
    Rule(
        id="pplx.pp",
        stage=Stage.MODEL,
        source="layers/moe/token_dispatcher/pplx.py:88",
        broken=lambda launch: launch.effective.moe_a2a_backend == "pplx" and launch.effective.pp_size > 1,
        message=lambda launch: (
            "--moe-a2a-backend pplx needs the experts to span all ranks, so pp_size must be 1 "
            f"(pp_size={launch.effective.pp_size})"
        ),
        exception="AssertionError",
        engine_text=lambda launch: (
            "moe_a2a_backend='pplx' requires the EP group to span the whole world (got "
            f"ep_size={launch.effective.ep_size}, "
            f"world_size={launch.effective.tp_size * launch.effective.pp_size}); pipeline parallelism and "
            "EP-subset layouts are not"
        ),
    ),
    Rule(
        id="quant.fp8_block.after_load",
        stage=Stage.WEIGHTS,
        source="model_executor/model_runner_components/moe_ep_setup.py:167",
        broken=lambda launch: (
            pads_experts(launch)
            and launch.model.quantization.block_size > 0
            and launch.model.moe_intermediate_size % launch.effective.moe_tp_size == 0
            and _expert_width(launch) % launch.model.quantization.block_size != 0
        ),
        message=lambda launch: (
            f"an expert's part on one rank must be a multiple of the {launch.model.quantization.block_size}-wide FP8 "
            f"block, but {launch.model.moe_intermediate_size} / {launch.effective.moe_tp_size} = "
            f"{_expert_width(launch)}, which is checked once the weights are loaded even where the kernels pad"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            f"For quantized MoE models, please make sure (moe_intermediate_size={launch.model.moe_intermediate_size} / "
            f"moe_tp_size={launch.effective.moe_tp_size}) % "
            f"weight_block_size_n={launch.model.quantization.block_size} == 0"
        ),
        needs=_WITH_EXPERTS,
        cuda_only=True,
    ),
    Rule(
        id="quant.group",
        stage=Stage.WEIGHTS,
        source="layers/quantization/marlin_utils.py:161",
        broken=lambda launch: (
            scheme_of_experts(launch) in (Scheme.INT4_GROUP, Scheme.NVFP4)
            and not pads_experts(launch)
            and launch.model.moe_intermediate_size % launch.effective.moe_tp_size == 0
            and _expert_width(launch) % launch.model.quantization.group_size != 0
        ),
        message=lambda launch: (
            "an expert's part on one rank must hold whole groups of "
            f"{launch.model.quantization.group_size} weights, but is {_expert_width(launch)} wide "
            f"(moe_tp_size={launch.effective.moe_tp_size})"
        ),
        needs=_WITH_EXPERTS,
        cuda_only=True,
    ),
)
