"""Where the memory of the fullest GPU goes, in bytes.

The sequence is SGLang's: context and collectives, weights, the KV pool out of what `--mem-fraction-static`
leaves, then CUDA graphs and activations out of the rest. Sizes of weights and of a KV entry follow from the
model. What lies outside the static fraction is INVENTED in its size, not in its direction: it grows with the
graph's batch, with attention DP (gathered rows), with pipeline stages (micro-batches) and the prefill chunk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.model import Component, Model

GIB = 2**30
MIB = 2**20

_USABLE_SHARE = 0.9935
"""Of what the driver reports, torch can use this much: 94.97 GiB of 97887 MiB on an RTX PRO 6000."""

_CONTEXT_BYTES = 2.2 * GIB
_RANK_BYTES = 0.1 * GIB
"""INVENTED split: about 3 GiB on eight ranks are gone to the context and to NCCL before weights load."""

_FRAGMENTATION = 0.004
"""INVENTED: share of the weights that the allocator loses between them."""

_GRAPH_BYTES = 0.7 * GIB
_GRAPH_ROW_BYTES = 1.2 * MIB
_GRAPH_PER_ATTENTION_DP = 0.8
_GRAPH_PER_STAGE = 0.06
_WORKSPACE_BYTES = 0.8 * GIB
_ACTIVATIONS_PER_TOKEN = 20
_GATHERED_PER_TOKEN = 12
"""INVENTED: hidden-sized bf16 buffers alive at once, for each token of a rank's prefill chunk, and for each
that attention DP gathers from all ranks."""

_DEFAULT_FRACTION = 0.8
_DEFAULT_PREFILL_TOKENS = 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """is_host: there is no GPU; the memory is the host's share of a rank.
    total_bytes: what torch can use of the card. before_load_bytes: free when weights begin to load.

    weight_bytes: on the fullest GPU. entry_bytes: one token's KV on that GPU.
    pool_bytes: what the static fraction leaves for the KV pool; not positive where the weights leave nothing.
    capture_bytes, activation_bytes: what graphs, and a prefill step of chunk_tokens, need beside it.
    """

    is_host: bool
    total_bytes: float
    before_load_bytes: float
    weight_bytes: float
    mem_fraction_static: float
    pool_bytes: float
    pool_tokens: int
    entry_bytes: float
    capture_bytes: float
    activation_bytes: float
    chunk_tokens: int

    @property
    def after_load_bytes(self) -> float:
        return self.before_load_bytes - self.weight_bytes

    @property
    def kv_bytes(self) -> float:
        return self.pool_tokens * self.entry_bytes

    @property
    def after_pool_bytes(self) -> float:
        return self.after_load_bytes - self.kv_bytes

    @property
    def after_capture_bytes(self) -> float:
        return self.after_pool_bytes - self.capture_bytes

    @property
    def step_tokens(self) -> int | None:
        """Prompt tokens of one step that the memory left has room for; None where all of a chunk fit."""
        if self.activation_bytes <= self.after_capture_bytes:
            return None
        return int(self.after_capture_bytes / self.activation_bytes * self.chunk_tokens)

    @property
    def least_fraction(self) -> float:
        """SGLang's "minimum viable": the fraction at which the pool would be empty."""
        return 1.0 - self.after_load_bytes / self.before_load_bytes


def device_memory(
    model: Model, cluster: Cluster, layout: Layout, *, max_total_tokens: int | None = None
) -> DeviceMemory:
    """`layout` is the effective one. max_total_tokens: the cap that `--max-total-tokens` puts on the pool."""
    total = cluster.gpu.memory_bytes * _USABLE_SHARE
    before_load = total if cluster.gpu.is_cpu else total - _CONTEXT_BYTES - _RANK_BYTES * layout.tp_size
    weights = max(_stage_weight_bytes(model, layout)) * (1.0 + _FRAGMENTATION)
    fraction = _DEFAULT_FRACTION if layout.mem_fraction_static is None else layout.mem_fraction_static
    pool = before_load - weights - before_load * (1.0 - fraction)
    layers = max(_layers_of_stages(model, layout.pp_size))
    entry = 2.0 * model.kv_values_per_token_layer(layout.attn_tp_size) * layers
    page = layout.page_size or 1
    tokens = max(0, int(pool / entry) // page * page)
    return DeviceMemory(
        is_host=cluster.gpu.is_cpu,
        total_bytes=total,
        before_load_bytes=before_load,
        weight_bytes=weights,
        mem_fraction_static=fraction,
        pool_bytes=pool,
        pool_tokens=tokens if max_total_tokens is None else min(tokens, max_total_tokens // page * page),
        entry_bytes=entry,
        capture_bytes=0.0 if cluster.gpu.is_cpu else _capture_bytes(layout),
        activation_bytes=0.0 if cluster.gpu.is_cpu else _activation_bytes(model, layout),
        chunk_tokens=_chunk_tokens(layout),
    )


def _layers_of_stages(model: Model, stages: int) -> list[int]:
    """Decoder layers of each pipeline stage: the remainder goes to the last ones."""
    base, rest = divmod(model.num_layers, stages)
    return [base + (stage >= stages - rest) for stage in range(stages)]


def _stage_weight_bytes(model: Model, layout: Layout) -> list[float]:
    """Weights of one GPU of each pipeline stage."""
    tp = layout.tp_size
    attn_tp, moe_tp = max(layout.attn_tp_size, 1), max(layout.moe_tp_size, 1)
    attention = model.attention_params_replicated + model.attention_params_split / attn_tp
    experts = (model.num_experts + layout.ep_num_redundant_experts) / layout.ep_size
    shared_ranks = tp if layout.moe_a2a_backend == "none" else 1
    moe_layer = (
        experts * model.expert_params / moe_tp * model.bytes_per_param(Component.ROUTED)
        + model.shared_params / shared_ranks * model.bytes_per_param(Component.SHARED)
        + model.router_params * model.bytes_per_param(Component.ROUTER)
    )
    dense_layer = model.dense_params / (layout.moe_dense_tp_size or tp) * model.bytes_per_param(Component.DENSE)
    embedding = model.embedding_params / attn_tp * model.bytes_per_param(Component.EMBED)
    head_ranks = attn_tp if layout.enable_dp_lm_head else tp
    head = model.embedding_params / head_ranks * model.bytes_per_param(Component.LM_HEAD)
    stages = []
    first_layer = 0
    counts = _layers_of_stages(model, layout.pp_size)
    for stage, layers in enumerate(counts):
        dense = min(max(model.num_dense_layers - first_layer, 0), layers)
        size = layers * attention * model.bytes_per_param(Component.ATTENTION)
        size += dense * dense_layer + (layers - dense) * moe_layer
        is_first, is_last = stage == 0, stage == len(counts) - 1
        if is_first or (is_last and model.tie_word_embeddings):
            size += embedding
        if is_last and not model.tie_word_embeddings:
            size += head
        stages.append(size)
        first_layer += layers
    return stages


def _capture_bytes(layout: Layout) -> float:
    rows = layout.cuda_graph_max_bs_decode or 0
    graphs = _GRAPH_BYTES + _GRAPH_ROW_BYTES * rows
    graphs *= 1.0 + _GRAPH_PER_ATTENTION_DP * math.log2(max(layout.attn_dp_size, 1))
    graphs *= 1.0 + _GRAPH_PER_STAGE * (layout.pp_size - 1)
    return graphs + _WORKSPACE_BYTES


def _activation_bytes(model: Model, layout: Layout) -> float:
    """Of one prefill chunk; attention DP gathers the chunks of all its ranks before the experts."""
    rank_tokens = _chunk_tokens(layout)
    rank_bytes = 2.0 * model.hidden_size * rank_tokens * _ACTIVATIONS_PER_TOKEN
    gathered_tokens = rank_tokens * layout.attn_dp_size
    routed_bytes = 2.0 * gathered_tokens * model.experts_per_token * model.moe_intermediate_size * 1.5
    routed_bytes /= max(layout.ep_size, 1) * max(layout.moe_tp_size, 1)
    gather_bytes = 2.0 * model.hidden_size * gathered_tokens * _GATHERED_PER_TOKEN if layout.attn_dp_size > 1 else 0.0
    return rank_bytes + routed_bytes + gather_bytes


def _chunk_tokens(layout: Layout) -> int:
    """Prompt tokens of a rank's largest prefill step; without chunking, SGLang's `--max-prefill-tokens`."""
    chunk = layout.chunked_prefill_size or 0
    return chunk if chunk > 0 else _DEFAULT_PREFILL_TOKENS
