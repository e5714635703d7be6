"""Where weights lie: bytes of each component on one rank of one pipeline stage.

The rules are those of sglang 0.5.23: attention is divided over attention-TP, experts over EP x MoE-TP,
dense layers over the whole TP world, embeddings over TP (attention-TP under attention data parallelism),
and some padding and scale tensors come on top. Paths below are relative to `sglang/srt/`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from search_spaces.architectures.table import ARCHITECTURES, Embedding
from search_spaces.hardware import Gpu
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.parts import Block, Component, Experts, Part, Scheme, Widths
from search_spaces.placement import widths_of
from search_spaces.sglang.speculation import drafts_by_itself, needs_draft

_TRTLLM_RUNNERS = frozenset({"flashinfer_trtllm", "flashinfer_trtllm_routed"})
_NVFP4_RUNNERS_WITH_ONE_SCALE = _TRTLLM_RUNNERS | {"flashinfer_megamoe"}
_MXFP4_WIDTH_ALIGNMENT = 128
_MXFP4_HIDDEN_ALIGNMENT = 256
_VOCAB_ALIGNMENT = 64  # layers/vocab_parallel_embedding.py


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """Bytes that one rank holds of one layer's parts: of a mean layer for attention, of one that has it for others."""

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
def layer_weights(model: Model, layout: Layout) -> LayerWeights:
    """Resident bytes of one layer on one rank, for an effective layout."""
    held: dict[Component, float] = dict.fromkeys(Component, 0.0)
    having: dict[Component, int] = dict.fromkeys(Component, 0)
    of_kind = _bytes_of_kinds(model, layout)
    for kind in model.layer_kinds:
        for component, size in of_kind[kind].items():
            held[component] += size
            having[component] += 1

    def mean(component: Component) -> float:
        return held[component] / max(1, having[component])

    return LayerWeights(
        attention=held[Component.ATTENTION] / model.num_layers,
        dense=mean(Component.DENSE),
        router=mean(Component.ROUTER),
        routed=mean(Component.ROUTED),
        shared=mean(Component.SHARED),
    )


def stage_weights(model: Model, layout: Layout, stage: int) -> dict[Component, int]:
    """Resident bytes by component on one rank of pipeline stage `stage`, for an effective layout."""
    held: dict[Component, float] = dict.fromkeys(Component, 0.0)
    of_kind = _bytes_of_kinds(model, layout)
    for layer in stage_layers(model.num_layers, layout.pp_size)[stage]:
        for component, size in of_kind[model.layer_kinds[layer]].items():
            held[component] += size
    is_first = stage == 0
    is_last = stage == layout.pp_size - 1
    architecture = ARCHITECTURES[model.architecture]
    has_inputs = is_first or not architecture.inputs_on_first_stage_only
    if is_first or (is_last and model.tie_word_embeddings and has_inputs):
        held[Component.EMBED] = embedding_bytes(model, layout)
    everywhere = architecture.head_on_every_stage
    # A tied head is a matrix of its own on the last of several stages (models/qwen3.py:579).
    is_tied = model.tie_word_embeddings and (everywhere or layout.pp_size == 1)
    if not is_tied and (is_last or everywhere):
        held[Component.LM_HEAD] = lm_head_bytes(model, layout)
    if model.vision is not None and has_inputs:
        widths = widths_of(model, layout)
        held[Component.VISION] = sum(_part_bytes(model, layout, part, widths) for part in model.vision.parts)
    draft = own_draft(model, layout)
    if is_last and draft is not None:
        held[Component.DRAFT] = sum(_block_bytes(model, layout, draft).values())
    return {component: round(size) for component, size in held.items()}


def own_draft(model: Model, layout: Layout) -> Block | None:
    """The model's own draft layer, where speculative decoding loads it: with the model's embedding and head
    (speculative/eagle_worker_v2.py, init_lm_head). None where it loads another or none.
    """
    return model.draft_layer if drafts_by_itself(layout) else None


def leaves_draft_out(model: Model, layout: Layout) -> bool:
    """Whether a draft model is loaded of which nothing is known here."""
    return needs_draft(layout) and own_draft(model, layout) is None


def weight_bytes_at_construction(model: Model, gpu: Gpu, layout: Layout, stage: int = 0) -> int:
    """Bytes of the parameters that one rank allocates before it loads the checkpoint, without a draft's: more than
    stays resident where experts carry what loading drops, less where it pads them.
    """
    held = stage_weights(model, layout, stage)
    resident = sum(held.values()) - held[Component.DRAFT]
    layers = stage_layers(model.num_layers, layout.pp_size)[stage]
    experts = [block.experts for block in model.blocks[layers.start : layers.stop] if block.experts is not None]
    return resident + round(sum(_staged_bytes(model, gpu, layout, some) for some in experts))


def _staged_bytes(model: Model, gpu: Gpu, layout: Layout, experts: Experts) -> float:
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


def attention_tp_size(model: Model, layout: Layout) -> int:
    """Ranks that attention is divided over: the whole world in models that ignore attention DP."""
    return layout.tp_size if ARCHITECTURES[model.architecture].ignores_attention_dp else layout.attn_tp_size


def experts_per_rank(model: Model, layout: Layout) -> float:
    return (model.num_experts + layout.ep_num_redundant_experts) / layout.ep_size


def embedding_bytes(model: Model, layout: Layout) -> float:
    """The slice of the embedding table on one rank, in bytes."""
    is_divided = layout.attn_dp_size > 1
    match ARCHITECTURES[model.architecture].embedding:
        case Embedding.WHOLE:
            ranks = 1
        case Embedding.WHOLE_UNDER_DP if is_divided:
            ranks = 1
        case _:
            ranks = attention_tp_size(model, layout) if is_divided else layout.tp_size
    return _vocab_rows(model, ranks) * model.hidden_size * model.bytes_per_param(Component.EMBED)


def lm_head_bytes(model: Model, layout: Layout) -> float:
    """The slice of the language model head on one rank, in bytes."""
    ranks = attention_tp_size(model, layout) if layout.enable_dp_lm_head else layout.tp_size
    return model.lm_head_storage.bytes_of(_vocab_rows(model, ranks), model.hidden_size, model.dtype_bytes)


def _vocab_rows(model: Model, ranks: int) -> int:
    alignment = _VOCAB_ALIGNMENT
    if math.ceil(model.vocab_size / alignment) * alignment % ranks:
        alignment *= ranks
    return math.ceil(model.vocab_size / alignment) * alignment // ranks


@lru_cache(maxsize=4096)
def _bytes_of_kinds(model: Model, layout: Layout) -> tuple[dict[Component, float], ...]:
    """What one rank holds of one layer of each kind, by component."""
    return tuple(_block_bytes(model, layout, block) for block in model.block_kinds)


def _block_bytes(model: Model, layout: Layout, block: Block) -> dict[Component, float]:
    widths = widths_of(model, layout)
    held: dict[Component, float] = {}
    for part in block.parts:
        size = _part_bytes(model, layout, part, widths)
        held[part.component] = held.get(part.component, 0.0) + size
    return held


def _part_bytes(model: Model, layout: Layout, part: Part, widths: Widths) -> float:
    if isinstance(part, Experts):
        return experts_per_rank(model, layout) * _expert_bytes(layout, part)
    return part.bytes_on(widths)


def _expert_bytes(layout: Layout, experts: Experts) -> float:
    """One routed expert's slice on one rank, as the MoE runner keeps it."""
    scheme = experts.storage.scheme
    width = math.ceil(experts.width / layout.moe_tp_size)
    hidden = experts.hidden_size
    runner = layout.moe_runner_backend
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
