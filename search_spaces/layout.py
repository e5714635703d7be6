"""How a model is laid out on GPUs: SGLang's launch flags that shape the layout or its memory.

SGLang's `--tp-size` is the world size of one pipeline stage, not the width of a matrix split.
Inside it attention is laid out as attention-DP x attention-CP x attention-TP, and the experts as
MoE-DP x EP x MoE-TP (sglang 0.5.23, srt/runtime_context.py:73-157):

    tp_size == attn_dp_size * attn_cp_size * attn_tp_size
    tp_size == moe_dp_size  * ep_size      * moe_tp_size
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from search_spaces.errors import MalformedError, UnsupportedError

LARGEST_NUMBER = 2**63 - 1
"""The engine's tensors count in 64 bits. Layouts with larger numbers are not judged."""

MOST_GPUS = 4096
"""Beyond any launch there is: what takes time for each rank is done up to here."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One launch configuration, as requested or, with every automatic value filled in, as effective.

    Every field is one flag of the engine under its own name (its parser's `dest`), with its own default.
    `None` stands for "the engine decides". A `Layout` may hold sizes that no engine accepts; saying so
    is the work of `search_spaces.sglang.rules`.

    It keeps a `__dict__`, unlike other values here, so that `changed` costs one copy of it.
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

    enable_prefill_cp: bool = False
    """Prefill context parallelism; how tokens are dealt out is `cp_strategy`."""
    cp_strategy: str | None = None
    dcp_size: int = 1
    """Decode context parallelism, inside the TP group."""
    dcp_comm_backend: str | None = None
    dwdp_size: int = 1
    """Distributed weight data parallelism: each rank fetches the experts it lacks; 1 or `tp_size`."""
    base_gpu_id: int = 0
    gpu_id_step: int = 1
    pp_max_micro_batch_size: int | None = None
    load_balance_method: str = "auto"
    disaggregation_mode: str = "null"

    enable_eplb: bool = False
    ep_dispatch_algorithm: str | None = None
    init_expert_location: str = "trivial"
    deepep_v2_mode: str = "direct"
    disable_shared_experts_fusion: bool = False
    enforce_shared_experts_fusion: bool = False

    enable_two_batch_overlap: bool = False
    enable_single_batch_overlap: bool = False
    disable_overlap_schedule: bool = False
    enable_layernorm_sp: bool = False

    enable_mscclpp: bool = False
    enable_torch_symm_mem: bool = False
    enable_symm_mem: bool = False
    flashinfer_allreduce_fusion_backend: str | None = None
    enforce_disable_flashinfer_allreduce_fusion: bool = False

    attention_backend: str | None = None
    prefill_attention_backend: str | None = None
    decode_attention_backend: str | None = None
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    dtype: str = "auto"

    max_total_tokens: int | None = None
    max_prefill_tokens: int = 16384
    context_length: int | None = None
    disable_radix_cache: bool = False
    schedule_policy: str = "fcfs"
    schedule_conservativeness: float = 1.0
    enable_mixed_chunk: bool = False
    enable_dynamic_chunking: bool = False
    num_continuous_decode_steps: int = 1

    cuda_graph_backend_decode: str | None = None
    cuda_graph_backend_prefill: str | None = None
    cuda_graph_bs_decode: tuple[int, ...] | None = None
    cuda_graph_bs_prefill: tuple[int, ...] | None = None
    """Token counts of the captured prefill graphs."""
    cuda_graph_max_bs_prefill: int | None = None
    disable_decode_cuda_graph: bool = False
    disable_prefill_cuda_graph: bool = False
    disable_cuda_graph_padding: bool = False
    enable_torch_compile: bool = False

    speculative_algorithm: str | None = None
    speculative_draft_model_path: str | None = None
    speculative_num_steps: int | None = None
    speculative_eagle_topk: int | None = None
    speculative_num_draft_tokens: int | None = None

    def changed(self, **values: Any) -> Self:
        """What `dataclasses.replace` gives, without naming every field: for the judgement of many layouts.

        Raises TypeError for a name that is no field.
        """
        new = object.__new__(type(self))
        kept = new.__dict__
        kept.update(self.__dict__)
        count = len(kept)
        kept.update(values)
        if len(kept) != count:
            strange = ", ".join(sorted(values.keys() - self.__dict__.keys()))
            raise TypeError(f"no field of {type(self).__name__}: {strange}")
        return new

    def check_numbers(self) -> None:
        """Raises MalformedError where a number is larger than any engine counts."""
        for name, value in vars(self).items():
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, int) and abs(number) > LARGEST_NUMBER:
                    raise MalformedError(
                        f"{name} is a number of {len(str(abs(number)))} digits: SGLang counts in 64 bits"
                    )

    def needed_nodes(self) -> dict[str, int]:
        """gpus_per_node and num_nodes of the smallest cluster of equal nodes that has room for it.

        Raises UnsupportedError where that is larger than any there is.
        """
        nodes, gpus = max(self.nnodes, 1), max(self.num_gpus, 1)
        if max(nodes, gpus) > MOST_GPUS:
            raise UnsupportedError(
                f"a launch on {gpus} GPUs (dp_size={self.dp_size}, tp_size={self.tp_size}, pp_size={self.pp_size}) and "
                f"{nodes} node(s) is judged only for GPUs that are named: of itself no launch is taken to have more "
                f"than {MOST_GPUS}"
            )
        return {"gpus_per_node": -(-gpus // nodes), "num_nodes": nodes}

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
        """A short name people use: `TP8 EP8 mem0.88`, `TP4 PP2 ADP2`. Only what differs from a plain launch.

        noCAR: without the custom all-reduce, noFI: without FlashInfer's fused one.
        """
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
        for name, is_set in (
            ("noCAR", self.disable_custom_all_reduce),
            ("noFI", self.enforce_disable_flashinfer_allreduce_fusion),
            ("mscclpp", self.enable_mscclpp),
            ("symm", self.enable_torch_symm_mem),
        ):
            if is_set:
                parts.append(name)
        if self.mem_fraction_static is not None:
            parts.append(f"mem{self.mem_fraction_static:g}")
        return " ".join(parts)
