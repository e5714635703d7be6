"""Decoder layers of grouped-query attention and a plain or expert feed-forward part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from search_spaces.architectures.attention import Attention, GroupedQueries, grouped_queries
from search_spaces.architectures.mlp import experts, mlp, norms, router
from search_spaces.architectures.reading import Checkpoint, Fields
from search_spaces.parts import Block, Component, Part, Ranks, Tensor


def heads_of(fields: Fields) -> tuple[int, int, int]:
    """(query heads, KV heads, width of one)."""
    heads = fields.count("num_attention_heads")
    return (
        heads,
        fields.count("num_key_value_heads", default=heads),
        fields.count("head_dim", default=fields.count("hidden_size") // heads),
    )


def window_of(fields: Fields, layer: int) -> int:
    """Tokens that a layer sees where `layer_types` calls it sliding; 0: all."""
    kinds = fields.listed("layer_types")
    is_sliding = layer < len(kinds) and kinds[layer] == "sliding_attention"
    return fields.count("sliding_window", default=0) if is_sliding else 0


def attention_of(checkpoint: Checkpoint, layer: int, **shape: Any) -> Attention:
    heads, kv_heads, head_dim = heads_of(checkpoint.fields)
    plain = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim}
    return grouped_queries(checkpoint, layer, GroupedQueries(**{**plain, **shape}))


def block_of(checkpoint: Checkpoint, attention: Attention, feed_forward: Sequence[Part], num_norms: int = 2) -> Block:
    return Block(
        parts=(*attention.parts, *feed_forward, norms(checkpoint, num_norms)),
        heads=attention.heads,
        kv=attention.kv,
    )


def dense(checkpoint: Checkpoint, layer: int) -> Block:
    """Llama, Qwen3 and its vision sibling (models/llama.py, qwen3.py)."""
    f = checkpoint.fields
    attention = attention_of(
        checkpoint,
        layer,
        has_norms=f.architecture().startswith("Qwen3"),
        # models/llama.py:181 splits attention over the whole world, whatever attention data parallelism says.
        ranks=Ranks.WORLD if f.architecture() == "LlamaForCausalLM" else Ranks.ATTENTION,
        has_bias=f.flag("attention_bias"),
    )
    return block_of(checkpoint, attention, mlp(checkpoint, layer, "mlp", f.count("intermediate_size")))


def qwen_moe(checkpoint: Checkpoint, layer: int) -> Block:
    """Qwen3 (models/qwen3_moe.py); Qwen2 and Qwen3-Next add a gated shared expert (qwen2_moe.py)."""
    f = checkpoint.fields
    is_old = f.architecture().startswith("Qwen2")
    attention = attention_of(
        checkpoint, layer, has_norms=not is_old, has_bias=f.flag("qkv_bias", default=is_old) or f.flag("attention_bias")
    )
    return block_of(checkpoint, attention, qwen_feed_forward(checkpoint, layer))


def qwen_feed_forward(checkpoint: Checkpoint, layer: int) -> tuple[Part, ...]:
    f = checkpoint.fields
    step = f.count("decoder_sparse_step", default=1) or 1
    count = f.whole("num_experts", default=None if "Moe" in f.architecture() else 0)
    if layer in f.listed("mlp_only_layers") or (layer + 1) % step != 0 or not count:
        return mlp(checkpoint, layer, "mlp", f.count("intermediate_size"))
    parts: tuple[Part, ...] = (
        experts(checkpoint, layer, count=count, width=f.count("moe_intermediate_size")),
        router(checkpoint, count),
    )
    shared = f.count("shared_expert_intermediate_size", default=0)
    if not shared:
        return parts
    return (
        *parts,
        *mlp(checkpoint, layer, "mlp.shared_expert", shared, component=Component.SHARED, ranks=Ranks.SHARED),
        Tensor(component=Component.SHARED, size=checkpoint.hidden_size, element_bytes=checkpoint.dtype_bytes),
    )


def glm4_moe(checkpoint: Checkpoint, layer: int) -> Block:
    """GLM-4.5 to 4.7 (models/glm4_moe.py)."""
    f = checkpoint.fields
    attention = attention_of(
        checkpoint, layer, has_norms=f.flag("use_qk_norm"), has_bias=f.flag("attention_bias", default=True)
    )
    if layer < f.count("first_k_dense_replace", default=0):
        return block_of(
            checkpoint, attention, mlp(checkpoint, layer, "mlp", f.count("intermediate_size"), ranks=Ranks.DENSE)
        )
    count, width = f.count("n_routed_experts", "num_experts"), f.count("moe_intermediate_size")
    feed_forward: tuple[Part, ...] = (
        router(checkpoint, count, element_bytes=4, has_bias=True),
        experts(checkpoint, layer, count=count, width=width),
    )
    shared = f.count("n_shared_experts", default=0) * width
    if shared:
        feed_forward += mlp(
            checkpoint, layer, "mlp.shared_experts", shared, component=Component.SHARED, ranks=Ranks.SHARED
        )
    return block_of(checkpoint, attention, feed_forward)


def gpt_oss(checkpoint: Checkpoint, layer: int) -> Block:
    """models/gpt_oss.py: biases everywhere, one attention sink a head."""
    f = checkpoint.fields
    has_bias = f.flag("attention_bias", default=True)
    attention = attention_of(checkpoint, layer, has_bias=has_bias, has_output_bias=has_bias, window=window_of(f, layer))
    count = f.count("num_local_experts", "num_experts")
    feed_forward: tuple[Part, ...] = (
        Tensor(
            component=Component.ATTENTION,
            size=f.count("num_attention_heads"),
            element_bytes=checkpoint.dtype_bytes,
            ranks=Ranks.ATTENTION,
        ),
        experts(checkpoint, layer, count=count, width=f.count("intermediate_size"), has_bias=True),
        router(checkpoint, count, has_bias=True),
    )
    return block_of(checkpoint, attention, feed_forward)


def mixtral(checkpoint: Checkpoint, layer: int) -> Block:
    """models/mixtral.py:137 splits attention over the whole world, whatever attention data parallelism says."""
    f = checkpoint.fields
    attention = attention_of(checkpoint, layer, ranks=Ranks.WORLD)
    count = f.count("num_local_experts")
    feed_forward = (
        router(checkpoint, count),
        experts(
            checkpoint,
            layer,
            count=count,
            width=f.count("intermediate_size"),
            module="block_sparse_moe.experts.0.w1",
        ),
    )
    return block_of(checkpoint, attention, feed_forward)
