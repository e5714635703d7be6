"""What is said of memory beside the verdict: what is not counted, and the same model in a format that fits."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cost_models.rates import lacks_units
from cost_models.setting import ServingEngine
from search_spaces.catalogue import load_model, model_names
from search_spaces.model import Model
from search_spaces.sglang.uncounted import Effect, Uncounted
from search_spaces.verdict import Stage
from tuner.checking import Checked, Server, check_layout

_GIB = 2**30
_FORMAT = re.compile(r"-(?:fp8|nvfp4|mxfp4|int4|int8|awq)$")
"""How a catalogue name says in which format the same model is stored."""

_SHAPE = (
    "architecture",
    "num_layers",
    "num_dense_layers",
    "hidden_size",
    "vocab_size",
    "num_attention_heads",
    "num_kv_heads",
    "head_dim",
    "num_experts",
    "experts_per_token",
    "moe_intermediate_size",
    "shared_intermediate_size",
    "dense_intermediate_size",
)


def uncounted_notes(checked: Checked) -> list[str]:
    """What of the launch `memory` does not count, as far as it changes what is said of it."""
    if checked.memory is None:
        return []
    return list(_uncounted_notes(checked))


def _uncounted_notes(checked: Checked) -> Iterator[str]:
    excused = checked.excused
    if excused is not None:
        freeing = [each for each in checked.uncounted if each.may_free and excused.stage in each.stages]
        yield (
            f"{' and '.join(map(_said, freeing))}, which is not counted: memory is not judged; without "
            f"{'it' if len(freeing) == 1 else 'them'}, {excused.message.partition(';')[0]}"
        )
        return
    # Several options may say one thing.
    for each in {each.does: each for each in reversed(checked.uncounted)}.values():
        if checked.ended is None:
            yield f"{_said(each)}, which is not counted: {_LEFT[each.effect]}"
        elif each.may_free:
            yield f"{_said(each)}, {_no_help(each, checked.ended.stage)}"


_LEFT = {
    Effect.FREES: "less memory is needed than is said",
    Effect.ADDS: "it may not fit",
    Effect.EITHER: "what is said of memory is without it",
}


def _no_help(each: Uncounted, stage: Stage) -> str:
    return "which is not enough" if stage in each.stages else f"which does not help{stage.after_illegal}"


def _said(each: Uncounted) -> str:
    return f"{each.words} {each.does}"


def format_notes(checked: Checked) -> list[str]:
    """For a launch that is too large: the same model in a smaller format of the catalogue, where that fits."""
    if checked.ended is None:
        return []
    server, base = checked.server, _FORMAT.sub("", checked.server.model.name)
    smaller = sorted(
        (
            other
            for name in model_names()
            if name != server.model.name and _FORMAT.sub("", name) == base
            if _is_same_but_smaller(other := load_model(name), server.model)
            # Kernels that widen what the GPU cannot multiply are not sure to be there.
            and not lacks_units(other, server.cluster.gpu, ServingEngine.SGLANG)
        ),
        key=lambda other: -other.weight_bytes,
    )
    return next(([text] for other in smaller if (text := _if_it_fits(checked, other))), [])


def _is_same_but_smaller(other: Model, model: Model) -> bool:
    return other.weight_bytes < model.weight_bytes and all(getattr(other, n) == getattr(model, n) for n in _SHAPE)


def _if_it_fits(checked: Checked, other: Model) -> str:
    """Empty where the same launch of `other` is not sure to work."""
    asked = checked.server
    server = Server(model=other, cluster=asked.cluster, version=asked.version, env=asked.env)
    again = check_layout(checked.verdict.requested, server, others=checked.others, suggest=False)
    held = again.memory
    if not again.verdict.is_legal or not again.fits or held is None or again.is_tight or again.is_at_the_edge:
        return ""
    return (
        f"{other.name} would fit: {held.weight_bytes / _GIB:.1f} GiB of weights per GPU, {held.kv_tokens_total:,} "
        "tokens of KV cache"
    )
