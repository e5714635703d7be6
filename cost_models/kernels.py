"""Kernels of one forward pass, counted from the kernel paths of the engine.

Paths are under `sglang/srt/` of 0.5.23.
"""

from __future__ import annotations

import math
from functools import lru_cache

from cost_models.rates import FP4, FP8, scheme_of
from cost_models.setting import ServingEngine
from search_spaces.hardware import Gpu
from search_spaces.layout import Layout
from search_spaces.model import Component, Model
from search_spaces.parts import Block, Projection, Tensor

_FUSED_KERNEL_GPUS = (100, 103)
_GATHER_KERNELS = 24
"""Of one layer under attention data parallelism: tokens are padded, gathered, masked and taken back around the MLP
(layers/dp_attention.py). Rounded from three measured points of SGLang with attention DP, which are not among the fitted
ones: without it they lie at 1.6 to 1.8 times the prediction. TensorRT-LLM's eleven need none.
"""
_FUSED_GATE_EXPERTS = 384
"""Kimi K2's experts, for whose number a kernel of its own exists (layers/moe/topk.py)."""


def captured_requests(layout: Layout) -> float:
    """The most requests of one attention rank whose decode step is a CUDA graph."""
    if layout.disable_decode_cuda_graph or layout.cuda_graph_backend_decode == "disabled":
        return 0.0
    sizes = layout.cuda_graph_bs_decode
    most = max(sizes) if sizes else layout.cuda_graph_max_bs_decode
    return math.inf if most is None else float(most)


@lru_cache(maxsize=1024)
def num_matrices(model: Model, component: Component) -> int:
    """Linear modules of that component in all layers: each is read by a kernel of its own."""
    return sum(
        count * sum(isinstance(part, Projection) and part.component is component for part in block.parts)
        for block, count in model.kind_counts
    )


def num_kernels(model: Model, gpu: Gpu, layout: Layout, engine: ServingEngine = ServingEngine.SGLANG) -> int:
    """Kernels of one pass, counted by kind of layer from the kernel paths of SGLang."""
    is_fused = (
        gpu.sm in _FUSED_KERNEL_GPUS
        and layout.moe_a2a_backend == "none"
        and scheme_of(model, Component.ROUTED) in FP8 | FP4
    )
    has_gather = layout.attn_dp_size > 1 and engine is not ServingEngine.TRTLLM
    gathered = _GATHER_KERNELS * model.num_layers if has_gather else 0
    return _kernels_of_layers(model, is_fused=is_fused) + gathered


@lru_cache(maxsize=512)
def _kernels_of_layers(model: Model, *, is_fused: bool) -> int:
    return sum(
        count * (_kernels_of_attention(model, block) + _kernels_of_mlp(model, block, is_fused=is_fused))
        for block, count in model.kind_counts
    )


def _kernels_of_attention(model: Model, block: Block) -> int:
    if block.linear_attention is not None:
        return 11
    if block.kv is None:
        return 0
    if block.kv.index_values or block.kv.is_compressed:
        return 20
    return 12 if model.mla is not None else 8


def _kernels_of_mlp(model: Model, block: Block, *, is_fused: bool) -> int:
    """A router with a correction bias picks experts in one kernel where their number is a power of two or Kimi K2's,
    and else in eight (layers/moe/topk.py, biased_grouped_topk_gpu of 0.5.9).
    """
    experts = block.experts
    if experts is None:
        return 5 if any(part.component is Component.DENSE for part in block.parts) else 0
    count = 5 if is_fused else 9
    if any(part.component is Component.SHARED for part in block.parts):
        count += 3
    plain = experts.count * model.hidden_size
    has_bias = any(
        isinstance(part, Tensor) and part.component is Component.ROUTER and part.size > plain for part in block.parts
    )
    is_power_of_two = experts.count & (experts.count - 1) == 0
    if has_bias and not is_power_of_two and experts.count != _FUSED_GATE_EXPERTS:
        count += 8
    return count
