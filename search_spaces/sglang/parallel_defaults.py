"""How the sizes of the groups, and what hangs on them, are rewritten (arg_groups/parallel_hook.py of 0.5.23)."""

from __future__ import annotations

from typing import Any

from search_spaces.layout import Layout
from search_spaces.sglang.target import Target
from search_spaces.sglang.version_facts import VersionFacts
from search_spaces.sglang.versions import release_0_5

EP_SPANNING_BACKENDS = frozenset(
    {
        "ascend_fuseep",
        "deepep",
        "deepep_v2",
        "flashinfer",
        "flashinfer_megamoe",
        "megamoe",
        "mooncake",
        "mori",
        "nixl",
        "pplx",
    }
)
"""All-to-all backends whose expert group is the whole TP group (arg_groups/overrides.py:1579)."""

_UNFUSING_RUNNERS = frozenset(
    {
        "experimental_sgl_trtllm",
        "flashinfer_cutedsl",
        "flashinfer_trtllm",
        "flashinfer_trtllm_routed",
        "lora_cutedsl",
        "lora_marlin",
        "lora_triton",
    }
)
_UNFUSING_BACKENDS = frozenset({"deepep_v2", "flashinfer", "flashinfer_megamoe"})

_FUSING_ALL_REDUCE = {
    "DeepseekV32ForCausalLM": 11,
    "DeepseekV3ForCausalLM": 9,
    "DeepseekV4ForCausalLM": 18,
    "Glm4MoeForCausalLM": 9,
    "GlmMoeDsaForCausalLM": 11,
    "GptOssForCausalLM": 9,
    "KimiK25ForConditionalGeneration": 9,
    "MiMoV2FlashForCausalLM": 23,
    "NemotronHForCausalLM": 14,
    "Qwen3MoeForCausalLM": 9,
    "Qwen3NextForCausalLM": 11,
    "Qwen3VLMoeForConditionalGeneration": 14,
    "Qwen3_5ForConditionalGeneration": 10,
    "Qwen3_5MoeForConditionalGeneration": 10,
}
"""Architectures read here whose all-reduce FlashInfer fuses by default (arg_groups/overrides.py:929), with the 0.5
release since which it does."""

_MIMO_FUSION_SIZES = frozenset({2, 4, 8, 16})
_CONSERVATIVENESS_FACTOR = 0.3


def unaliased(layout: Layout) -> dict[str, Any]:
    """`--moe-runner-backend megamoe` is another spelling of the all-to-all backend (mega_moe_hook.py:260)."""
    if layout.moe_runner_backend == "megamoe":
        return {"moe_a2a_backend": "megamoe", "moe_runner_backend": "auto"}
    return {}


def weight_data_parallel(layout: Layout) -> dict[str, Any]:
    """Distributed weight data parallelism makes attention and experts as wide as itself (parallel_hook.py:433)."""
    if layout.dwdp_size <= 1:
        return {}
    return {
        "attn_dp_size": layout.dwdp_size,
        "dp_size": 1,
        "ep_size": layout.dwdp_size,
        "moe_dp_size": 1,
        "moe_a2a_backend": "none",
        "moe_dense_tp_size": 1,
        "enable_dp_lm_head": True,
    }


def decode_context_backend(layout: Layout, target: Target) -> dict[str, Any]:
    """How decode context parallelism combines its parts (overrides.py:1375, utils/common.py:1056)."""
    if layout.dcp_comm_backend is not None:
        return {}
    if layout.dcp_size <= 1:
        return {"dcp_comm_backend": "ag_rs"}
    nodes_per_stage = max(layout.nnodes // max(layout.pp_size, 1), 1)
    in_one_node = target.is_sm100 and layout.tp_size // nodes_per_stage % layout.dcp_size == 0
    return {"dcp_comm_backend": "fi_a2a" if in_one_node else "ag_rs" if target.is_cpu else "a2a"}


def deepseek_v4_limits(layout: Layout, target: Target) -> dict[str, Any]:
    """DeepSeek-V4's request limit and its prefill context parallelism (deepseek_v4_hook.py:134, :192)."""
    if target.model.architecture != "DeepseekV4ForCausalLM":
        return {}
    changes: dict[str, Any] = {}
    if layout.max_running_requests is None:
        changes["max_running_requests"] = 256
    if layout.enable_prefill_cp:
        groups = layout.attn_dp_size * layout.dp_size
        changes |= {"attn_dp_size": groups, "dp_size": 1, "moe_dense_tp_size": 1}
        changes["attn_cp_size"] = layout.tp_size // max(groups, 1)
    return changes


def all_reduce_fusion(layout: Layout, target: Target, facts: VersionFacts) -> dict[str, Any]:
    """FlashInfer's fused all-reduce, on where plain tensor parallelism can use it (overrides.py:955).

    Over several nodes since 0.5.14, on compute capability 10.x; not on the H20 before 0.5.13; 0.5.10 alone leaves
    context-parallel attention out (server_args.py: line 1670 of 0.5.9, 2090 of 0.5.10).
    """
    if layout.enforce_disable_flashinfer_allreduce_fusion:
        return {"flashinfer_allreduce_fusion_backend": None}
    if layout.flashinfer_allreduce_fusion_backend is not None:
        return {}
    since = _FUSING_ALL_REDUCE.get(target.model.architecture)
    if since is None or facts.version < release_0_5(since):
        return {}
    is_mimo = target.model.architecture == "MiMoV2FlashForCausalLM"
    if is_mimo and not (target.is_sm100 and layout.tp_size in _MIMO_FUSION_SIZES and layout.attn_cp_size == 1):
        return {}
    crosses_nodes = target.is_sm100 and facts.version >= release_0_5(14)
    is_spared = (target.gpu.key == "h20" and facts.version < release_0_5(13)) or (
        layout.attn_cp_size > 1 and facts.version == release_0_5(10)
    )
    if (
        (target.is_sm90 or target.is_sm100)
        and layout.tp_size > 1
        and layout.attn_dp_size <= 1
        and (layout.nnodes == 1 or crosses_nodes)
        and not is_spared
        and layout.moe_a2a_backend == "none"
    ):
        return {"flashinfer_allreduce_fusion_backend": "cutedsl" if is_mimo else "auto"}
    return {}


def data_parallel(asked: Layout, layout: Layout, *, follows_chunk: bool) -> dict[str, Any]:
    """Attention data parallelism shares out the chunk, and with it the prefill graphs (parallel_hook.py:272)."""
    changes: dict[str, Any] = {}
    if layout.load_balance_method == "auto":
        is_prefill = layout.disaggregation_mode == "prefill"
        changes["load_balance_method"] = "follow_bootstrap_room" if is_prefill else "round_robin"
    groups = layout.attn_dp_size
    if layout.dp_size * groups == 1:
        changes["enable_dp_lm_head"] = False
    if groups <= 1:
        return changes
    chunk = (layout.chunked_prefill_size or 0) // groups
    changes["chunked_prefill_size"] = chunk
    changes["schedule_conservativeness"] = layout.schedule_conservativeness * _CONSERVATIVENESS_FACTOR
    if follows_chunk and (layout.cuda_graph_max_bs_prefill or 0) > chunk and asked.cuda_graph_max_bs_prefill is None:
        changes["cuda_graph_max_bs_prefill"] = chunk
        changes["cuda_graph_bs_prefill"] = asked.cuda_graph_bs_prefill
    return changes


def expert_parallel(layout: Layout, facts: VersionFacts) -> dict[str, Any]:
    """What an all-to-all backend makes of expert parallelism, runner and graphs (arg_groups/moe_hook.py:290)."""
    changes: dict[str, Any] = {}
    a2a, runner, mode = layout.moe_a2a_backend, layout.moe_runner_backend, layout.deepep_mode
    if a2a in EP_SPANNING_BACKENDS:
        changes["ep_size"] = layout.tp_size
    fuses = runner == "flashinfer_cutedsl" and facts.fuses_cutedsl_experts
    if (runner in _UNFUSING_RUNNERS and not fuses) or a2a in _UNFUSING_BACKENDS:
        changes["disable_shared_experts_fusion"] = True
    return changes | _of_backend(a2a, runner, mode, facts)


def _of_backend(a2a: str, runner: str, mode: str, facts: VersionFacts) -> dict[str, Any]:
    no_graphs = {"cuda_graph_backend_decode": "disabled", "cuda_graph_backend_prefill": "disabled"}
    match a2a:
        case "deepep":
            forced = runner == "flashinfer_cutedsl" and mode == "auto" and facts.prefers_low_latency
            return no_graphs if mode == "normal" else {"deepep_mode": "low_latency"} if forced else {}
        case "deepep_v2":
            return {
                "cuda_graph_backend_prefill": "disabled",
                "moe_runner_backend": "deep_gemm" if runner == "auto" else runner,
            }
        case "flashinfer_megamoe":
            return {"moe_runner_backend": "flashinfer_megamoe" if runner == "auto" else runner}
        case "mori":
            return {"deepep_mode": "normal" if mode == "auto" or facts.mori_is_always_normal else mode}
        case "pplx":
            return {
                "deepep_mode": "low_latency" if mode == "auto" else mode,
                "moe_runner_backend": "deep_gemm" if runner == "auto" else runner,
            }
        case _:
            return {"moe_a2a_backend": "none"} if a2a == "ascend_tp" else {}


def expert_balancing(layout: Layout) -> dict[str, Any]:
    """How tokens are dealt out to an expert's copies (parallel_hook.py:762)."""
    moves_experts = layout.enable_eplb or layout.init_expert_location != "trivial"
    if moves_experts and layout.ep_dispatch_algorithm is None:
        return {"ep_dispatch_algorithm": "dynamic" if layout.moe_a2a_backend == "none" else "static"}
    return {}
