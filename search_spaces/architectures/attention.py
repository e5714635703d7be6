"""Attention as projections: grouped queries, and DeepSeek's latent attention with and without an indexer."""

from __future__ import annotations

from dataclasses import dataclass

from search_spaces.architectures.reading import Checkpoint
from search_spaces.parts import Component, Heads, KvCache, Part, Projection, Ranks, Split, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """What a block needs of its attention."""

    parts: tuple[Part, ...]
    heads: Heads
    kv: KvCache


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedQueries:
    """Shape of grouped-query attention.

    has_gate: whether queries carry an output gate of their own width.
    has_norms: whether each head's queries and keys are normalised.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int = 0
    window: int = 0
    has_gate: bool = False
    has_bias: bool = False
    has_output_bias: bool = False
    has_norms: bool = False
    ranks: Ranks = Ranks.ATTENTION
    module: str = "self_attn"
    may_cut_blocks: bool = False


def grouped_queries(checkpoint: Checkpoint, layer: int, shape: GroupedQueries) -> Attention:
    values = shape.v_head_dim or shape.head_dim
    bytes_each = checkpoint.dtype_bytes
    parts: list[Part] = [
        Projection(
            component=Component.ATTENTION,
            outputs=(shape.num_heads * shape.head_dim * (2 if shape.has_gate else 1),),
            kv_heads=shape.num_kv_heads,
            kv_outputs=(shape.head_dim, values),
            inputs=checkpoint.hidden_size,
            ranks=shape.ranks,
            has_bias=shape.has_bias,
            element_bytes=bytes_each,
            storage=checkpoint.storage(layer, f"{shape.module}.q_proj"),
            may_cut_blocks=shape.may_cut_blocks,
        ),
        Projection(
            component=Component.ATTENTION,
            outputs=(checkpoint.hidden_size,),
            inputs=shape.num_heads * values,
            ranks=shape.ranks,
            split=Split.INPUTS,
            has_bias=shape.has_output_bias,
            element_bytes=bytes_each,
            storage=checkpoint.storage(layer, f"{shape.module}.o_proj"),
        ),
    ]
    if shape.has_norms:
        parts.append(Tensor(component=Component.ATTENTION, size=2 * shape.head_dim, element_bytes=bytes_each))
    return Attention(
        parts=tuple(parts),
        heads=Heads(num_query=shape.num_heads, num_kv=shape.num_kv_heads, ranks=shape.ranks),
        kv=KvCache(num_heads=shape.num_kv_heads, values=shape.head_dim + values, window=shape.window),
    )


def latent_attention(checkpoint: Checkpoint, layer: int) -> Attention:
    """Multi-head latent attention (models/deepseek_v2.py:2057), with the sparse indexer where the layer has one."""
    f, hidden, bytes_each = checkpoint.fields, checkpoint.hidden_size, checkpoint.dtype_bytes
    heads = f.count("num_attention_heads")
    q_rank = f.count("q_lora_rank", default=0)
    kv_rank, rope = f.count("kv_lora_rank"), f.count("qk_rope_head_dim")
    nope, values = f.count("qk_nope_head_dim"), f.count("v_head_dim")

    def projection(
        outputs: tuple[int, ...], inputs: int, module: str, ranks: Ranks = Ranks.ATTENTION, split: Split = Split.OUTPUTS
    ) -> Projection:
        return Projection(
            component=Component.ATTENTION,
            outputs=outputs,
            inputs=inputs,
            ranks=ranks,
            split=split,
            element_bytes=bytes_each,
            storage=checkpoint.storage(layer, f"self_attn.{module}"),
        )

    parts: list[Part] = []
    if q_rank:
        parts.append(projection((q_rank + kv_rank + rope,), hidden, "q_a_proj", Ranks.ONE))
        parts.append(projection((heads * (nope + rope),), q_rank, "q_b_proj"))
    else:
        parts.append(projection((heads * (nope + rope),), hidden, "q_proj"))
        parts.append(projection((kv_rank + rope,), hidden, "kv_a_proj_with_mqa", Ranks.ONE))
    if has_indexer(checkpoint, layer):
        index_heads, index_dim = f.count("index_n_heads"), f.count("index_head_dim")
        parts += [
            projection((index_heads * index_dim,), q_rank, "indexer.wq_b", Ranks.ONE),
            projection((index_dim,), hidden, "indexer.wk", Ranks.ONE),
            # layers/attention/dsa/dsa_indexer.py builds the heads' weights without a quantisation method
            Tensor(component=Component.ATTENTION, size=index_heads * hidden, element_bytes=bytes_each),
        ]
    parts += [
        projection((heads * (nope + values),), kv_rank, "kv_b_proj"),
        projection((hidden,), heads * values, "o_proj", split=Split.INPUTS),
        Tensor(component=Component.ATTENTION, size=q_rank + kv_rank, element_bytes=bytes_each),
    ]
    return Attention(
        parts=tuple(parts),
        heads=Heads(num_query=heads, num_kv=0),
        kv=KvCache(
            num_heads=1,
            values=kv_rank + rope,
            index_values=f.count("index_head_dim") if has_indexer(checkpoint, layer) else 0,
        ),
    )


def has_indexer(checkpoint: Checkpoint, layer: int) -> bool:
    """Some layers of GLM-5.2 read the tokens that an earlier layer's indexer picked."""
    f = checkpoint.fields
    if f.architecture() not in SPARSE_LATENT:
        return False
    kinds = f.listed("indexer_types")
    return layer >= len(kinds) or kinds[layer] != "shared"


SPARSE_LATENT = frozenset({"DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"})
"""Classes whose latent attention reads only the tokens an indexer picks (configs/model_config.py is_deepseek_dsa)."""
