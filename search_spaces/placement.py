"""Into how many parts a layout divides each part of a model, and what does not divide.

Everything here is asked again for every layout of a space, and depends on few numbers of it, so it is remembered.
Paths are under `sglang/srt/` of 0.5.23.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.parts import Component, Heads, LinearAttention, Part, Projection, Scheme, Split, Widths


def widths_of(model: Model, layout: Layout) -> Widths:
    """How many ranks divide each kind of part, for an effective layout."""
    tp = layout.tp_size
    return Widths(
        world=tp,
        attention=layout.attn_tp_size,
        dense=layout.moe_dense_tp_size or tp,
        shared=1 if shared_experts_are_whole(model, layout) else tp,
        vision=1 if model.vision is None or model.vision.is_whole else layout.attn_tp_size,
        moe_tp=layout.moe_tp_size,
        ep=layout.ep_size,
    )


def shared_experts_are_whole(model: Model, layout: Layout) -> bool:
    """Every all-to-all backend, and NVFP4's quantised all-gather (models/deepseek_v2.py:874)."""
    if layout.moe_a2a_backend not in ("none", "ascend_tp"):
        return True
    quantization = model.quantization
    return (
        quantization.scheme is Scheme.NVFP4
        and Component.ROUTED in quantization.components
        and layout.moe_runner_backend == "flashinfer_cutlass"
        and layout.attn_dp_size == layout.ep_size > 1
    )


@lru_cache(maxsize=4096)
def undivided_heads(model: Model, widths: Widths) -> Heads | None:
    """The first attention whose query heads do not divide over its ranks."""
    heads = (block.heads for block in model.block_kinds if block.heads is not None)
    return next((some for some in heads if some.num_query % widths.of(some.ranks) != 0), None)


@lru_cache(maxsize=4096)
def undivided_kv_heads(model: Model, widths: Widths) -> Heads | None:
    """The first attention whose KV heads neither divide over its ranks nor divide them."""

    def fits(heads: Heads) -> bool:
        ranks = widths.of(heads.ranks)
        if not heads.num_kv:
            return True
        return heads.num_kv % ranks == 0 if heads.num_kv >= ranks else ranks % heads.num_kv == 0

    heads = (block.heads for block in model.block_kinds if block.heads is not None)
    return next((some for some in heads if not fits(some)), None)


class LinearHeads(NamedTuple):
    """Heads of a linear-attention layer: `what` of them do not divide over `ranks`."""

    what: str
    number: int
    ranks: int
    engine_text: str = ""


@lru_cache(maxsize=4096)
def undivided_linear_heads(model: Model, widths: Widths) -> LinearHeads | None:
    ranks = widths.attention
    for block in model.block_kinds:
        linear = block.linear_attention
        if linear is None:
            continue
        shares_one = linear.shares_one_key_head and linear.num_key_heads == 1
        if linear.num_value_heads % ranks != 0:
            return LinearHeads("value heads", linear.num_value_heads, ranks, _mamba_text(linear, ranks))
        if linear.num_key_heads % ranks != 0 and not shares_one:
            return LinearHeads("key heads", linear.num_key_heads, ranks, _mamba_text(linear, ranks))
    return None


def _mamba_text(linear: LinearAttention, ranks: int) -> str:
    """What stops Mamba 2: its convolution, whose groups are first made as many as ranks, or the groups
    (configs/mamba_utils.py, layers/attention/mamba/mamba.py:249).
    """
    if not linear.is_mamba:
        return ""
    inner = linear.conv_channels - 2 * linear.num_key_heads * linear.state_size
    channels = inner + 2 * linear.state_size * (linear.num_key_heads if linear.num_key_heads % ranks == 0 else ranks)
    if channels % ranks != 0:
        return f"{channels} is not divisible by {ranks}"
    return "If tensor parallel world size does not divide num_groups, then num_groups must equal 1."


class Undivided(NamedTuple):
    """A width that `ranks` do not divide."""

    width: int
    ranks: int


@lru_cache(maxsize=8192)
def undivided(model: Model, widths: Widths, component: Component) -> Undivided | None:
    """The first projection of a component whose split side does not divide over its ranks."""
    for part in _projections(model, component):
        ranks = widths.of(part.ranks)
        sides = (part.inputs,) if part.split is Split.INPUTS else part.outputs
        for width in sides:
            if width % ranks != 0:
                return Undivided(width, ranks)
    return None


class OddBlock(NamedTuple):
    """One rank's part of a projection, along `side`, that is no whole number of `block`-wide FP8 blocks."""

    component: Component
    side: str
    size: int
    block: int

    @property
    def engine_text(self) -> str:
        """What the engine raises of it (layers/quantization/fp8.py:593-610)."""
        if self.side == "input":
            what, letter = "input_size_per_partition", "k"
        else:
            what, letter = "output_partition_size", "n"
        return f"Weight {what} = {self.size} is not divisible by weight quantization block_{letter} = {self.block}."


@lru_cache(maxsize=8192)
def odd_block(
    model: Model, widths: Widths, components: tuple[Component, ...], *, online_block: int = 0
) -> OddBlock | None:
    """The first part of a block-FP8 projection that is cut inside a block (layers/quantization/fp8.py:568).

    Outputs are checked where the projection is split along them or merges several, inputs where it is split
    along those. online_block: the block that unquantised projections are quantised in while they load; 0: they
    stay as they are.
    """
    for component in components:
        for part in _projections(model, component):
            block = part.storage.group_size if part.storage.scheme is Scheme.FP8_BLOCK else 0
            block = online_block if part.storage.scheme is Scheme.NONE else block
            found = None if block == 0 or part.may_cut_blocks else _odd_part(part, widths, block)
            if found is not None:
                return found
    return None


def _odd_part(part: Projection, widths: Widths, block: int) -> OddBlock | None:
    ranks = widths.of(part.ranks)
    if part.split is Split.INPUTS:
        size = part.input_size(ranks)
        return OddBlock(part.component, "input", size, block) if ranks > 1 and size % block else None
    sizes = part.output_sizes(ranks)
    if ranks == 1 and len(sizes) == 1:
        return None
    odd = next((size for size in sizes if size % block), None)
    return None if odd is None else OddBlock(part.component, "output", odd, block)


def _projections(model: Model, component: Component) -> list[Projection]:
    parts: list[Part] = [part for block in model.block_kinds for part in block.parts]
    if model.vision is not None:
        parts += model.vision.parts
    return [part for part in parts if isinstance(part, Projection) and part.component is component]
