"""Rules that stop the construction of the experts."""

from __future__ import annotations

from search_spaces.architectures.table import ARCHITECTURES
from search_spaces.parts import Scheme
from search_spaces.sglang.experts import of_experts, pads_experts, scheme_of_experts
from search_spaces.sglang.rule import CHOICES, EXPERTS, SIZES, Launch, Rule, says
from search_spaces.verdict import Stage

_SIZED = frozenset({CHOICES, SIZES})

_WITH_EXPERTS = frozenset({CHOICES, SIZES, EXPERTS})


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

COUNTS = of_experts(
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
)

WIDTHS = of_experts(
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

AFTER_LOAD = of_experts(
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
