"""DeepSeek V2 to V4, and the models built on its class: GLM-5, Kimi K2 (models/deepseek_v2.py, deepseek_v4.py)."""

from __future__ import annotations

import reprlib

from search_spaces.architectures.attention import latent_attention
from search_spaces.architectures.mlp import experts, mlp, norms, router
from search_spaces.architectures.reading import LARGEST, Checkpoint
from search_spaces.errors import MalformedError
from search_spaces.parts import (
    Block,
    Component,
    Heads,
    KvCache,
    Part,
    Projection,
    Ranks,
    Scheme,
    Split,
    Storage,
    Tensor,
)


def deepseek(checkpoint: Checkpoint, layer: int) -> Block:
    f = checkpoint.fields
    attention = latent_attention(checkpoint, layer)
    is_dense = layer < f.count("first_k_dense_replace", default=0) or layer % _every(f.value("moe_layer_freq")) != 0
    if is_dense or not f.count("n_routed_experts", default=0):
        feed_forward = mlp(checkpoint, layer, "mlp", f.count("intermediate_size"), ranks=Ranks.DENSE)
    else:
        feed_forward = deepseek_experts(checkpoint, layer)
    parts = (*attention.parts, *feed_forward, norms(checkpoint))
    return Block(parts=parts, heads=attention.heads, kv=attention.kv)


def _every(frequency: object) -> int:
    return frequency if isinstance(frequency, int) and frequency > 0 else 1


def deepseek_experts(checkpoint: Checkpoint, layer: int) -> tuple[Part, ...]:
    """Router, routed experts, and shared experts that every all-to-all backend makes each rank hold whole (:874)."""
    f = checkpoint.fields
    count, width = f.count("n_routed_experts"), f.count("moe_intermediate_size")
    parts: tuple[Part, ...] = (
        router(checkpoint, count, has_bias=f.value("topk_method") == "noaux_tc"),
        experts(checkpoint, layer, count=count, width=width),
    )
    shared = f.count("n_shared_experts", default=0) * width
    if shared:
        parts += mlp(checkpoint, layer, "mlp.shared_experts", shared, component=Component.SHARED, ranks=Ranks.SHARED)
    return parts


def deepseek_v4(checkpoint: Checkpoint, layer: int) -> Block:
    """One latent shared by all heads, compressed over windows of tokens (models/deepseek_v4.py)."""
    f, hidden, bytes_each = checkpoint.fields, checkpoint.hidden_size, checkpoint.dtype_bytes
    heads, head_dim = f.count("num_attention_heads"), f.count("head_dim")
    q_rank, o_rank, groups = f.count("q_lora_rank"), f.count("o_lora_rank"), f.count("o_groups")
    streams = f.count("hc_mult", default=4)

    def projection(
        outputs: tuple[int, ...],
        inputs: int,
        module: str,
        ranks: Ranks = Ranks.ONE,
        split: Split = Split.OUTPUTS,
        *,
        is_plain: bool = False,
    ) -> Projection:
        return Projection(
            component=Component.ATTENTION,
            outputs=outputs,
            inputs=inputs,
            ranks=ranks,
            split=split,
            element_bytes=bytes_each,
            storage=Storage() if is_plain else checkpoint.storage(layer, f"self_attn.{module}"),
        )

    ratios = f.listed("compress_ratios")
    ratio = ratios[layer] if layer < len(ratios) else 0
    if type(ratio) is not int or not 0 <= ratio <= LARGEST:
        raise MalformedError(
            f"{f.name}: compress_ratios must hold integers from 0 to {LARGEST} (got {reprlib.repr(ratio)})"
        )
    parts: list[Part] = [
        projection((q_rank + head_dim,), hidden, "wq_a"),
        projection((heads * head_dim,), q_rank, "wq_b", Ranks.ATTENTION),
        projection((groups * o_rank,), heads * head_dim // groups, "wo_a", Ranks.ATTENTION, is_plain=True),
        projection((hidden,), groups * o_rank, "wo_b", Ranks.ATTENTION, Split.INPUTS),
    ]
    if ratio:
        parts += _compressor(checkpoint, ratio, head_dim)
    if ratio == _INDEXED_RATIO:
        index_heads, index_dim = f.count("index_n_heads"), f.count("index_head_dim")
        parts += [
            projection((index_heads * index_dim,), q_rank, "indexer.wq_b"),
            projection((index_heads,), hidden, "indexer.weights_proj", is_plain=True),
            *_compressor(checkpoint, ratio, index_dim),
        ]
    # Hyper-connections: two mixing matrices over `streams` residual streams, in fp32.
    mixing = 2 * (streams * (2 + streams)) * streams * hidden
    parts.append(Tensor(component=Component.OTHER, size=mixing, element_bytes=4))
    count, width = f.count("n_routed_experts"), f.count("moe_intermediate_size")
    parts.append(router(checkpoint, count))
    if layer < f.count("num_hash_layers", default=0):
        table = f.count("vocab_size") * f.count("num_experts_per_tok")
        parts.append(Tensor(component=Component.ROUTER, size=table, element_bytes=4))
    routed = experts(checkpoint, layer, count=count, width=width)
    if f.value("expert_dtype") in (None, "fp4") and routed.storage.scheme is Scheme.FP8_BLOCK:
        routed = experts(checkpoint, layer, count=count, width=width, storage=_FP4_EXPERTS)
    parts.append(routed)
    parts += mlp(
        checkpoint,
        layer,
        "mlp.shared_experts",
        f.count("n_shared_experts", default=0) * width,
        component=Component.SHARED,
        ranks=Ranks.SHARED,
    )
    parts.append(norms(checkpoint))
    return Block(
        parts=tuple(parts),
        heads=Heads(num_query=heads, num_kv=0, is_asserted=False),
        kv=KvCache(
            num_heads=1,
            values=head_dim,
            window=0 if ratio else f.count("sliding_window", default=0),
            index_values=f.count("index_head_dim") if ratio == _INDEXED_RATIO else 0,
            is_compressed=True,
            compress_ratio=ratio,
        ),
    )


_INDEXED_RATIO = 4

_FP4_EXPERTS = Storage(Scheme.MXFP4, 32, staged_scale_bytes=4)
"""Built with fp32 scales (layers/quantization/mxfp4_flashinfer_trtllm_moe.py:214)."""


def _compressor(checkpoint: Checkpoint, ratio: int, head_dim: int) -> list[Part]:
    width = 2 * head_dim * (2 if ratio == _INDEXED_RATIO else 1)
    return [
        Projection(
            component=Component.ATTENTION,
            outputs=(width,),
            inputs=checkpoint.hidden_size,
            element_bytes=checkpoint.dtype_bytes,
        ),
        Tensor(component=Component.ATTENTION, size=ratio * width // 2, element_bytes=4),
    ]
