"""Number formats, and the datasheet rates at which a card multiplies them."""

from __future__ import annotations

from cost_models.setting import ServingEngine
from search_spaces.hardware import Gpu
from search_spaces.model import Component, Model, Scheme

_FIRST_FP8_SM, _FIRST_FP4_SM = 89, 100
FP8 = frozenset({Scheme.FP8_BLOCK, Scheme.FP8_CHANNEL, Scheme.FP8_TENSOR, Scheme.MXFP8})
FP4 = frozenset({Scheme.NVFP4, Scheme.MXFP4})


def scheme_of(model: Model, component: Component) -> Scheme:
    return model.quantization.scheme if component in model.quantization.components else Scheme.NONE


def peak_of(model: Model, gpu: Gpu, component: Component) -> float:
    """The datasheet's rate for the component's own format; bf16's for those that the card has no rate for, as INT4."""
    scheme = scheme_of(model, component)
    rate = gpu.fp8_flop_per_s if scheme in FP8 else gpu.fp4_flop_per_s if scheme in FP4 else None
    return rate or gpu.bf16_flop_per_s


def best_peak(model: Model, gpu: Gpu) -> float:
    """The highest rate that any part of the model is multiplied at, in flop/s."""
    return max(peak_of(model, gpu, component) for component in Component)


def lacks_units(model: Model, gpu: Gpu, engine: ServingEngine) -> bool:
    """Whether the model stores FP8, or under SGLang FP4, that the card cannot multiply as such. INT4 is unpacked
    everywhere, and other engines' points with unpacked FP4 lie near their predictions.
    """
    scheme = model.quantization.scheme
    if gpu.is_cpu:
        return False
    if scheme in FP4 and engine is ServingEngine.SGLANG:
        return gpu.sm < _FIRST_FP4_SM
    return scheme in FP8 and gpu.sm < _FIRST_FP8_SM
