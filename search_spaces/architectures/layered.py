"""Decoders whose layers differ in more than experts: sparse or sliding attention, heads or MLPs of two kinds."""

from __future__ import annotations

import reprlib
from dataclasses import replace
from typing import Any

from search_spaces.architectures.attention import Attention
from search_spaces.architectures.mlp import experts, mlp, router
from search_spaces.architectures.reading import Checkpoint, Fields
from search_spaces.architectures.transformer import attention_of, block_of, heads_of, window_of
from search_spaces.errors import MalformedError
from search_spaces.parts import Block, Component, Part, Projection, Ranks, Tensor


def minimax_m2(checkpoint: Checkpoint, layer: int) -> Block:
    """models/minimax_m2.py: norms over all heads at once, an fp32 router."""
    f = checkpoint.fields
    attention = attention_of(checkpoint, layer)
    heads, kv_heads, head_dim = heads_of(f)
    count = f.count("num_local_experts")
    feed_forward = (
        Tensor(
            component=Component.ATTENTION,
            size=(heads + kv_heads) * head_dim,
            element_bytes=checkpoint.dtype_bytes,
            ranks=Ranks.ATTENTION,
        ),
        experts(
            checkpoint,
            layer,
            count=count,
            width=f.count("moe_intermediate_size", "intermediate_size"),
            module="block_sparse_moe.experts.0.w1",
        ),
        router(checkpoint, count, element_bytes=4, has_bias=True),
    )
    return block_of(checkpoint, attention, feed_forward)


def minimax_m3(checkpoint: Checkpoint, layer: int) -> Block:
    """models/minimax_m3.py: block-sparse attention picked by an indexer of its own heads."""
    f = checkpoint.fields
    attention = attention_of(checkpoint, layer, has_norms=f.flag("use_qk_norm"))
    sparse = f.inner("sparse_attention_config")
    extra: tuple[Part, ...] = ()
    kv = attention.kv
    if sparse is not None and sparse.flag("use_sparse_attention") and _chosen(sparse, "sparse_attention_freq", layer):
        dim = sparse.count("sparse_index_dim")
        keeps_keys_only = _chosen(sparse, "sparse_disable_index_value", layer)
        kv = replace(kv, index_values=dim if keeps_keys_only else 2 * dim)
        # Query heads of the indexer are held like KV heads: at least one on each rank.
        extra = tuple(
            Projection(
                component=Component.ATTENTION,
                outputs=(),
                kv_heads=heads,
                kv_outputs=(dim,),
                inputs=checkpoint.hidden_size,
                ranks=Ranks.ATTENTION,
                element_bytes=checkpoint.dtype_bytes,
            )
            for heads in (sparse.count("sparse_num_index_heads"), 1)
        )
    if not _chosen(f, "moe_layer_freq", layer):
        width = f.count("dense_intermediate_size", "intermediate_size")
        return block_of(
            checkpoint, replace(attention, kv=kv), (*extra, *mlp(checkpoint, layer, "mlp", width, ranks=Ranks.DENSE))
        )
    count, width = f.count("num_local_experts"), f.count("moe_intermediate_size", "intermediate_size")
    feed_forward: tuple[Part, ...] = (
        *extra,
        experts(checkpoint, layer, count=count, width=width, module="block_sparse_moe.experts.0.w1"),
        router(checkpoint, count, has_bias=True),
    )
    if f.count("n_shared_experts", default=0):
        shared = f.count("shared_intermediate_size", default=width)
        feed_forward += mlp(
            checkpoint,
            layer,
            "block_sparse_moe.shared_experts",
            shared,
            component=Component.SHARED,
            ranks=Ranks.SHARED,
        )
    return block_of(checkpoint, replace(attention, kv=kv), feed_forward)


def _chosen(fields: Fields, key: str, layer: int) -> bool:
    """Whether a list names `layer` by something other than 0; where there is none, every layer."""
    return bool(fields.of_layer(key, layer)) if isinstance(fields.value(key), list) else True


_LLAMA4_FULL_EVERY = 4
"""Every fourth layer attends beyond its chunk (models/llama4.py, use_rope)."""


def llama4(checkpoint: Checkpoint, layer: int) -> Block:
    """models/llama4.py: experts in every n-th layer, each beside a shared one of the same width."""
    f = checkpoint.fields
    is_chunked = (layer + 1) % _LLAMA4_FULL_EVERY != 0
    window = f.count("attention_chunk_size", default=0) if is_chunked else 0
    attention = attention_of(checkpoint, layer, window=window)
    step = f.count("interleave_moe_layer_step", default=1)
    if not step or (layer + 1) % step != 0:
        return block_of(checkpoint, attention, mlp(checkpoint, layer, "feed_forward", f.count("intermediate_size_mlp")))
    count, width = f.count("num_local_experts"), f.count("intermediate_size")
    feed_forward = (
        router(checkpoint, count),
        experts(checkpoint, layer, count=count, width=width, module="feed_forward.experts.gate_up_proj"),
        *mlp(
            checkpoint,
            layer,
            "feed_forward.shared_expert",
            width,
            component=Component.SHARED,
            ranks=Ranks.WORLD,
        ),
    )
    return block_of(checkpoint, attention, feed_forward)


def gemma4(checkpoint: Checkpoint, layer: int) -> Block:
    """models/gemma4_causal.py: two head widths by layer, an MLP and experts side by side."""
    f = checkpoint.fields
    window = window_of(f, layer)
    shape: dict[str, Any] = {"has_norms": True, "window": window, "ranks": Ranks.WORLD}
    if not window:
        shape |= {
            "head_dim": f.count("global_head_dim", "head_dim"),
            "num_kv_heads": f.count("num_global_key_value_heads", "num_key_value_heads"),
        }
    attention = attention_of(checkpoint, layer, **shape)
    feed_forward: tuple[Part, ...] = mlp(checkpoint, layer, "mlp", f.count("intermediate_size"))
    count = f.count("num_experts", default=0) if f.flag("enable_moe_block") else 0
    if count:
        feed_forward += (
            router(checkpoint, count),
            experts(
                checkpoint,
                layer,
                count=count,
                width=f.count("moe_intermediate_size"),
                module="experts.0.gate_proj",
            ),
        )
    return block_of(checkpoint, attention, feed_forward, num_norms=8 if count else 4)


def mimo_v2(checkpoint: Checkpoint, layer: int) -> Block:
    """models/mimo_v2.py: sliding layers have KV heads of their own number, values narrower than keys."""
    f = checkpoint.fields
    pattern = f.listed("hybrid_layer_pattern")
    is_sliding = layer < len(pattern) and bool(pattern[layer])
    prefix = "swa_" if is_sliding else ""
    heads, kv_heads, head_dim = heads_of(f)
    attention = attention_of(
        checkpoint,
        layer,
        num_heads=f.count(f"{prefix}num_attention_heads", default=heads),
        num_kv_heads=f.count(f"{prefix}num_key_value_heads", default=kv_heads),
        head_dim=f.count(f"{prefix}head_dim", default=head_dim),
        v_head_dim=f.count(f"{prefix}v_head_dim", default=head_dim),
        may_cut_blocks=True,
        window=f.count("sliding_window", "sliding_window_size", default=0) if is_sliding else 0,
    )
    if not _chosen(f, "moe_layer_freq", layer):
        return block_of(
            checkpoint, attention, mlp(checkpoint, layer, "mlp", f.count("intermediate_size"), ranks=Ranks.DENSE)
        )
    count, width = f.count("n_routed_experts"), f.count("moe_intermediate_size")
    feed_forward: tuple[Part, ...] = (
        router(checkpoint, count, element_bytes=4, has_bias=True),
        experts(checkpoint, layer, count=count, width=width),
    )
    return block_of(checkpoint, attention, feed_forward)


def step3p5(checkpoint: Checkpoint, layer: int) -> Block:
    """models/step3p5.py: sliding layers have heads of their own number, one shared expert."""
    f = checkpoint.fields
    heads = f.count("num_attention_heads")
    kv_heads = f.count("num_attention_groups", "num_key_value_heads", default=heads)
    window = window_of(f, layer)
    other = f.inner("attention_other_setting")
    if window and other is not None:
        heads = other.count("num_attention_heads", default=0) or heads
        kv_heads = other.count("num_attention_groups", default=0) or kv_heads
    attention = attention_of(checkpoint, layer, num_heads=heads, num_kv_heads=kv_heads, has_norms=True, window=window)
    if f.flag("use_head_wise_attn_gate"):
        gate = Projection(
            component=Component.ATTENTION,
            outputs=(heads,),
            inputs=checkpoint.hidden_size,
            ranks=Ranks.ATTENTION,
            element_bytes=checkpoint.dtype_bytes,
        )
        attention = Attention(parts=(*attention.parts, gate), heads=attention.heads, kv=attention.kv)
    sparse = _listed_layers(f)
    has_experts = layer in sparse if sparse else layer >= f.count("first_k_dense_replace", default=0)
    if not has_experts:
        return block_of(checkpoint, attention, mlp(checkpoint, layer, "mlp", f.count("intermediate_size")))
    count, width = f.count("moe_num_experts", "num_experts"), f.count("moe_intermediate_size")
    feed_forward = (
        router(checkpoint, count, has_bias=f.flag("use_moe_router_bias")),
        experts(checkpoint, layer, count=count, width=width, module="moe.gate_proj"),
        *mlp(
            checkpoint,
            layer,
            "share_expert",
            f.count("share_expert_dim"),
            component=Component.SHARED,
            ranks=Ranks.SHARED,
        ),
    )
    return block_of(checkpoint, attention, feed_forward)


def _listed_layers(fields: Fields) -> frozenset[int]:
    """The layers with experts, which Step's configs name in one string, `4,5,6`; none where it is absent."""
    named = fields.value("moe_layers_enum")
    if not named:
        return frozenset()
    try:
        return frozenset(int(layer) for layer in named.split(","))
    except (AttributeError, ValueError):
        raise MalformedError(
            f"{fields.name}: moe_layers_enum must be layers in one string, e.g. '4,5,6' (got {reprlib.repr(named)})"
        ) from None
