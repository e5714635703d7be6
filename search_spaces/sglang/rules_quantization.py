"""Rules on `--quantization` for a checkpoint that is stored as it was trained."""

from __future__ import annotations

from search_spaces.parts import Component
from search_spaces.placement import OddBlock, odd_block, widths_of
from search_spaces.sglang.model_defaults import UNQUANTIZED
from search_spaces.sglang.rule import ATTENTION, CHOICES, SIZES, Launch, Rule, says
from search_spaces.verdict import Stage

_CONCERNED = frozenset({"quantization"})

_FROM_A_FILE = frozenset(
    {
        *("auto-round", "awq", "awq_marlin", "gptq_marlin", "modelopt", "modelopt_fp8", "modelopt_mixed"),
        *("modelslim", "moe_wna16", "petit_nvfp4"),
    }
)
"""Schemes that read their settings from a file of the checkpoint (model_loader/weight_utils.py:389)."""

_CAPABILITY = {
    "minimax_m3_nvfp4": 90,
    "modelopt_fp8": 89,
    "mxfp8": 100,
    "w4afp8": 90,
    "w8a8_fp8": 89,
}
"""Compute capability times ten that each scheme starts with, of those that not every GPU read here has."""


def _asked(launch: Launch) -> str:
    """What the weights are to be quantised to; empty where they are so already, or stay as they are."""
    asked = launch.asked.quantization or launch.effective.quantization
    stays = asked in (None, UNQUANTIZED) or launch.target.checkpoint_quantization is not None
    return "" if stays else str(asked)


def _scheme(launch: Launch) -> str:
    """What the weights are quantised to in the end, whether stored so or not."""
    return launch.target.checkpoint_quantization or _asked(launch)


_OF_OTHER_PLATFORMS = frozenset({"gptq", "mlx_q4", "mlx_q8"})
"""Words that the parser takes and no NVIDIA build has a scheme for (layers/quantization/__init__.py)."""

KNOWN = (
    Rule(
        id="quantization.platform",
        stage=Stage.RESOLVE,
        source="configs/model_config.py:2152",
        concerns=_CONCERNED,
        broken=lambda launch: _asked(launch) in _OF_OTHER_PLATFORMS,
        message=lambda launch: f"--quantization {_asked(launch)} is not among the schemes for NVIDIA GPUs",
        exception="ValueError",
        engine_text=lambda launch: f"Unknown quantization method: {_asked(launch)}. Must be one of [",
        cuda_only=True,
    ),
)

ONLINE = (
    Rule(
        id="quantization.nvfp4_online.gpu",
        stage=Stage.RESOLVE,
        source="arg_groups/overrides.py:1458",
        concerns=_CONCERNED,
        broken=lambda launch: launch.effective.quantization == "nvfp4_online" and not launch.target.is_sm100,
        message=lambda launch: (
            f"--quantization nvfp4_online needs compute capability 10.x, and {launch.cluster.gpu.key} has "
            f"{launch.cluster.gpu.sm / 10:g}"
        ),
        exception="ValueError",
        engine_text=says("--quantization nvfp4_online is supported only on NVIDIA Blackwell SM100/SM103 GPUs."),
        cuda_only=True,
    ),
)

LOADING = (
    Rule(
        id="quantization.settings",
        stage=Stage.MODEL,
        source="model_loader/weight_utils.py:389",
        concerns=_CONCERNED,
        broken=lambda launch: _asked(launch) in _FROM_A_FILE,
        message=lambda launch: (
            f"--quantization {_asked(launch)} reads its settings from the checkpoint, and this one has none"
        ),
        exception="ValueError",
        engine_text=lambda launch: f"Cannot find the config file for {_asked(launch)}",
    ),
    Rule(
        id="quantization.settings.compressed_tensors",
        stage=Stage.MODEL,
        source="model_loader/weight_utils.py:375",
        concerns=_CONCERNED,
        broken=lambda launch: _asked(launch) == "compressed-tensors",
        message=says("--quantization compressed-tensors reads its settings from the checkpoint, and this one has none"),
        exception="TypeError",
        engine_text=says("CompressedTensorsConfig.__init__() missing 5 required positional arguments"),
    ),
    Rule(
        id="quantization.settings.quark",
        stage=Stage.MODEL,
        source="layers/quantization/quark/quark.py:348",
        concerns=_CONCERNED,
        broken=lambda launch: _asked(launch) == "quark",
        message=says("--quantization quark reads its settings from the checkpoint, and this one has none"),
        exception="ValueError",
        engine_text=says("Either quant_config or online_scheme must be provided"),
    ),
    Rule(
        id="quantization.gpu",
        stage=Stage.MODEL,
        source="model_loader/loader.py:260",
        broken=lambda launch: launch.cluster.gpu.sm < _CAPABILITY.get(_scheme(launch), 0),
        message=lambda launch: (
            f"{_scheme(launch)} weights need compute capability {_CAPABILITY[_scheme(launch)] / 10:g}, and "
            f"{launch.cluster.gpu.key} has {launch.cluster.gpu.sm / 10:g}"
        ),
        exception="ValueError",
        engine_text=lambda launch: f"The quantization method {_scheme(launch)} is not supported for the current GPU.",
        cuda_only=True,
    ),
)

_BLOCKS = {"mxfp8": 32, "w4afp8": 128}
"""Schemes that quantise linear layers in blocks while they load."""

_LINEAR = (Component.VISION, Component.ATTENTION, Component.DENSE, Component.SHARED)


def _odd_block(launch: Launch) -> OddBlock | None:
    block = _BLOCKS.get(_asked(launch), 0)
    widths = widths_of(launch.model, launch.effective)
    return odd_block(launch.model, widths, _LINEAR, online_block=block) if block else None


def _odd_block_text(launch: Launch) -> str:
    part = _odd_block(launch)
    assert part is not None
    return part.engine_text


LINEAR = (
    Rule(
        id="quantization.block",
        stage=Stage.MODEL,
        source="layers/quantization/fp8.py:593-610",
        concerns=_CONCERNED,
        broken=lambda launch: _odd_block(launch) is not None,
        message=lambda launch: (
            f"--quantization {_asked(launch)} needs parts of whole {_BLOCKS[_asked(launch)]}-wide blocks on each rank: "
            + _odd_block_text(launch)
        ),
        exception="ValueError",
        # Which part is met first depends on how a class merges its projections.
        engine_text=says("Weight "),
        needs=frozenset({CHOICES, SIZES, ATTENTION}),
        cuda_only=True,
    ),
    Rule(
        id="quantization.mxfp4",
        stage=Stage.MODEL,
        source="layers/linear.py:482",
        concerns=_CONCERNED,
        broken=lambda launch: _asked(launch) == "mxfp4",
        message=says("--quantization mxfp4 is for checkpoints that are stored so: it quantises no others"),
        exception="AssertionError",
    ),
    Rule(
        id="quantization.ascend",
        stage=Stage.MODEL,
        source="layers/quantization/npu_mxfp4.py:108",
        concerns=_CONCERNED,
        broken=lambda launch: _asked(launch) == "mxfp_w4a8",
        message=says("--quantization mxfp_w4a8 has kernels for Ascend NPUs alone"),
        exception="NotImplementedError",
        engine_text=says("mxfp_w4a8 (MXFP4 weights + MXFP8 activations, W4A8) is currently only implemented for"),
    ),
    Rule(
        id="quantization.amd",
        stage=Stage.MODEL,
        source="layers/quantization/quark/schemes/quark_w4a4_mxfp4.py:397",
        concerns=_CONCERNED,
        broken=lambda launch: _asked(launch) == "quark_mxfp4",
        message=says("--quantization quark_mxfp4 has kernels for AMD's GPUs alone"),
        exception="NotImplementedError",
        engine_text=says("Online MXFP4 quantization requires an AMD ROCm device"),
    ),
    Rule(
        id="quantization.amd_experts",
        stage=Stage.MODEL,
        source="layers/quantization/quark_int4fp8_moe.py:142",
        concerns=_CONCERNED,
        broken=lambda launch: launch.model.is_moe and _asked(launch) == "quark_int4fp8_moe",
        message=says("--quantization quark_int4fp8_moe has kernels for AMD's GPUs alone"),
        exception="NotImplementedError",
        engine_text=says("The quark_int4fp8_moe online quantization scheme is only supported on AMD GPUs."),
    ),
    Rule(
        id="quantization.mixtral_experts",
        stage=Stage.MODEL,
        source="models/mixtral_quant.py:114, model_loader/utils.py:217",
        concerns=_CONCERNED,
        architectures=frozenset({"MixtralForCausalLM"}),
        broken=lambda launch: (
            launch.model.architecture == "MixtralForCausalLM"
            and _asked(launch) not in ("", "fp8", "quark_int4fp8_moe")
            and launch.effective.tp_size > launch.model.num_experts
        ),
        message=lambda launch: (
            f"under --quantization {_asked(launch)} each rank of Mixtral holds whole experts, so tp_size must not "
            f"exceed their number ({launch.effective.tp_size} > {launch.model.num_experts})"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            f"Tensor parallel size {launch.effective.tp_size} is greater than the number of experts "
            f"{launch.model.num_experts}."
        ),
    ),
)
