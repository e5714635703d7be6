"""Rules on what the flags say about the model itself: its context and its quantisation."""

from __future__ import annotations

from search_spaces.sglang.model_defaults import UNQUANTIZED
from search_spaces.sglang.rule import Launch, Rule
from search_spaces.verdict import Stage

_LONGER_CONTEXT = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"

_COMPATIBLE = {
    "modelopt_fp8": ("modelopt",),
    "modelopt_fp4": ("modelopt", "fp8"),
    "modelopt_mixed": ("modelopt",),
    "nvfp4_online": ("fp8", "modelopt_fp8"),
    "minimax_m3_nvfp4": ("mxfp8",),
    "petit_nvfp4": ("modelopt",),
    "w8a8_int8": ("compressed-tensors",),
    "w8a8_fp8": ("compressed-tensors",),
    "auto-round-int8": ("compressed-tensors",),
}
"""Schemes that may be asked for on top of another one of the checkpoint (configs/model_config.py:2042)."""

_REQUANTIZING = frozenset({"quark_mxfp4"})


def _allows_longer_context(launch: Launch) -> bool:
    return launch.env.get(_LONGER_CONTEXT, "").lower() in ("1", "true", "yes", "y")


def _contradicts_checkpoint(launch: Launch) -> bool:
    """ModelOpt's checkpoints win over what is asked for (layers/quantization/base_config.py:225)."""
    asked, found = launch.asked.quantization, launch.target.checkpoint_quantization
    return (
        asked not in (None, UNQUANTIZED, found)
        and found is not None
        and (not found.startswith("modelopt_") or asked == "nvfp4_online")
        and asked not in _REQUANTIZING
        and found not in _COMPATIBLE.get(asked or "", ())
    )


MODEL = (
    Rule(
        id="context.length",
        stage=Stage.RESOLVE,
        source="configs/model_config.py:1314",
        concerns=frozenset({"context_length"}),
        broken=lambda launch: (
            (launch.asked.context_length or 0) > launch.model.context_length and not _allows_longer_context(launch)
        ),
        message=lambda launch: (
            f"context_length must not exceed the model's {launch.model.context_length}, but is "
            f"{launch.asked.context_length}"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            f"Warning: User-specified context_length ({launch.asked.context_length}) is greater than the derived "
            f"context_length ({launch.model.context_length})."
        ),
    ),
    Rule(
        id="quantization.checkpoint",
        stage=Stage.RESOLVE,
        source="configs/model_config.py:2143",
        concerns=frozenset({"quantization"}),
        broken=_contradicts_checkpoint,
        message=lambda launch: (
            f"--quantization {launch.asked.quantization} does not fit a checkpoint that is stored as "
            f"{launch.target.checkpoint_quantization}"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            f"Quantization method specified in the model config ({launch.target.checkpoint_quantization}) does not "
            f"match the quantization method specified in the `quantization` argument ({launch.asked.quantization})."
        ),
    ),
)

_FLOAT32 = frozenset({"float", "float32"})


def _quantization(launch: Launch) -> str | None:
    """The scheme that the weights are loaded in."""
    asked = launch.effective.quantization
    return launch.target.checkpoint_quantization or (None if asked == UNQUANTIZED else asked)


LOADING = (
    Rule(
        id="dtype.quantization",
        stage=Stage.MODEL,
        source="model_loader/loader.py:268",
        concerns=frozenset({"dtype"}),
        broken=lambda launch: launch.asked.dtype in _FLOAT32 and _quantization(launch) is not None,
        message=lambda launch: (
            f"--dtype {launch.asked.dtype} does not go with {_quantization(launch)} weights, "
            "which are computed in bfloat16 or float16"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            f"torch.float32 is not supported for quantization method {_quantization(launch)}. Supported dtypes: "
        ),
    ),
)
