"""How a model is laid out on GPUs: SGLang's launch flags that shape the layout or its memory.

SGLang's `--tp-size` is the world size of one pipeline stage, not the width of a matrix split.
Inside it attention is laid out as attention-DP x attention-CP x attention-TP, and the experts as
MoE-DP x EP x MoE-TP (sglang 0.5.23, srt/runtime_context.py:73-157):

    tp_size == attn_dp_size * attn_cp_size * attn_tp_size
    tp_size == moe_dp_size  * ep_size      * moe_tp_size
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One launch configuration, as requested or, with every automatic value filled in, as effective.

    `None` stands for "the engine decides". A `Layout` may hold sizes that no engine accepts; saying so
    is the work of `search_spaces.sglang.rules`.
    """

    tp_size: int = 1
    pp_size: int = 1
    dp_size: int = 1
    """Independent replicas of the whole model, each with its own GPUs."""
    attn_dp_size: int = 1
    """Attention data parallelism, inside `tp_size`."""
    attn_cp_size: int = 1
    ep_size: int = 1
    moe_dp_size: int = 1
    moe_a2a_backend: str = "none"
    mem_fraction_static: float | None = None
    chunked_prefill_size: int | None = None
    page_size: int | None = None
    max_running_requests: int | None = None
    cuda_graph_max_bs_decode: int | None = None
    moe_runner_backend: str = "auto"
    deepep_mode: str = "auto"
    moe_dense_tp_size: int | None = None
    enable_dp_lm_head: bool = False
    ep_num_redundant_experts: int = 0
    disable_custom_all_reduce: bool = False
    nnodes: int = 1

    @property
    def num_gpus(self) -> int:
        return self.dp_size * self.tp_size * self.pp_size

    @property
    def attn_tp_size(self) -> int:
        """Ranks that share one attention computation; 0 where the sizes do not divide."""
        return self.tp_size // max(self.attn_dp_size, 1) // max(self.attn_cp_size, 1)

    @property
    def moe_tp_size(self) -> int:
        """Ranks that share one expert; 0 where the sizes do not divide."""
        return self.tp_size // max(self.ep_size, 1) // max(self.moe_dp_size, 1)

    @property
    def label(self) -> str:
        """A short name people use: `TP8 EP8 mem0.88`, `TP4 PP2 ADP2`. Only what differs from a plain launch."""
        parts = [f"TP{self.tp_size}"]
        for name, value in (
            ("PP", self.pp_size),
            ("DP", self.dp_size),
            ("ADP", self.attn_dp_size),
            ("ACP", self.attn_cp_size),
            ("EP", self.ep_size),
            ("MDP", self.moe_dp_size),
        ):
            if value != 1:
                parts.append(f"{name}{value}")
        if self.moe_a2a_backend != "none":
            parts.append(self.moe_a2a_backend)
        if self.mem_fraction_static is not None:
            parts.append(f"mem{self.mem_fraction_static:g}")
        return " ".join(parts)
