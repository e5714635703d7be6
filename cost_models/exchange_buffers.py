"""What all-to-all backends keep on each GPU to exchange tokens between expert ranks, in bytes.

Paths are under `sglang/srt/` of 0.5.23. Sizes that depend on an environment variable are those of its default.
"""

from __future__ import annotations

from collections.abc import Callable

from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.sglang.dispatch_tokens import deepep_v2_tokens, flashinfer_tokens

FIRST_IN_POOL = frozenset({"flashinfer"})
"""Backends whose workspace is made with the model and so is gone before the KV cache is sized
(layers/moe/token_dispatcher/flashinfer.py:215). The others make theirs in the first forward pass (deepep.py:736)."""

_LOW_LATENCY_TOKENS = 128
"""Tokens that a rank sends at most in one decode step: SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK, and its
siblings of Mooncake, NIXL and PPLX (environ.py:1439-1453)."""
_LEAST_FLASHINFER_TOKENS = 4096  # arg_groups/overrides.py:1894
_MEGAMOE_TOKENS = 8192
"""SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK (environ.py:1470)."""
_MORI_TOKENS = 4096  # environ.py:930

_NORMAL_CHANNELS = 10
"""Half of DeepEP's 20 communication SMs (deep_ep/buffer.py: Buffer.num_sms)."""
_NVLINK_PEERS = 8
_NVLINK_TOKENS = ((8, 256), (32, 288), (64, 288), (128, 560))
"""Ranks up to which DeepEP receives so many tokens at once from each peer of a node (deep_ep/buffer.py:
get_dispatch_config, get_combine_config)."""
_LARGEST_NVLINK_TOKENS = 720
_RDMA_TOKENS = 128
_NORMAL_ROW_BYTES = 8 + 128 * (8 + 4 + 4)
"""What goes with each token: where it comes from, and room for 128 experts, weights and scales (DeepEP
csrc/config.hpp, get_nvl_buffer_size_hint)."""


def exchange_bytes(model: Model, layout: Layout) -> int:
    """Buffers of the layout's all-to-all backend on one GPU; 0 where there is none or one rank holds all experts."""
    if layout.moe_a2a_backend == "none" or layout.ep_size == 1:
        return 0
    sized = _SIZED.get(layout.moe_a2a_backend)
    return 0 if sized is None else sized(model, layout)


def _row_bytes(model: Model) -> int:
    return model.hidden_size * 2


def _deepep(model: Model, layout: Layout) -> int:
    """NVLink buffers for prefill and RDMA buffers for both (token_dispatcher/deepep.py:222-250); mode `auto` keeps
    both kinds.
    """
    nvlink = rdma = 0
    if layout.deepep_mode != "low_latency":
        nvlink, rdma = _normal(model, layout.ep_size)
    if layout.deepep_mode != "normal":
        rdma = max(rdma, _low_latency(model, layout))
    return nvlink + rdma


def _normal(model: Model, num_ranks: int) -> tuple[int, int]:
    """DeepEP's normal mode: chunked rings of each channel to each peer (csrc/config.hpp, get_nvl_buffer_size_hint and
    get_rdma_buffer_size_hint).
    """
    row = _row_bytes(model) + _NORMAL_ROW_BYTES
    tokens = next((tokens for most, tokens in _NVLINK_TOKENS if num_ranks <= most), _LARGEST_NVLINK_TOKENS)
    nvlink = _NORMAL_CHANNELS * min(num_ranks, _NVLINK_PEERS) * tokens * row
    if num_ranks <= _NVLINK_PEERS:
        return nvlink, 0
    return nvlink, 2 * _NORMAL_CHANNELS * (num_ranks // _NVLINK_PEERS) * _RDMA_TOKENS * row


def _low_latency(model: Model, _: Layout) -> int:
    """DeepEP's low latency mode: two buffers out and two in, each with room for every rank's tokens at every expert
    (csrc/config.hpp, LowLatencyLayout): it does not shrink with the number of ranks.
    """
    scales = model.hidden_size // 128
    combined = _row_bytes(model) + scales * 4
    dispatched = 16 + max(_row_bytes(model), model.hidden_size + scales * 4)
    slots = model.num_experts * _LOW_LATENCY_TOKENS
    return 2 * slots * combined + 2 * slots * max(dispatched, combined)


def _flashinfer(model: Model, layout: Layout) -> int:
    """One-sided exchange: from each rank so many tokens out, with their experts and weights, and back
    (token_dispatcher/flashinfer.py:208-256).
    """
    tokens = max(flashinfer_tokens(layout), _LEAST_FLASHINFER_TOKENS)
    out = _row_bytes(model) + 8 * model.experts_per_token
    return layout.ep_size * tokens * (out + _row_bytes(model))


def _megamoe(model: Model, _: Layout) -> int:
    """MegaMoE's symmetric buffer: tokens in FP8 with scales, and each expert's answer in BF16 (DeepGEMM
    csrc/apis/mega.hpp, get_symm_buffer_size_for_mega_moe); its rings, a few rows for each SM, are left out.
    """
    k = model.experts_per_token
    row = model.hidden_size + model.hidden_size // 32 + k * 12
    return _MEGAMOE_TOKENS * (row + k * _row_bytes(model))


def _deepep_v2(model: Model, layout: Layout) -> int:
    """Elastic buffers: what one rank sends and gets of a prefill chunk, out and back."""
    copies = min(model.experts_per_token, layout.ep_size)
    return 2 * 2 * deepep_v2_tokens(layout) * _row_bytes(model) * copies


def _mori(model: Model, layout: Layout) -> int:
    return 2 * _MORI_TOKENS * layout.ep_size * _row_bytes(model)


_SIZED: dict[str, Callable[[Model, Layout], int]] = {
    "deepep": _deepep,
    "deepep_v2": _deepep_v2,
    "flashinfer": _flashinfer,
    "flashinfer_megamoe": _megamoe,
    "megamoe": _megamoe,
    "mooncake": _low_latency,
    "mori": _mori,
    "nixl": _low_latency,
    "pplx": _low_latency,
}
"""Mooncake's, NIXL's and PPLX's buffers are taken to be as large as DeepEP's."""
