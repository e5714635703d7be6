"""Decoders that mix full attention with layers whose memory is a state: Qwen3-Next, Qwen3.5, Nemotron-H, Kimi K3."""

from __future__ import annotations

from search_spaces.architectures.attention import GroupedQueries, grouped_queries, latent_attention
from search_spaces.architectures.mlp import experts, mlp, norms, router
from search_spaces.architectures.reading import Checkpoint
from search_spaces.architectures.transformer import heads_of, qwen_feed_forward
from search_spaces.errors import MalformedError
from search_spaces.parts import PLAIN, Block, Component, LinearAttention, Part, Projection, Ranks, Split, Tensor


def qwen_hybrid(checkpoint: Checkpoint, layer: int) -> Block:
    """Gated delta-net layers, and gated full attention in every fourth (models/qwen3_next.py, qwen3_5.py)."""
    f = checkpoint.fields
    feed_forward = (*qwen_feed_forward(checkpoint, layer), norms(checkpoint))
    kinds = f.listed("layer_types")
    every = f.count("full_attention_interval", default=4)
    is_full = kinds[layer] == "full_attention" if layer < len(kinds) else (layer + 1) % every == 0
    if not is_full:
        linear, parts = _delta_net(checkpoint, layer)
        return Block(parts=(*parts, *feed_forward), linear_attention=linear)
    heads, kv_heads, head_dim = heads_of(f)
    attention = grouped_queries(
        checkpoint,
        layer,
        GroupedQueries(
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            has_gate=f.flag("attn_output_gate", default=True),
            has_norms=True,
        ),
    )
    return Block(parts=(*attention.parts, *feed_forward), heads=attention.heads, kv=attention.kv)


def _delta_net(checkpoint: Checkpoint, layer: int) -> tuple[LinearAttention, tuple[Part, ...]]:
    f, hidden, bytes_each = checkpoint.fields, checkpoint.hidden_size, checkpoint.dtype_bytes
    key_heads, key_dim = f.count("linear_num_key_heads"), f.count("linear_key_head_dim")
    value_heads, value_dim = f.count("linear_num_value_heads"), f.count("linear_value_head_dim")
    kernel = f.count("linear_conv_kernel_dim")
    keys, values = key_heads * key_dim, value_heads * value_dim
    parts = (
        Tensor(
            component=Component.ATTENTION,
            size=(2 * keys + values) * kernel,
            element_bytes=bytes_each,
            ranks=Ranks.ATTENTION,
        ),
        Projection(
            component=Component.ATTENTION,
            outputs=(keys, keys, values, values),
            inputs=hidden,
            ranks=Ranks.ATTENTION,
            element_bytes=bytes_each,
            storage=checkpoint.storage(layer, "linear_attn.in_proj_qkv", "linear_attn.in_proj_qkvz"),
        ),
        Projection(
            component=Component.ATTENTION,
            outputs=(value_heads, value_heads),
            inputs=hidden,
            ranks=Ranks.ATTENTION,
            element_bytes=bytes_each,
            storage=checkpoint.storage(layer, "linear_attn.in_proj_b", "linear_attn.in_proj_ba"),
        ),
        Projection(
            component=Component.ATTENTION,
            outputs=(hidden,),
            inputs=values,
            ranks=Ranks.ATTENTION,
            split=Split.INPUTS,
            element_bytes=bytes_each,
            storage=checkpoint.storage(layer, "linear_attn.out_proj"),
        ),
    )
    linear = LinearAttention(
        num_key_heads=key_heads,
        num_value_heads=value_heads,
        state_values=key_dim * value_dim,
        conv_channels=2 * keys + values,
        conv_kernel=kernel,
    )
    return linear, parts


def nemotron_h(checkpoint: Checkpoint, layer: int) -> Block:
    """Each layer is one thing: Mamba 2, attention, experts or an MLP (models/nemotron_h.py)."""
    f = checkpoint.fields
    pattern = f.value("hybrid_override_pattern")
    if not isinstance(pattern, str) or layer >= len(pattern):
        raise MalformedError(f"{f.name}: hybrid_override_pattern must name each of the layers (got {pattern!r})")
    after = norms(checkpoint, 1)
    match pattern[layer]:
        case "M":
            linear, parts = _mamba(checkpoint, layer)
            return Block(parts=(*parts, after), linear_attention=linear)
        case "*":
            heads, kv_heads, head_dim = heads_of(f)
            attention = grouped_queries(
                checkpoint,
                layer,
                GroupedQueries(num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, module="mixer"),
            )
            return Block(parts=(*attention.parts, after), heads=attention.heads, kv=attention.kv)
        case "E":
            return Block(parts=(*_nemotron_experts(checkpoint, layer), after))
        case _:
            width = f.count("intermediate_size")
            plain = mlp(checkpoint, layer, "mixer", width, num_inner=1, inner="up_proj")
            return Block(parts=(*plain, after))


def _nemotron_experts(checkpoint: Checkpoint, layer: int) -> tuple[Part, ...]:
    """Squared-ReLU experts without a gate projection, in a latent space where the model has one."""
    f = checkpoint.fields
    count, width = f.count("n_routed_experts"), f.count("moe_intermediate_size")
    latent = f.count("moe_latent_size", default=0)
    parts: list[Part] = [
        router(checkpoint, count, has_bias=True),
        experts(
            checkpoint,
            layer,
            count=count,
            width=width,
            hidden_size=latent,
            num_inner=1,
            module="mixer.experts.0.up_proj",
        ),
    ]
    shared = f.count("n_shared_experts", default=0) * f.count("moe_shared_expert_intermediate_size", default=0)
    if shared:
        parts += mlp(
            checkpoint,
            layer,
            "mixer.shared_experts",
            shared,
            component=Component.SHARED,
            ranks=Ranks.SHARED,
            num_inner=1,
            inner="up_proj",
        )
    if latent:
        parts += [
            Projection(
                component=Component.ROUTED,
                outputs=(outputs,),
                inputs=inputs,
                element_bytes=checkpoint.dtype_bytes,
                storage=checkpoint.storage(layer, f"mixer.{module}"),
            )
            for outputs, inputs, module in (
                (latent, checkpoint.hidden_size, "fc1_latent_proj"),
                (checkpoint.hidden_size, latent, "fc2_latent_proj"),
            )
        ]
    return tuple(parts)


def _mamba(checkpoint: Checkpoint, layer: int) -> tuple[LinearAttention, tuple[Part, ...]]:
    f, hidden, bytes_each = checkpoint.fields, checkpoint.hidden_size, checkpoint.dtype_bytes
    heads, head_dim = f.count("mamba_num_heads"), f.count("mamba_head_dim")
    groups, state, kernel = f.count("n_groups"), f.count("ssm_state_size"), f.count("conv_kernel")
    inner = heads * head_dim
    channels = inner + 2 * groups * state
    parts = (
        Tensor(
            component=Component.ATTENTION,
            size=channels * (kernel + 1) + inner,
            element_bytes=bytes_each,
            ranks=Ranks.ATTENTION,
        ),
        Projection(
            component=Component.ATTENTION,
            outputs=(inner, inner, heads),
            kv_heads=groups,
            kv_outputs=(state, state),
            inputs=hidden,
            ranks=Ranks.ATTENTION,
            element_bytes=bytes_each,
            storage=checkpoint.storage(layer, "mixer.in_proj"),
        ),
        Projection(
            component=Component.ATTENTION,
            outputs=(hidden,),
            inputs=inner,
            ranks=Ranks.ATTENTION,
            split=Split.INPUTS,
            element_bytes=bytes_each,
            storage=checkpoint.storage(layer, "mixer.out_proj"),
        ),
    )
    linear = LinearAttention(
        num_key_heads=groups,
        num_value_heads=heads,
        state_values=head_dim * state,
        conv_channels=channels,
        conv_kernel=kernel,
        state_size=state,
        shares_one_key_head=checkpoint.storage(layer, "mixer.in_proj") == PLAIN,
    )
    return linear, parts


def kimi_k3(checkpoint: Checkpoint, layer: int) -> Block:
    """Kimi delta attention with latent attention in between, experts in a latent space (models/kimi_k3.py)."""
    f, hidden, bytes_each = checkpoint.fields, checkpoint.hidden_size, checkpoint.dtype_bytes

    def projection(outputs: tuple[int, ...], inputs: int, ranks: Ranks = Ranks.ONE) -> Projection:
        return Projection(
            component=Component.ATTENTION,
            outputs=outputs,
            inputs=inputs,
            ranks=ranks,
            element_bytes=bytes_each,
        )

    settings = f.inner("linear_attn_config")
    if settings is None:
        raise MalformedError(f"{f.name}: config.json lacks linear_attn_config, which {f.architecture()} needs")
    feed_forward = _kimi_k3_feed_forward(checkpoint, layer)
    if layer + 1 in settings.listed("full_attn_layers"):
        attention = latent_attention(checkpoint, layer)
        values = f.count("num_attention_heads") * f.count("v_head_dim")
        gate = (projection((values,), hidden, Ranks.ATTENTION),) if f.flag("mla_use_output_gate") else ()
        return Block(parts=(*attention.parts, *gate, *feed_forward), heads=attention.heads, kv=attention.kv)
    heads, head_dim = settings.count("num_heads"), settings.count("head_dim")
    kernel, inner = settings.count("short_conv_kernel_size"), heads * head_dim
    parts = (
        projection((inner,) * 4, hidden, Ranks.ATTENTION),
        projection((heads,), hidden, Ranks.ATTENTION),
        projection((head_dim,), hidden),
        projection((inner,), head_dim, Ranks.ATTENTION),
        Tensor(component=Component.ATTENTION, size=3 * inner * kernel + inner, element_bytes=4, ranks=Ranks.ATTENTION),
        Projection(
            component=Component.ATTENTION,
            outputs=(hidden,),
            inputs=inner,
            ranks=Ranks.ATTENTION,
            split=Split.INPUTS,
            element_bytes=bytes_each,
        ),
    )
    linear = LinearAttention(
        num_key_heads=heads,
        num_value_heads=heads,
        state_values=head_dim * head_dim,
        conv_channels=3 * inner,
        conv_kernel=kernel,
    )
    return Block(parts=(*parts, *feed_forward), linear_attention=linear)


def _kimi_k3_feed_forward(checkpoint: Checkpoint, layer: int) -> tuple[Part, ...]:
    f, hidden = checkpoint.fields, checkpoint.hidden_size
    after = norms(checkpoint, 6)
    if layer < f.count("first_k_dense_replace", default=0):
        return (*mlp(checkpoint, layer, "mlp", f.count("intermediate_size"), ranks=Ranks.DENSE), after)
    count, width = f.count("num_experts"), f.count("moe_intermediate_size")
    latent = f.count("routed_expert_hidden_size", default=hidden // 2)
    shared = f.count("num_shared_experts", default=0) * width
    return (
        router(checkpoint, count, has_bias=True),
        experts(checkpoint, layer, count=count, width=width, hidden_size=latent, has_bias=True),
        *mlp(checkpoint, layer, "mlp.shared_experts", shared, component=Component.SHARED, ranks=Ranks.SHARED),
        Tensor(component=Component.ROUTED, size=2 * hidden * latent, element_bytes=checkpoint.dtype_bytes),
        after,
    )
