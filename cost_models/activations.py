"""What one prefill chunk and the CUDA graphs need outside the static fraction: the least, and what is expected.

Tensors that a forward pass holds at once are counted for one layer: later layers use the same memory again. What
kernels keep as workspace, and what the allocator loses to fragments, is a constant. Paths are under `sglang/srt/` of
0.5.23.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from cost_models.weights import attention_tp_size
from search_spaces.hardware import Gpu
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.parts import Component, Projection, Split
from search_spaces.placement import widths_of
from search_spaces.sglang.cuda_graphs import num_decode_graphs, num_prefill_graphs
from search_spaces.sglang.dispatch_tokens import decode_graph_requests, decode_graph_tokens

_MIB = 2**20
_LEAST_GRAPH_BYTES_PER_LAYER = _MIB // 8
"""Of one captured graph. vLLM measured 0.39 and 1.03 GiB for about a hundred graphs of 24 and 36 layers, 0.16 and 0.29
MiB each (github.com/llm-d-incubation/llm-d-planner, accuracy_report.md: gpt-oss-20b and 120b)."""
_LEAST_WORKSPACE_BYTES = 512 * _MIB
"""Kernels that are loaded at the first forward, cuBLAS and attention workspaces."""
_LARGEST_LEAST_ROWS_BYTES = 768 * _MIB
_WORKSPACE_BYTES = 1024 * _MIB
"""Attention workspaces (FlashInfer's alone is 384 MiB, environ.py:1221), cuBLAS, loaded kernels and fragments."""
_DECODE_GRAPH_BYTES_PER_REQUEST = 2 * _MIB  # arg_groups/memory_hook.py:352
_PREFILL_GRAPH_BYTES = 8 * _MIB  # arg_groups/memory_hook.py:296
_LATENT_PREFILL_GRAPHS_BYTES = 1536 * _MIB
"""What the engine reserves for captured prefill with MLA (arg_groups/memory_hook.py:294)."""
_RUNNERS_WITH_ROUTED_ROWS = frozenset({"auto", "deep_gemm", "marlin", "triton"})
"""Runners that keep one output row for each token and expert that it is routed to
(layers/moe/moe_runner/triton_utils/fused_moe.py:874)."""
_PERMUTING_RUNNERS = frozenset({"auto", "deep_gemm", "flashinfer_cutlass", "cutlass"})
"""Runners that copy each token to each of its experts first."""
_SPREAD_OF_ROUTING = 1.5
"""Tokens on the fullest expert rank for each one on the mean rank."""
_RESIDUAL_ROWS = 6
"""Rows of hidden size that are alive in a layer: hidden states, residual, norm and their copies in kernels."""
_LOGIT_BYTES = 2 + 4
"""One logit, as the head leaves it and as FP32 for the sampler."""


class Needs(NamedTuple):
    """Bytes outside the static fraction.

    least: activations and graphs together under the most favourable assumptions.
    """

    activations: int
    graphs: int
    least: int


def needs_of(model: Model, gpu: Gpu, layout: Layout) -> Needs:
    """For an effective layout, without the buffers of an all-to-all backend."""
    if gpu.is_cpu:
        return Needs(0, 0, 0)
    chunk = chunk_tokens(layout)
    logits = decode_graph_requests(layout) * model.vocab_size * _LOGIT_BYTES
    per_token = _bytes_per_token(model, layout)
    activations = _WORKSPACE_BYTES + chunk * per_token + logits
    graphs = decode_graph_tokens(layout) * per_token + decode_graph_requests(layout) * _DECODE_GRAPH_BYTES_PER_REQUEST
    if layout.cuda_graph_backend_prefill not in {None, "disabled"}:
        graphs += _prefill_graphs_bytes(model, layout)
    least = least_needs_bytes(model, layout, chunk)
    return Needs(round(max(activations, least - graphs)), round(graphs), least)


def chunk_tokens(layout: Layout) -> int:
    """Tokens of the longest prefill that one attention-DP rank runs at once."""
    chunk = layout.chunked_prefill_size or 0
    return chunk if chunk > 0 else layout.max_prefill_tokens


def least_needs_bytes(model: Model, layout: Layout, tokens: int) -> int:
    """The least that `tokens` of prefill on each attention-DP rank, and the CUDA graphs, can do with.

    Deliberately small: hidden states, residual and one gate-up projection; the routed rows of runners that keep them;
    logits of the largest decode graph; a few MiB for each captured graph; kernels that load at the first forward.
    """
    row = model.hidden_size * model.dtype_bytes
    rows = min(tokens * row * 4, _LARGEST_LEAST_ROWS_BYTES)
    routed = 0
    if layout.moe_a2a_backend == "none" and layout.moe_runner_backend in _RUNNERS_WITH_ROUTED_ROWS:
        routed = tokens * layout.attn_dp_size * model.experts_per_token * row
    return _LEAST_WORKSPACE_BYTES + _least_graphs_bytes(model, layout) + rows + routed


def _least_graphs_bytes(model: Model, layout: Layout) -> int:
    requests = decode_graph_requests(layout)
    graphs = num_decode_graphs(layout) if requests else 0
    if captured_prefill_tokens(layout):
        graphs += _num_prefill_graphs(layout)
    layers = -(-model.num_layers // layout.pp_size)
    return graphs * layers * _LEAST_GRAPH_BYTES_PER_LAYER + requests * model.vocab_size * _LOGIT_BYTES


def captured_prefill_tokens(layout: Layout) -> int:
    """Tokens of the largest prefill graph, which is run while it is captured, whatever is asked of the server later."""
    if layout.cuda_graph_backend_prefill in {None, "disabled"}:
        return 0
    return min(layout.cuda_graph_max_bs_prefill or 0, chunk_tokens(layout))


def _prefill_graphs_bytes(model: Model, layout: Layout) -> int:
    if model.mla is not None:
        return _LATENT_PREFILL_GRAPHS_BYTES
    return _num_prefill_graphs(layout) * _PREFILL_GRAPH_BYTES


def _num_prefill_graphs(layout: Layout) -> int:
    sizes = layout.cuda_graph_bs_prefill
    return num_prefill_graphs(layout.cuda_graph_max_bs_prefill or 0) if sizes is None else len(sizes)


def _bytes_per_token(model: Model, layout: Layout) -> float:
    """What a forward pass holds at once for each token of an attention-DP rank, in bytes."""
    row = model.hidden_size * model.dtype_bytes
    widths = widths_of(model, layout)
    dense = _widest_mlp(model, widths.dense, widths.shared)
    size = _RESIDUAL_ROWS * row + _attention_values(model, layout) * 2 + 1.5 * dense * 2
    if not model.is_moe:
        return size
    expert_row = model.dtype_bytes * (model.hidden_size + 3 * model.moe_intermediate_size / layout.moe_tp_size)
    if layout.moe_runner_backend in _PERMUTING_RUNNERS:
        expert_row += model.hidden_size
    rows = float(model.experts_per_token * layout.attn_dp_size)
    if layout.moe_a2a_backend != "none":
        rows = min(rows, rows / layout.ep_size * _SPREAD_OF_ROUTING)
    elif layout.attn_dp_size > 1:
        # Gathered hidden states and what the experts make of them.
        size += 2 * layout.attn_dp_size * row
    return size + rows * expert_row


@lru_cache(maxsize=1024)
def _widest_mlp(model: Model, dense_ranks: int, shared_ranks: int) -> int:
    """Outputs of gate and up of the widest MLP or shared expert on one rank."""
    counts = {Component.DENSE: dense_ranks, Component.SHARED: shared_ranks}
    return max(
        (
            sum(part.output_sizes(counts[part.component]))
            for block in model.block_kinds
            for part in block.parts
            if isinstance(part, Projection) and part.component in counts and part.split is Split.OUTPUTS
        ),
        default=0,
    )


def _attention_values(model: Model, layout: Layout) -> float:
    """Queries, keys, values and outputs of one token in one layer on one rank."""
    ranks = max(1, attention_tp_size(model, layout))
    if model.mla is not None:
        head = 2 * (model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim) + 2 * model.mla.v_head_dim
        return model.num_attention_heads / ranks * head
    heads = model.num_attention_heads / ranks
    return 2 * heads * model.head_dim + 2 * max(1, model.num_kv_heads / ranks) * model.head_dim
