"""What is served: the facts of a Mixture-of-Experts model that shape its layout, memory and speed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from search_spaces.parts import (
    PLAIN,
    Block,
    Component,
    LinearAttention,
    Projection,
    Ranks,
    Scheme,
    Storage,
    Vision,
    Widths,
)

__all__ = ["Component", "Indexer", "Mla", "Model", "Quantization", "Scheme"]


_remembered = lru_cache(maxsize=256)
"""For what is derived from all layers: a model is asked for it once for each of many layouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """scheme: storage of the quantised components.
    group_size: weights that share a scale: the edge of the square block for FP8_BLOCK (128), the group
        along the input for INT4_GROUP (32), NVFP4 (16) and MXFP4 (32); 0 where it does not apply.
    components: those stored that way; all others are in the checkpoint's own type.
    method: the engine's name of the checkpoint's method, e.g. `fp8`, `compressed-tensors`, `modelopt_fp4`; empty where
        there is none.
    is_in_config: whether `config.json` itself says so at its top level, where the engine's argument resolution looks;
        else it stands under `text_config` or in `hf_quant_config.json`.
    block_size: edge of the square weight blocks that the top level of `config.json` names; 0: none.
    """

    scheme: Scheme = Scheme.NONE
    group_size: int = 0
    components: frozenset[Component] = frozenset()
    method: str = ""
    is_in_config: bool = False
    block_size: int = 0

    @property
    def bytes_per_param(self) -> float:
        """Storage of one quantised parameter with its share of the scales, in bytes.

        FP8 blocks carry one fp32 scale a block, INT4 groups one bf16 scale, NVFP4 one fp8 scale and MXFP4
        one e8m0 scale a group.
        """
        match self.scheme:
            case Scheme.NONE:
                return 2.0
            case Scheme.FP8_BLOCK:
                return 1.0 + 4.0 / self.group_size**2
            case Scheme.FP8_CHANNEL | Scheme.FP8_TENSOR:
                return 1.0
            case Scheme.MXFP8:
                return 1.0 + 1.0 / self.group_size
            case Scheme.INT4_GROUP:
                return 0.5 + 2.0 / self.group_size
            case Scheme.NVFP4 | Scheme.MXFP4:
                return 0.5 + 1.0 / self.group_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Mla:
    """Multi-head latent attention: widths of its projections. `q_lora_rank` 0 means no query compression."""

    q_lora_rank: int
    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """DeepSeek sparse attention: a small scorer picks the `top_k` tokens that attention reads.

    shares_topk: whether some layers read the tokens that an earlier layer picked.
    """

    num_heads: int
    head_dim: int
    top_k: int
    shares_topk: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Architecture facts, from a `config.json`.

    num_layers counts decoder layers without multi-token-prediction heads; the first `num_dense_layers`
    of them have a plain MLP of width `dense_intermediate_size`, the others `num_experts` routed experts
    of width `moe_intermediate_size`, `experts_per_token` of them per token, and shared experts of total
    width `shared_intermediate_size` (0: none).
    dtype_bytes: bytes of an unquantised parameter (bf16 2, fp32 4).
    """

    name: str
    architecture: str
    num_layers: int
    num_dense_layers: int
    hidden_size: int
    vocab_size: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    mla: Mla | None
    indexer: Indexer | None
    num_experts: int
    experts_per_token: int
    moe_intermediate_size: int
    shared_intermediate_size: int
    dense_intermediate_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    dtype_bytes: int
    quantization: Quantization
    source: str
    sliding_window: int = 0
    """Tokens a sliding-window layer sees; 0: all layers are full attention."""
    num_sliding_layers: int = 0
    blocks: tuple[Block, ...] = ()
    """What the engine builds of each decoder layer, in order; like layers are one object."""
    vision: Vision | None = None
    state_dtype_bytes: int = 4
    """Bytes of one number of a linear-attention layer's recurrent state."""
    v_head_dim: int = 0
    """Width of a head's values, where grouped-query attention makes it another than `head_dim`; else `head_dim`."""
    has_attention_sinks: bool = False
    context_length: int = 0
    """Tokens a request may hold by default, as the engine reads it (utils/hf_transformers, get_context_length)."""
    lm_head_storage: Storage = PLAIN
    """How the language model head is stored: ModelOpt's checkpoints quantise it where they do not exclude it."""
    num_draft_layers: int | None = None
    """Layers for multi-token prediction that the checkpoint says to hold; None where it says nothing."""
    draft_layer: Block | None = None
    """The layer that drafts for the model, where the engine builds it like the decoder's last."""
    is_kda: bool = False
    """Whether the linear attention is Kimi's delta attention."""
    has_fp8_kv: bool = False
    """Whether the checkpoint asks for an FP8 KV cache, which the engine follows where `--kv-cache-dtype` is open."""

    def __hash__(self) -> int:
        return hash((self.name, self.source, self.num_layers, self.quantization.scheme))

    @property
    @_remembered
    def num_moe_layers(self) -> int:
        return sum(block.experts is not None for block in self.blocks)

    @property
    @_remembered
    def num_mlp_layers(self) -> int:
        """Layers with a plain MLP, alone or (Gemma 4) beside experts."""
        return sum(any(part.component is Component.DENSE for part in block.parts) for block in self.blocks)

    @property
    def is_moe(self) -> bool:
        return self.num_experts > 0

    @property
    @_remembered
    def linear_attention(self) -> LinearAttention | None:
        """The layers with a state of fixed size, where the model has some."""
        return next((block.linear_attention for block in self.blocks if block.linear_attention), None)

    @property
    @_remembered
    def block_kinds(self) -> tuple[Block, ...]:
        """The distinct decoder layers, in the order in which they first occur."""
        # Like layers are one object: to compare them by value would cost more than most of what is asked of them.
        return tuple({id(block): block for block in self.blocks}.values())

    @property
    @_remembered
    def layer_kinds(self) -> tuple[int, ...]:
        """For each decoder layer the place of its kind in `block_kinds`."""
        places: dict[int, int] = {}
        return tuple(places.setdefault(id(block), len(places)) for block in self.blocks)

    @property
    @_remembered
    def kind_counts(self) -> tuple[tuple[Block, int], ...]:
        """Each kind of decoder layer with the number of its layers."""
        return tuple((block, self.layer_kinds.count(kind)) for kind, block in enumerate(self.block_kinds))

    def bytes_per_param(self, component: Component) -> float:
        """Storage of one parameter of `component`, scales included, in bytes."""
        if component in self.quantization.components:
            return self.quantization.bytes_per_param
        return float(self.dtype_bytes)

    @property
    @_remembered
    def attention_params_split(self) -> float:
        """Attention parameters of a mean layer that are divided over attention-TP ranks (by heads)."""
        return self._params_per_layer(Component.ATTENTION, is_split=True)

    @property
    @_remembered
    def attention_params_replicated(self) -> float:
        """Attention parameters of a mean layer that every rank holds whole (MLA's down-projections, the indexer)."""
        return self._params_per_layer(Component.ATTENTION, is_split=False)

    def _params_per_layer(self, component: Component, *, is_split: bool) -> float:
        sizes = [
            sum(
                part.params
                for part in block.parts
                if isinstance(part, Projection)
                and part.component is component
                and (part.ranks is not Ranks.ONE) is is_split
            )
            for block in self.block_kinds
        ]
        return sum(sizes[kind] for kind in self.layer_kinds) / self.num_layers

    @property
    @_remembered
    def expert_params(self) -> int:
        """Parameters of one routed expert of one layer: gate, up and down projections."""
        experts = next((block.experts for block in self.block_kinds if block.experts is not None), None)
        return 0 if experts is None else (experts.num_inner + 1) * experts.hidden_size * experts.width

    @property
    @_remembered
    def shared_params(self) -> float:
        return self._params_per_layer(Component.SHARED, is_split=True) * self.num_layers / max(1, self.num_moe_layers)

    @property
    @_remembered
    def dense_params(self) -> float:
        return self._params_per_layer(Component.DENSE, is_split=True) * self.num_layers / max(1, self.num_mlp_layers)

    @property
    def router_params(self) -> int:
        return self.hidden_size * self.num_experts

    @property
    def embedding_params(self) -> int:
        return self.hidden_size * self.vocab_size

    @property
    @_remembered
    def weight_bytes(self) -> float:
        """All weights once, in bytes: what loading reads."""
        whole = Widths(world=1, attention=1, dense=1, shared=1, vision=1, moe_tp=1, ep=1)
        of_kind = [sum(part.bytes_on(whole) for part in block.parts) for block in self.block_kinds]
        size = sum(of_kind[kind] for kind in self.layer_kinds)
        if self.vision is not None:
            size += sum(part.bytes_on(whole) for part in self.vision.parts)
        size += self.embedding_params * self.bytes_per_param(Component.EMBED)
        if not self.tie_word_embeddings:
            size += self.embedding_params * self.bytes_per_param(Component.LM_HEAD)
        return size

    def kv_values_per_token_layer(self, attn_tp_size: int) -> int:
        """KV-cache numbers that one rank keeps per token and full-attention layer.

        MLA keeps one latent per token on every rank, however attention is split (sglang 0.5.23
        mem_cache pools); GQA divides its KV heads over attention-TP and replicates the rest.
        """
        caches = [block.kv for block in self.block_kinds if block.kv is not None]
        full = [cache for cache in caches if not cache.window] or caches
        return max(
            (cache.values * max(1, cache.num_heads // max(attn_tp_size, 1)) for cache in full),
            default=0,
        )
