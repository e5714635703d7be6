"""Random launches for the conformance test: any catalogue model, any flag of a layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from hypothesis import strategies as st

from search_spaces.layout import Layout
from search_spaces.sglang.flags import to_argv
from search_spaces.sglang.options import choices_of
from search_spaces.sglang.versions import NEWEST

SIZES = {
    "tp_size": (1, 2, 4, 8, 16, 32, 3, 6, 12, 5, 64),
    "pp_size": (1, 2, 3, 4),
    "dp_size": (1, 2, 4),
    "attn_dp_size": (1, 2, 4, 8, 16, 3, 0),
    "attn_cp_size": (1, 2, 4, 3, 0),
    "ep_size": (1, 2, 4, 8, 16, 3, 0, -1),
    "moe_dp_size": (1, 2, 4, 3),
}
"""What nearly every launch is about. Those inside tp_size are mostly drawn from its divisors."""

EXPERT_FLAGS = (
    "moe_a2a_backend",
    "moe_runner_backend",
    "deepep_mode",
    "chunked_prefill_size",
    "ep_num_redundant_experts",
    "moe_dense_tp_size",
)
"""Drawn more often than others: most of what they may be is refused in some combination."""

_INSIDE_TP = ("attn_dp_size", "ep_size", "attn_cp_size", "moe_dp_size")

VALUES: dict[str, tuple[Any, ...]] = {
    "base_gpu_id": (0, 1, -1),
    "chunked_prefill_size": (2048, 4096, 8192, 16384, 512, 100, 4, 0, -1),
    "context_length": (2048, 32768, 1 << 20),
    "cuda_graph_bs_decode": ((1, 2, 4, 8), (16, 64), (3, 128)),
    "cuda_graph_bs_prefill": ((256, 512), (4096,)),
    "cuda_graph_max_bs_decode": (8, 32, 128, 256, 512, 1024),
    "cuda_graph_max_bs_prefill": (512, 2048, 8192),
    "dcp_size": (2, 3, 4, 8, 0),
    "dwdp_size": (2, 4, 8),
    "ep_num_redundant_experts": (4, 8, 16, 32, 3),
    "gpu_id_step": (2, 0),
    "max_prefill_tokens": (1024, 8192, 32768),
    "max_running_requests": (1, 16, 128, 1024),
    "max_total_tokens": (8192, 100000),
    "mem_fraction_static": (0.5, 0.8, 0.9, 0.94),
    "moe_dense_tp_size": (1, 2, 4, 8),
    "nnodes": (2, 4),
    "num_continuous_decode_steps": (2, 4),
    "page_size": (1, 16, 32, 64, 128),
    "pp_max_micro_batch_size": (1, 8, 0),
    "schedule_conservativeness": (0.3, 1.0, -1.0),
    "speculative_algorithm": ("EAGLE", "EAGLE3", "NEXTN", "NGRAM", "STANDALONE", "DFLASH", "FROZEN_KV_MTP"),
    "speculative_eagle_topk": (1, 4),
    "speculative_num_draft_tokens": (4, 8),
    "speculative_num_steps": (1, 3),
}
"""A field whose option lists its choices, and a switch, needs no line here."""

NOT_DRAWN = {
    "init_expert_location": "names a file, or asks for nothing",
    "speculative_draft_model_path": "names a checkpoint of its own",
}

VARIABLES = {
    "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK": ("256", "1024", "2048"),
    "SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK": ("8192",),
    "SGLANG_PPLX_NUM_MAX_DISPATCH_TOKENS_PER_RANK": ("8192",),
    "SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK": ("16384",),
}
"""Capacities of all-to-all backends that the server's environment sets."""

_NO_CHOICE = "nonsense"


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomLaunch:
    model: str
    layout: Layout
    env: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        variables = "".join(f"{name}={value} " for name, value in self.env.items())
        return f"{variables}--model-path {self.model} {' '.join(self.argv)}"

    @property
    def argv(self) -> tuple[str, ...]:
        return to_argv(self.layout)


def values_of(name: str) -> tuple[Any, ...]:
    """What a field is drawn from; empty where it is not drawn."""
    if name in SIZES or name in VALUES:
        return SIZES.get(name) or VALUES[name]
    if name in NOT_DRAWN:
        return ()
    if isinstance(getattr(Layout(), name), bool):
        return (True,)
    choices = choices_of(name, NEWEST)
    return (*choices, _NO_CHOICE) if choices else ()


DRAWN = tuple(f.name for f in fields(Layout) if f.name not in SIZES and values_of(f.name))


@st.composite
def launches(draw: st.DrawFn, models: tuple[str, ...]) -> RandomLaunch:
    """Few flags at a time: the first that is refused keeps all others from counting."""
    values = {"tp_size": draw(st.sampled_from(SIZES["tp_size"]))}
    for name in _flags(draw, (*SIZES,)[1:], at_most=3):
        fits = name in _INSIDE_TP and draw(st.integers(0, 7)) > 0
        divisors = tuple(size for size in SIZES[name] if size > 0 and values["tp_size"] % size == 0)
        values[name] = draw(st.sampled_from(divisors if fits else SIZES[name]))
    for name in (*_flags(draw, EXPERT_FLAGS, at_most=2), *_flags(draw, DRAWN, at_most=3)):
        values[name] = draw(st.sampled_from(values_of(name)))
    env = {name: draw(st.sampled_from(VARIABLES[name])) for name in _flags(draw, sorted(VARIABLES), at_most=1)}
    return RandomLaunch(model=draw(st.sampled_from(models)), layout=Layout(**values), env=env)


def _flags(draw: st.DrawFn, names: Sequence[str], *, at_most: int) -> list[str]:
    return draw(st.lists(st.sampled_from(names), max_size=at_most, unique=True))
