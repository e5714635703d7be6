"""Routed experts on one rank, as the MoE runner keeps them. Paths are under `sglang/srt/` of 0.5.23."""

from __future__ import annotations

import math
from functools import lru_cache

from cost_models.sized_weights import Sized, plain_bytes
from search_spaces.hardware import Gpu
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.parts import Experts, Scheme

_TRTLLM_RUNNERS = frozenset({"flashinfer_trtllm", "flashinfer_trtllm_routed"})
_NVFP4_RUNNERS_WITH_ONE_SCALE = _TRTLLM_RUNNERS | {"flashinfer_megamoe"}
_MXFP4_WIDTH_ALIGNMENT = 128
_MXFP4_HIDDEN_ALIGNMENT = 256


def experts_per_rank(model: Model, layout: Layout) -> float:
    return (model.num_experts + layout.ep_num_redundant_experts) / layout.ep_size


@lru_cache(maxsize=1024)
def one_expert(experts: Experts, moe_tp_size: int, runner: str, keeps_scales: bool) -> Sized:
    """One routed expert's slice on one rank, as the MoE runner keeps it.

    keeps_scales: whether the scales as they were loaded stay beside those that the kernel reads.
    """
    size = _expert_bytes(experts, moe_tp_size, runner)
    if keeps_scales and experts.storage.staged_scale_bytes > 1:
        groups = (
            (experts.num_inner + 1) * experts.width // moe_tp_size * experts.hidden_size // experts.storage.group_size
        )
        size += groups * experts.storage.staged_scale_bytes
    weights = (experts.num_inner + 1) * (experts.width / moe_tp_size) * experts.hidden_size
    bias = (experts.num_inner * experts.width / moe_tp_size + experts.hidden_size) * 2 if experts.has_bias else 0
    return Sized(size, size - bias - plain_bytes(experts.storage, weights, experts.element_bytes))


def _expert_bytes(experts: Experts, moe_tp_size: int, runner: str) -> float:
    scheme = experts.storage.scheme
    width = math.ceil(experts.width / moe_tp_size)
    hidden = experts.hidden_size
    if runner in _TRTLLM_RUNNERS and scheme is not Scheme.NVFP4:
        width = _round_up(width, 128)  # layers/moe/fused_moe_triton/layer.py:512
    if runner == "flashinfer_mxfp4" and scheme is Scheme.MXFP4:
        width = _round_up(width, _MXFP4_WIDTH_ALIGNMENT)  # layers/quantization/mxfp4.py:483 and :507
        hidden = _round_up(hidden, _MXFP4_HIDDEN_ALIGNMENT)  # layers/moe/fused_moe_triton/layer.py:457
    if runner in _TRTLLM_RUNNERS and scheme is Scheme.NVFP4:
        width = _round_up(width, 64 if experts.num_inner == 2 else 128)  # layers/quantization/modelopt_quant.py:2478
    size = experts.bytes_of_one(width, hidden)
    if scheme is Scheme.NVFP4 and runner not in _NVFP4_RUNNERS_WITH_ONE_SCALE:
        # A second, swizzled scale tensor (layers/quantization/modelopt_quant.py:2552).
        size += (experts.num_inner + 1) * width * hidden / experts.storage.group_size
    return size


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def staged_bytes(model: Model, gpu: Gpu, layout: Layout, experts: Experts) -> float:
    """By how much what one layer's experts on one rank are built with exceeds what stays.

    Marlin's INT4 experts have index tensors, two int32 for each input row of both projections
    (compressed_tensors/schemes/compressed_tensors_wNa16_moe.py); TensorRT-LLM's have none. DeepSeek-V4's
    FP4 experts have wider scales than they keep, except for Marlin and for FlashInfer off compute capability 10.
    There, FlashInfer's MXFP4 experts are padded only after they are loaded (layers/quantization/mxfp4.py:490).
    """
    held = experts_per_rank(model, layout)
    width = experts.width // layout.moe_tp_size
    if experts.storage.scheme is Scheme.INT4_GROUP and layout.moe_runner_backend not in _TRTLLM_RUNNERS:
        return held * (experts.hidden_size + width) * 2 * 4
    is_off_sm100 = layout.moe_runner_backend == "flashinfer_mxfp4" and gpu.sm // 10 != 10
    if is_off_sm100 and model.quantization.method == "mxfp4":
        hidden = _round_up(experts.hidden_size, _MXFP4_HIDDEN_ALIGNMENT)
        padded = _round_up(width, _MXFP4_WIDTH_ALIGNMENT)
        return held * (experts.bytes_of_one(width, hidden) - experts.bytes_of_one(padded, hidden))
    takes_narrow_scales = layout.moe_runner_backend == "marlin" or is_off_sm100
    if experts.storage.scheme is Scheme.MXFP4 and not takes_narrow_scales:
        groups = (experts.num_inner + 1) * width * experts.hidden_size // experts.storage.group_size
        return held * groups * (experts.storage.staged_scale_bytes - 1)
    return 0.0
