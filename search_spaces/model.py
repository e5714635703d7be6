"""What is served: the facts of a Mixture-of-Experts model that shape its layout, memory and speed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Component(StrEnum):
    """The parts of a model that engines place, split and quantise separately."""

    EMBED = "embed"
    ATTENTION = "attention"
    DENSE = "dense"
    ROUTER = "router"
    ROUTED = "routed"
    SHARED = "shared"
    LM_HEAD = "lm_head"


class Scheme(StrEnum):
    """How weights are stored."""

    NONE = "none"
    FP8_BLOCK = "fp8-block"
    FP8_CHANNEL = "fp8-channel"
    INT4_GROUP = "int4-group"
    NVFP4 = "nvfp4"
    MXFP4 = "mxfp4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """scheme: storage of the quantised components.
    group_size: weights that share a scale: the edge of the square block for FP8_BLOCK (128), the group
        along the input for INT4_GROUP (32), NVFP4 (16) and MXFP4 (32); 0 where it does not apply.
    components: those stored that way; all others are in the checkpoint's own type.
    """

    scheme: Scheme = Scheme.NONE
    group_size: int = 0
    components: frozenset[Component] = frozenset()

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
            case Scheme.FP8_CHANNEL:
                return 1.0
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
    """DeepSeek sparse attention: a small scorer picks the `top_k` tokens that attention reads."""

    num_heads: int
    head_dim: int
    top_k: int


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

    @property
    def num_moe_layers(self) -> int:
        return self.num_layers - self.num_dense_layers

    def bytes_per_param(self, component: Component) -> float:
        """Storage of one parameter of `component`, scales included, in bytes."""
        if component in self.quantization.components:
            return self.quantization.bytes_per_param
        return float(self.dtype_bytes)

    @property
    def attention_params_split(self) -> int:
        """Attention parameters of one layer that are divided over attention-TP ranks (by heads)."""
        heads = self.num_attention_heads
        if self.mla is None:
            return self.hidden_size * self.head_dim * (2 * heads + 2 * self.num_kv_heads)
        m = self.mla
        q_in = m.q_lora_rank or self.hidden_size
        return heads * (
            q_in * (m.qk_nope_head_dim + m.qk_rope_head_dim)
            + m.kv_lora_rank * (m.qk_nope_head_dim + m.v_head_dim)
            + m.v_head_dim * self.hidden_size
        )

    @property
    def attention_params_replicated(self) -> int:
        """Attention parameters of one layer that every rank holds whole (MLA's down-projections, the indexer)."""
        if self.mla is None:
            return 0
        m = self.mla
        down = self.hidden_size * (m.q_lora_rank + m.kv_lora_rank + m.qk_rope_head_dim)
        if self.indexer is None:
            return down
        i = self.indexer
        return down + m.q_lora_rank * i.num_heads * i.head_dim + self.hidden_size * (i.head_dim + i.num_heads)

    @property
    def expert_params(self) -> int:
        """Parameters of one routed expert of one layer: gate, up and down projections."""
        return 3 * self.hidden_size * self.moe_intermediate_size

    @property
    def shared_params(self) -> int:
        return 3 * self.hidden_size * self.shared_intermediate_size

    @property
    def dense_params(self) -> int:
        return 3 * self.hidden_size * self.dense_intermediate_size

    @property
    def router_params(self) -> int:
        return self.hidden_size * self.num_experts

    @property
    def embedding_params(self) -> int:
        return self.hidden_size * self.vocab_size

    @property
    def weight_bytes(self) -> float:
        """All weights once, in bytes: what loading reads."""
        per_layer = (self.attention_params_split + self.attention_params_replicated) * self.bytes_per_param(
            Component.ATTENTION
        )
        moe_layer = (
            self.num_experts * self.expert_params * self.bytes_per_param(Component.ROUTED)
            + self.shared_params * self.bytes_per_param(Component.SHARED)
            + self.router_params * self.bytes_per_param(Component.ROUTER)
        )
        ends = self.embedding_params * self.bytes_per_param(Component.EMBED)
        if not self.tie_word_embeddings:
            ends += self.embedding_params * self.bytes_per_param(Component.LM_HEAD)
        return (
            self.num_layers * per_layer
            + self.num_moe_layers * moe_layer
            + self.num_dense_layers * self.dense_params * self.bytes_per_param(Component.DENSE)
            + ends
        )

    def kv_values_per_token_layer(self, attn_tp_size: int) -> int:
        """KV-cache numbers that one rank keeps per token and layer.

        MLA keeps one latent per token on every rank, however attention is split (sglang 0.5.23
        mem_cache pools); GQA divides its KV heads over attention-TP and replicates the rest.
        """
        if self.mla is not None:
            return self.mla.kv_lora_rank + self.mla.qk_rope_head_dim
        return 2 * self.head_dim * max(1, self.num_kv_heads // max(attn_tp_size, 1))
