"""How many tokens one rank sends through an all-to-all backend at once (arg_groups/moe_hook.py:628 of 0.5.23)."""

from __future__ import annotations

import math

from search_spaces.layout import Layout

_DYNAMIC_CHUNK_GROWTH = 1.25


def prefill_tokens(run: Layout) -> int:
    """Tokens of the longest prefill on one attention-DP rank; 0 where chunks are switched off (overrides.py:1843)."""
    chunk = run.chunked_prefill_size or 0
    if chunk <= 0:
        return 0
    if run.enable_dynamic_chunking and run.pp_size > 1:
        return max(chunk, run.max_prefill_tokens, math.ceil(chunk * _DYNAMIC_CHUNK_GROWTH))
    return chunk


def decode_graph_requests(run: Layout) -> int:
    """Requests of the largest decode graph on one attention-DP rank; 0 where none is captured."""
    if run.disaggregation_mode == "prefill" or run.cuda_graph_backend_decode == "disabled":
        return 0
    graph_bs = run.cuda_graph_max_bs_decode or 0
    limit = run.max_running_requests
    return graph_bs if limit is None else min(graph_bs, max(1, limit // run.attn_dp_size))


def tokens_per_request(run: Layout) -> int:
    """Tokens that one decode step verifies for a request."""
    return 1 if run.speculative_algorithm is None else run.speculative_num_draft_tokens or 1


def decode_graph_tokens(run: Layout) -> int:
    return decode_graph_requests(run) * tokens_per_request(run)


def flashinfer_tokens(run: Layout) -> int:
    """What FlashInfer's workspace has to hold (moe_hook.py:745)."""
    tokens = 0
    if run.disaggregation_mode != "decode":
        tokens = prefill_tokens(run)
        if run.cuda_graph_backend_prefill != "disabled":
            tokens = max(tokens, run.cuda_graph_max_bs_prefill or 0)
    return max(tokens, decode_graph_tokens(run))


def deepep_v2_tokens(run: Layout) -> int:
    """Prefill tokens that one rank of DeepEP v2 dispatches (moe_hook.py:637)."""
    ceiling = prefill_tokens(run) or run.max_prefill_tokens
    return -(-ceiling // max(1, run.tp_size // run.attn_dp_size))


def megamoe_decode_tokens(run: Layout) -> int:
    """Decode tokens of MegaMoE on one rank (mega_moe_hook.py:102)."""
    requests = run.cuda_graph_max_bs_decode or 0
    if run.max_running_requests is not None:
        width = run.tp_size // run.attn_dp_size
        per_rank = -(-(run.max_running_requests // run.attn_dp_size) // width) * width if width else 0
        requests = min(requests, per_rank)
    return requests * tokens_per_request(run)


def megamoe_prefill_tokens(run: Layout) -> int:
    """Prefill tokens of MegaMoE on one rank (mega_moe_hook.py:198); 0 where the chunk is shared out to nothing."""
    chunk = run.chunked_prefill_size or 0
    if run.enable_prefill_cp:
        return -(-chunk // run.attn_cp_size)
    if run.attn_dp_size > 1:
        local, width = chunk // run.attn_dp_size, run.tp_size // run.attn_dp_size // run.attn_cp_size
    else:
        local, width = chunk, run.tp_size // run.attn_cp_size
    width = max(width, 1)
    return -(-local // width) * width
