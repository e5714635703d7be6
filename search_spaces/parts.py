"""What an engine builds of a decoder layer: projections, experts and plain tensors, and how each is split.

A `Block` lists its parts in the order of construction, so that the first one that cannot be split is the one that
stops a launch, and the bytes of all of them are what a rank holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Component(StrEnum):
    """The parts of a model that engines place, split and quantise separately."""

    EMBED = "embed"
    ATTENTION = "attention"
    DENSE = "dense"
    ROUTER = "router"
    ROUTED = "routed"
    SHARED = "shared"
    VISION = "vision"
    OTHER = "other"
    LM_HEAD = "lm_head"
    DRAFT = "draft"
    """The layer that drafts tokens for the model itself, with speculative decoding."""


class Scheme(StrEnum):
    """How weights are stored."""

    NONE = "none"
    FP8_BLOCK = "fp8-block"
    FP8_CHANNEL = "fp8-channel"
    FP8_TENSOR = "fp8-tensor"
    INT4_GROUP = "int4-group"
    NVFP4 = "nvfp4"
    MXFP4 = "mxfp4"
    MXFP8 = "mxfp8"


@dataclass(frozen=True, slots=True)
class Storage:
    """group_size: weights that share a scale: the edge of the square block for FP8_BLOCK (128), the group along the
    input for INT4_GROUP (32), NVFP4 (16), MXFP4 and MXFP8 (32); 0 where it does not apply.
    staged_scale_bytes: of one scale of an FP4 group before the checkpoint is loaded, in most kernels; one byte stays.
    """

    scheme: Scheme = Scheme.NONE
    group_size: int = 0
    staged_scale_bytes: int = 1

    def bytes_of(self, rows: int, columns: int, element_bytes: int) -> float:
        """`rows` outputs by `columns` inputs with their scales; `element_bytes` where they are not quantised."""
        size: float = rows * columns
        match self.scheme:
            case Scheme.NONE:
                size *= element_bytes
            case Scheme.NVFP4 | Scheme.MXFP4 | Scheme.INT4_GROUP:
                size /= 2
            case Scheme.FP8_BLOCK | Scheme.FP8_CHANNEL | Scheme.FP8_TENSOR | Scheme.MXFP8:
                pass
        return size + self._scales_bytes(rows, columns)

    def _scales_bytes(self, rows: int, columns: int) -> float:
        group = self.group_size
        match self.scheme:
            case Scheme.NONE | Scheme.FP8_TENSOR:
                return 0
            case Scheme.FP8_BLOCK:
                return 4 * math.ceil(rows / group) * math.ceil(columns / group)
            case Scheme.FP8_CHANNEL:
                return 4 * rows
            case Scheme.INT4_GROUP:
                return 2 * rows * columns / group
            case Scheme.NVFP4 | Scheme.MXFP4 | Scheme.MXFP8:
                return rows * (columns // group)


PLAIN = Storage()


class Ranks(StrEnum):
    """The group of ranks that a part is divided over."""

    ONE = "one"
    WORLD = "world"
    ATTENTION = "attention"
    DENSE = "dense"
    SHARED = "shared"
    VISION = "vision"


class Widths(NamedTuple):
    """How many ranks divide each kind of part under one layout; `experts` tells into how many groups they go."""

    world: int
    attention: int
    dense: int
    shared: int
    vision: int
    moe_tp: int
    ep: int

    def of(self, ranks: Ranks) -> int:
        match ranks:
            case Ranks.ONE:
                return 1
            case Ranks.WORLD:
                return self.world
            case Ranks.ATTENTION:
                return self.attention
            case Ranks.DENSE:
                return self.dense
            case Ranks.SHARED:
                return self.shared
            case Ranks.VISION:
                return self.vision


class Split(StrEnum):
    OUTPUTS = "outputs"
    INPUTS = "inputs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """One linear module.

    outputs: widths of the parts merged along the output; each is divided by itself.
    kv_heads, kv_outputs: widths of one KV head's keys and values, held by each rank for its share of the KV heads, at
        least one of them.
    ranks: what divides it, along `split`.
    has_bias: one number an output, in the checkpoint's own type.
    element_bytes: of a weight that is not quantised.
    may_cut_blocks: whether the engine lets FP8 blocks be cut between ranks (`skip_block_quant_check`).
    """

    component: Component
    outputs: tuple[int, ...]
    inputs: int
    ranks: Ranks = Ranks.ONE
    split: Split = Split.OUTPUTS
    kv_heads: int = 0
    kv_outputs: tuple[int, ...] = ()
    has_bias: bool = False
    element_bytes: int = 2
    storage: Storage = PLAIN
    may_cut_blocks: bool = False

    @property
    def params(self) -> int:
        return (sum(self.outputs) + self.kv_heads * sum(self.kv_outputs)) * self.inputs

    def output_sizes(self, count: int) -> tuple[int, ...]:
        """Widths of the merged parts on one of `count` ranks."""
        if self.split is Split.INPUTS:
            return self.outputs
        heads = max(1, self.kv_heads // count)
        return (*(width // count for width in self.outputs), *(heads * width for width in self.kv_outputs))

    def input_size(self, count: int) -> int:
        return self.inputs // count if self.split is Split.INPUTS else self.inputs

    def divides(self, count: int) -> bool:
        sides = (self.inputs,) if self.split is Split.INPUTS else self.outputs
        return all(width % count == 0 for width in sides)

    def bytes_on(self, widths: Widths) -> float:
        count = widths.of(self.ranks)
        rows = sum(self.output_sizes(count))
        bias = rows * 2 if self.has_bias else 0
        return self.storage.bytes_of(rows, self.input_size(count), self.element_bytes) + bias


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """Numbers that are no projection: norms, biases of routers, a convolution."""

    component: Component
    size: int
    element_bytes: int = 2
    ranks: Ranks = Ranks.ONE

    def bytes_on(self, widths: Widths) -> float:
        return self.size * self.element_bytes / widths.of(self.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The routed experts of one layer.

    hidden_size: width of what goes in and comes out: the model's, or that of a latent space.
    num_inner: projections into `width`: gate and up, or up alone.
    """

    count: int
    width: int
    hidden_size: int
    component: Component = Component.ROUTED
    num_inner: int = 2
    has_bias: bool = False
    storage: Storage = PLAIN
    element_bytes: int = 2

    def bytes_on(self, widths: Widths) -> float:
        """Without what a kernel pads or adds; whole experts lie on a rank of EP, slices on one of MoE-TP."""
        return self.count / widths.ep * self.bytes_of_one(self.width // widths.moe_tp, self.hidden_size)

    def bytes_of_one(self, width: int, hidden_size: int) -> float:
        """One expert, or its slice of `width`."""
        inner = self.num_inner * width
        size = self.storage.bytes_of(inner, hidden_size, self.element_bytes)
        size += self.storage.bytes_of(hidden_size, width, self.element_bytes)
        return size + (inner + hidden_size) * 2 if self.has_bias else size


Part = Projection | Tensor | Experts


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Attention heads of a layer as the engine divides them; `num_kv` 0 where keys and values are one latent.

    is_asserted: whether the class itself checks that they divide, before its projections do.
    """

    num_query: int
    num_kv: int
    ranks: Ranks = Ranks.ATTENTION
    is_asserted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCache:
    """What a layer keeps of each token.

    num_heads: KV heads that attention ranks divide; 1 for a latent, which every rank keeps whole.
    values: numbers of one head's keys and values together.
    window: tokens that are kept; 0: all.
    index_values: numbers that a sparse indexer keeps of each token, on every rank whole.
    is_compressed, compress_ratio: whether only the last tokens are kept as they are, and besides them one latent for
        so many tokens; ratio 0: none (DeepSeek-V4).
    """

    num_heads: int
    values: int
    window: int = 0
    index_values: int = 0
    is_compressed: bool = False
    compress_ratio: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttention:
    """A layer whose memory of the past is a state of fixed size (gated delta net, Mamba 2).

    num_key_heads, num_value_heads: divided over attention ranks; Mamba's groups and heads.
    state_values: numbers of one value head's recurrent state.
    conv_channels, conv_kernel: of the short convolution before it.
    state_size: of one of Mamba 2's groups; 0 elsewhere.
    shares_one_key_head: whether a single key head may lie on every rank: Mamba 2, unquantised.
    """

    num_key_heads: int
    num_value_heads: int
    state_values: int
    conv_channels: int
    conv_kernel: int
    shares_one_key_head: bool = False
    state_size: int = 0

    @property
    def is_mamba(self) -> bool:
        return self.state_size > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One kind of decoder layer."""

    parts: tuple[Part, ...]
    heads: Heads | None = None
    kv: KvCache | None = None
    linear_attention: LinearAttention | None = None

    @property
    def experts(self) -> Experts | None:
        return next((part for part in self.parts if isinstance(part, Experts)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vision:
    """A vision tower.

    num_layers, hidden_size: as the engine's memory default reads them.
    is_whole: every rank holds all of it.
    ranks: what divides its heads.
    layer_class: the engine's name of what is divided.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    parts: tuple[Part, ...]
    is_whole: bool = False
    ranks: Ranks = Ranks.VISION
    layer_class: str = "VisionAttention"
