"""What one rank holds of a group of a model's parts: a kind of decoder layer, the vision tower, the draft layer."""

from __future__ import annotations

from functools import lru_cache

from cost_models.expert_weights import experts_per_rank, one_expert
from cost_models.sized_weights import NOTHING, Sized, plain_bytes
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.parts import Component, Experts, Part, Projection, Ranks, Tensor, Widths

VISION, DRAFT = -1, -2
"""Groups of parts beside the kinds of decoder layers, which are counted from 0."""


def of_parts(
    model: Model, layout: Layout, group: int, widths: Widths, *, keeps_scales: bool = False
) -> dict[Component, Sized]:
    """What one rank holds of one group of parts, by component.

    A part depends on the number of ranks that divide it alone, so each is computed once for each such number.
    """
    held: dict[Component, Sized] = {}
    for ranks, experts in _groups(model, group):
        if experts is not None:
            size = one_expert(experts, layout.moe_tp_size, layout.moe_runner_backend, keeps_scales)
            size = size.times(experts_per_rank(model, layout))
            held[experts.component] = held.get(experts.component, NOTHING) + size
            continue
        for component, size in _divided(model, group, ranks, widths.of(ranks)):
            held[component] = held.get(component, NOTHING) + size
    return held


def _parts(model: Model, group: int) -> tuple[Part, ...]:
    if group == VISION:
        return () if model.vision is None else model.vision.parts
    block = model.draft_layer if group == DRAFT else model.block_kinds[group]
    return () if block is None else block.parts


@lru_cache(maxsize=1024)
def _groups(model: Model, group: int) -> tuple[tuple[Ranks, Experts | None], ...]:
    """The groups of ranks that parts are divided over, and each part with routed experts by itself."""
    parts = _parts(model, group)
    divided = {part.ranks for part in parts if not isinstance(part, Experts)}
    return (
        *((ranks, None) for ranks in Ranks if ranks in divided),
        *((Ranks.ONE, part) for part in parts if isinstance(part, Experts)),
    )


@lru_cache(maxsize=8192)
def _divided(model: Model, group: int, ranks: Ranks, count: int) -> tuple[tuple[Component, Sized], ...]:
    """What one of `count` ranks holds of the parts that are divided over `ranks`, by component."""
    held: dict[Component, Sized] = {}
    for part in _parts(model, group):
        if isinstance(part, Experts) or part.ranks is not ranks:
            continue
        held[part.component] = held.get(part.component, NOTHING) + _share(part, count)
    return tuple(held.items())


def _share(part: Projection | Tensor, count: int) -> Sized:
    if isinstance(part, Tensor):
        return Sized(part.size * part.element_bytes / count, 0.0)
    rows, columns = sum(part.output_sizes(count)), part.input_size(count)
    size = part.storage.bytes_of(rows, columns, part.element_bytes)
    scales = size - plain_bytes(part.storage, rows * columns, part.element_bytes)
    return Sized(size + (rows * 2 if part.has_bias else 0), scales)
