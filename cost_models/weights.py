"""Where weights lie: bytes of each component on one rank of one pipeline stage.

The rules are those of sglang 0.5.23: attention is divided over attention-TP, experts over EP x MoE-TP,
dense layers over the whole TP world, embeddings over TP (attention-TP under attention data parallelism),
and some padding and scale tensors come on top. Paths below are relative to `sglang/srt/`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from search_spaces.hardware import Gpu
from search_spaces.layout import Layout
from search_spaces.model import Component, Model, Scheme

_VOCAB_ALIGNMENT = 64  # layers/vocab_parallel_embedding.py
_BLACKWELL_SERVER = (100, 103)
_LM_HEAD_ON_LAST_STAGE_ONLY = frozenset(  # models/deepseek_v2.py:3289; the other models build it everywhere
    {
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "GlmMoeDsaForCausalLM",
        "KimiK25ForConditionalGeneration",
    }
)
_BLIND_TO_ATTENTION_DP = frozenset({"MixtralForCausalLM"})  # models/mixtral.py:137
_ROUTES_IN_FP32 = frozenset({"Glm4MoeForCausalLM"})
_HAS_EXPERT_BIASES = frozenset({"GptOssForCausalLM"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """Bytes that one rank holds of one layer's parts."""

    attention: float
    dense: float
    router: float
    routed: float
    shared: float


def stage_layers(num_layers: int, pp_size: int) -> tuple[range, ...]:
    """The decoder layers of each pipeline stage; remainder layers go to the last stages.

    distributed/utils.py:110.
    """
    each, rest = divmod(num_layers, pp_size)
    stages = []
    start = 0
    for stage in range(pp_size):
        size = each + (stage >= pp_size - rest)
        stages.append(range(start, start + size))
        start += size
    return tuple(stages)


@lru_cache(maxsize=4096)
def layer_weights(model: Model, gpu: Gpu, layout: Layout) -> LayerWeights:
    """Resident bytes of one layer on one rank, for an effective layout."""
    tp = layout.tp_size
    hidden = model.hidden_size
    dense_tp = layout.moe_dense_tp_size or tp
    shared_tp = 1 if _shared_expert_is_replicated(model, gpu, layout) else tp
    return LayerWeights(
        attention=_attention_bytes(model, attention_tp_size(model, layout)),
        dense=_mlp_bytes(model, Component.DENSE, hidden, model.dense_intermediate_size / dense_tp),
        router=_router_bytes(model),
        routed=experts_per_rank(model, layout) * _expert_bytes(model, gpu, layout),
        shared=_mlp_bytes(model, Component.SHARED, hidden, model.shared_intermediate_size / shared_tp),
    )


def stage_weights(model: Model, gpu: Gpu, layout: Layout, stage: int) -> dict[Component, int]:
    """Resident bytes by component on one rank of pipeline stage `stage`, for an effective layout."""
    layers = stage_layers(model.num_layers, layout.pp_size)[stage]
    num_dense = sum(layer < model.num_dense_layers for layer in layers)
    num_moe = len(layers) - num_dense
    each = layer_weights(model, gpu, layout)
    is_first = stage == 0
    is_last = stage == layout.pp_size - 1
    has_embedding = is_first or (is_last and model.tie_word_embeddings)
    has_head = not model.tie_word_embeddings and (is_last or model.architecture not in _LM_HEAD_ON_LAST_STAGE_ONLY)
    return {
        Component.EMBED: round(has_embedding * embedding_bytes(model, layout)),
        Component.ATTENTION: round(len(layers) * each.attention),
        Component.DENSE: round(num_dense * each.dense),
        Component.ROUTER: round(num_moe * each.router),
        Component.ROUTED: round(num_moe * each.routed),
        Component.SHARED: round(num_moe * each.shared),
        Component.LM_HEAD: round(has_head * lm_head_bytes(model, layout)),
    }


def weight_bytes_at_construction(model: Model, gpu: Gpu, layout: Layout, stage: int = 0) -> int:
    """Bytes of the parameters that one rank allocates before it loads the checkpoint.

    Marlin's INT4 experts carry index tensors (two int32 per input row of both projections) that are
    emptied after loading; everything else stays resident.
    """
    resident = sum(stage_weights(model, gpu, layout, stage).values())
    if not _is_quantised(model, Component.ROUTED, Scheme.INT4_GROUP):
        return resident
    layers = stage_layers(model.num_layers, layout.pp_size)[stage]
    num_moe = sum(layer >= model.num_dense_layers for layer in layers)
    rows = model.hidden_size + model.moe_intermediate_size // layout.moe_tp_size
    return resident + round(num_moe * experts_per_rank(model, layout)) * rows * 2 * 4


def attention_tp_size(model: Model, layout: Layout) -> int:
    """Ranks that attention is divided over: the whole world in models that ignore attention DP."""
    return layout.tp_size if model.architecture in _BLIND_TO_ATTENTION_DP else layout.attn_tp_size


def experts_per_rank(model: Model, layout: Layout) -> float:
    return (model.num_experts + layout.ep_num_redundant_experts) / layout.ep_size


def embedding_bytes(model: Model, layout: Layout) -> float:
    """The slice of the embedding table on one rank, in bytes."""
    ranks = attention_tp_size(model, layout) if layout.attn_dp_size > 1 else layout.tp_size
    return _vocab_rows(model, ranks) * model.hidden_size * model.bytes_per_param(Component.EMBED)


def lm_head_bytes(model: Model, layout: Layout) -> float:
    """The slice of the language model head on one rank, in bytes."""
    ranks = attention_tp_size(model, layout) if layout.enable_dp_lm_head else layout.tp_size
    return _vocab_rows(model, ranks) * model.hidden_size * model.bytes_per_param(Component.LM_HEAD)


def _vocab_rows(model: Model, ranks: int) -> int:
    alignment = _VOCAB_ALIGNMENT
    if math.ceil(model.vocab_size / alignment) * alignment % ranks:
        alignment *= ranks
    return math.ceil(model.vocab_size / alignment) * alignment // ranks


def _attention_bytes(model: Model, attn_tp: int) -> float:
    hidden = model.hidden_size
    heads = model.num_attention_heads / attn_tp
    part = Component.ATTENTION
    if model.mla is None:
        kv_heads = max(1, model.num_kv_heads // attn_tp)
        return _linear_bytes(model, part, (heads + 2 * kv_heads) * model.head_dim, hidden) + _linear_bytes(
            model, part, hidden, heads * model.head_dim
        )
    m = model.mla
    size = (
        _linear_bytes(model, part, m.q_lora_rank + m.kv_lora_rank + m.qk_rope_head_dim, hidden)
        + _linear_bytes(model, part, heads * (m.qk_nope_head_dim + m.qk_rope_head_dim), m.q_lora_rank or hidden)
        + _linear_bytes(model, part, heads * (m.qk_nope_head_dim + m.v_head_dim), m.kv_lora_rank)
        + _linear_bytes(model, part, hidden, heads * m.v_head_dim)
    )
    if model.indexer is not None:
        i = model.indexer
        size += _linear_bytes(model, part, i.num_heads * i.head_dim, m.q_lora_rank)
        size += _linear_bytes(model, part, i.head_dim, hidden)
        size += i.num_heads * hidden * model.dtype_bytes  # the head weights stay unquantised
    return size


def _router_bytes(model: Model) -> float:
    size = 4.0 if model.architecture in _ROUTES_IN_FP32 else model.bytes_per_param(Component.ROUTER)
    return model.router_params * size


def _mlp_bytes(model: Model, component: Component, hidden: int, width: float) -> float:
    if not width:
        return 0.0
    return _linear_bytes(model, component, 2 * width, hidden) + _linear_bytes(model, component, hidden, width)


def _expert_bytes(model: Model, gpu: Gpu, layout: Layout) -> float:
    """One routed expert's slice on one rank, as the MoE runner keeps it."""
    width = math.ceil(model.moe_intermediate_size / layout.moe_tp_size)
    hidden = model.hidden_size
    runner = moe_runner(model, gpu, layout)
    if runner == "flashinfer_trtllm" and not _is_quantised(model, Component.ROUTED, Scheme.NVFP4):
        width = _round_up(width, 128)  # layers/moe/fused_moe_triton/layer.py:512
    if runner == "flashinfer_mxfp4" and _is_quantised(model, Component.ROUTED, Scheme.MXFP4):
        width = _round_up(width, 128)  # layers/quantization/mxfp4.py:481
        hidden = _round_up(hidden, 256)  # layers/moe/fused_moe_triton/layer.py:457
    size = _mlp_bytes(model, Component.ROUTED, hidden, width)
    if _is_quantised(model, Component.ROUTED, Scheme.NVFP4) and runner in (
        "flashinfer_cutlass",
        "flashinfer_cutedsl",
    ):
        size += 3 * hidden * width / model.quantization.group_size  # a second, swizzled scale tensor
    if model.architecture in _HAS_EXPERT_BIASES:
        size += (2 * width + hidden) * model.dtype_bytes
    return size


def moe_runner(model: Model, gpu: Gpu, layout: Layout) -> str:
    """The MoE runner that the engine takes for `auto`, where it changes what is resident or how fast."""
    named = layout.moe_runner_backend
    if named != "auto" or gpu.sm not in _BLACKWELL_SERVER or layout.moe_a2a_backend != "none":
        return named
    return "flashinfer_mxfp4" if _is_quantised(model, Component.ROUTED, Scheme.MXFP4) else "flashinfer_trtllm"


def _shared_expert_is_replicated(model: Model, gpu: Gpu, layout: Layout) -> bool:
    """Every all-to-all backend, and NVFP4's quantised all-gather (models/deepseek_v2.py:874)."""
    if layout.moe_a2a_backend not in ("none", "ascend_tp"):
        return True
    return (
        _is_quantised(model, Component.ROUTED, Scheme.NVFP4)
        and moe_runner(model, gpu, layout) == "flashinfer_cutlass"
        and layout.attn_dp_size == layout.ep_size > 1
    )


def _is_quantised(model: Model, component: Component, scheme: Scheme) -> bool:
    return model.quantization.scheme is scheme and component in model.quantization.components


def _linear_bytes(model: Model, component: Component, rows: float, columns: float) -> float:
    """One linear layer of `rows` outputs and `columns` inputs with its scales, in bytes."""
    params = rows * columns
    if component not in model.quantization.components:
        return params * model.dtype_bytes
    group = model.quantization.group_size
    match model.quantization.scheme:
        case Scheme.FP8_BLOCK:
            return params + 4 * math.ceil(rows / group) * math.ceil(columns / group)
        case Scheme.FP8_CHANNEL:
            return params + 4 * rows
        case _:
            return params * model.quantization.bytes_per_param


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
