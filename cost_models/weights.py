"""Where weights lie: bytes of each component on one rank of one pipeline stage.

The rules are those of sglang 0.5.23: attention is divided over attention-TP, experts over EP x MoE-TP,
dense layers over the whole TP world, embeddings over TP (attention-TP under attention data parallelism),
and some padding and scale tensors come on top. Paths below are relative to `sglang/srt/`.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any

from cost_models.expert_weights import staged_bytes
from cost_models.part_weights import DRAFT, VISION, of_parts
from cost_models.sized_weights import NOTHING, Sized, plain_bytes, total_of
from search_spaces.architectures.table import ARCHITECTURES, Embedding
from search_spaces.hardware import Gpu
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.parts import Block, Component
from search_spaces.placement import widths_of
from search_spaces.sglang.speculation import drafts_by_itself, needs_draft
from search_spaces.sglang.versions import NEWEST, EngineVersion, release_0_5

_MARLIN_DROPS_SCALES_SINCE = release_0_5(16)
"""Before, DeepSeek-V4's FP4 experts under Marlin keep the FP32 scales that were loaded beside those that Marlin reads
(layers/quantization/marlin_utils_fp4.py:316 of 0.5.13; released in :403 of 0.5.16)."""
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


placement_key = attrgetter(
    "tp_size",
    "pp_size",
    "attn_dp_size",
    "attn_cp_size",
    "ep_size",
    "moe_dp_size",
    "moe_a2a_backend",
    "moe_runner_backend",
    "moe_dense_tp_size",
    "enable_dp_lm_head",
    "ep_num_redundant_experts",
    "speculative_algorithm",
    "speculative_draft_model_path",
)
"""All of a layout that decides where weights lie: hashing these is much cheaper than hashing a layout."""


class Remembered(dict[tuple[Any, ...], Any]):
    """What has been computed for the keys seen last; emptied when full."""

    _MOST = 4096

    def keep(self, key: tuple[Any, ...], value: Any) -> None:
        if len(self) >= self._MOST:
            self.clear()
        self[key] = value


_LAYERS, _STAGES = Remembered(), Remembered()


def layer_weights(model: Model, layout: Layout) -> LayerWeights:
    """Resident bytes of one layer on one rank, for an effective layout."""
    key = (model, placement_key(layout))
    known: LayerWeights | None = _LAYERS.get(key)
    if known is None:
        known = _layer_weights(model, layout)
        _LAYERS.keep(key, known)
    return known


def _layer_weights(model: Model, layout: Layout) -> LayerWeights:
    numbers = _numbers_of_kinds(model, 1)[0]
    held: dict[Component, float] = dict.fromkeys(Component, 0.0)
    having: dict[Component, int] = dict.fromkeys(Component, 0)
    for number, kind in zip(numbers, _kinds(model, layout), strict=True):
        for component, size in kind.items():
            held[component] += number * size.total
            having[component] += number

    def mean(component: Component) -> float:
        return held[component] / max(1, having[component])

    return LayerWeights(
        attention=held[Component.ATTENTION] / model.num_layers,
        dense=mean(Component.DENSE),
        router=mean(Component.ROUTER),
        routed=mean(Component.ROUTED),
        shared=mean(Component.SHARED),
    )


def stage_weights(model: Model, layout: Layout, stage: int, version: EngineVersion = NEWEST) -> dict[Component, int]:
    """Resident bytes by component on one rank of pipeline stage `stage`, for an effective layout."""
    placed = placed_weights(model, layout, version)[stage]
    return {component: round(placed.get(component, NOTHING).total) for component in Component}


def placed_weights(model: Model, layout: Layout, version: EngineVersion = NEWEST) -> tuple[dict[Component, Sized], ...]:
    """Resident bytes of each component that one rank of each pipeline stage holds, for an effective layout."""
    keeps = version < _MARLIN_DROPS_SCALES_SINCE and layout.moe_runner_backend == "marlin"
    key = (model, keeps, placement_key(layout))
    known: tuple[dict[Component, Sized], ...] | None = _STAGES.get(key)
    if known is None:
        known = tuple(_placed(model, layout, keeps_scales=keeps))
        _STAGES.keep(key, known)
    return known


def _placed(model: Model, layout: Layout, *, keeps_scales: bool) -> list[dict[Component, Sized]]:
    kinds = _kinds(model, layout, keeps_scales=keeps_scales)
    architecture = ARCHITECTURES[model.architecture]
    everywhere = architecture.head_on_every_stage
    draft = own_draft(model, layout)
    layers: dict[tuple[int, ...], dict[Component, Sized]] = {}
    stages = []
    for stage, numbers in enumerate(_numbers_of_kinds(model, layout.pp_size)):
        if numbers not in layers:
            layers[numbers] = _times(numbers, kinds)
        held = dict(layers[numbers])
        is_first = stage == 0
        is_last = stage == layout.pp_size - 1
        has_inputs = is_first or not architecture.inputs_on_first_stage_only
        if is_first or (is_last and model.tie_word_embeddings and has_inputs):
            held[Component.EMBED] = _embedding(model, layout)
        # A tied head is a matrix of its own on the last of several stages (models/qwen3.py:579).
        is_tied = model.tie_word_embeddings and (everywhere or layout.pp_size == 1)
        if not is_tied and (is_last or everywhere):
            held[Component.LM_HEAD] = _lm_head(model, layout)
        if model.vision is not None and has_inputs:
            held[Component.VISION] = total_of(of_parts(model, layout, VISION, widths_of(model, layout)).values())
        if is_last and draft is not None:
            held[Component.DRAFT] = total_of(of_parts(model, layout, DRAFT, widths_of(model, layout)).values())
        stages.append(held)
    return stages


def _times(numbers: tuple[int, ...], kinds: list[dict[Component, Sized]]) -> dict[Component, Sized]:
    """So many layers of each kind together."""
    held: dict[Component, Sized] = {}
    for number, kind in zip(numbers, kinds, strict=True):
        if number:
            for component, size in kind.items():
                held[component] = held.get(component, NOTHING) + size.times(number)
    return held


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
    return resident + round(sum(staged_bytes(model, gpu, layout, some) for some in experts))


def attention_tp_size(model: Model, layout: Layout) -> int:
    """Ranks that attention is divided over: the whole world in models that ignore attention DP."""
    return layout.tp_size if ARCHITECTURES[model.architecture].ignores_attention_dp else layout.attn_tp_size


def _embedding(model: Model, layout: Layout) -> Sized:
    is_divided = layout.attn_dp_size > 1
    match ARCHITECTURES[model.architecture].embedding:
        case Embedding.WHOLE:
            ranks = 1
        case Embedding.WHOLE_UNDER_DP if is_divided:
            ranks = 1
        case _:
            ranks = attention_tp_size(model, layout) if is_divided else layout.tp_size
    row = model.hidden_size * model.bytes_per_param(Component.EMBED)
    rows = _vocab_rows(model, ranks)
    return Sized(rows * row, (rows - model.vocab_size / ranks) * row)


def lm_head_bytes(model: Model, layout: Layout) -> float:
    """The slice of the language model head on one rank, in bytes."""
    return _lm_head(model, layout).total


def _lm_head(model: Model, layout: Layout) -> Sized:
    ranks = attention_tp_size(model, layout) if layout.enable_dp_lm_head else layout.tp_size
    size = model.lm_head_storage.bytes_of(_vocab_rows(model, ranks), model.hidden_size, model.dtype_bytes)
    plain = plain_bytes(model.lm_head_storage, model.vocab_size / ranks * model.hidden_size, model.dtype_bytes)
    return Sized(size, size - plain)


def _vocab_rows(model: Model, ranks: int) -> int:
    alignment = _VOCAB_ALIGNMENT
    if math.ceil(model.vocab_size / alignment) * alignment % ranks:
        alignment *= ranks
    return math.ceil(model.vocab_size / alignment) * alignment // ranks


@lru_cache(maxsize=512)
def _numbers_of_kinds(model: Model, pp_size: int) -> tuple[tuple[int, ...], ...]:
    """How many layers of each kind each pipeline stage has."""
    found = []
    for layers in stage_layers(model.num_layers, pp_size):
        numbers = Counter(model.layer_kinds[layers.start : layers.stop])
        found.append(tuple(numbers[kind] for kind in range(len(model.block_kinds))))
    return tuple(found)


def _kinds(model: Model, layout: Layout, *, keeps_scales: bool = False) -> list[dict[Component, Sized]]:
    """What one rank holds of one layer of each kind, by component."""
    widths = widths_of(model, layout)
    return [of_parts(model, layout, kind, widths, keeps_scales=keeps_scales) for kind in range(len(model.block_kinds))]
