"""What the engine silently makes of a layout (sglang 0.5.23, arg_groups/pipeline.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.sglang.adjustments import adjustments_of
from search_spaces.sglang.attention_backends import (
    attention_backends,
    fp4_cache_backends,
    kv_cache_dtype,
    renamed_backends,
)
from search_spaces.sglang.cuda_graphs import (
    context_parallel_graphs,
    graph_plan,
    names_prefill_backend,
)
from search_spaces.sglang.memory_defaults import sizes_by_memory
from search_spaces.sglang.model_defaults import UNQUANTIZED, declared_by_model
from search_spaces.sglang.parallel_defaults import (
    EP_SPANNING_BACKENDS,
    all_reduce_fusion,
    data_parallel,
    decode_context_backend,
    deepseek_v4_limits,
    expert_balancing,
    expert_parallel,
    unaliased,
    weight_data_parallel,
)
from search_spaces.sglang.speculation import speculation
from search_spaces.sglang.target import DEEPSEEK_FAMILY, Target
from search_spaces.sglang.version_facts import VersionFacts, facts_of
from search_spaces.sglang.versions import NEWEST, EngineVersion, release_0_5
from search_spaces.verdict import Adjustment

__all__ = ["EP_SPANNING_BACKENDS", "Resolution", "resolution_of", "resolve"]

Changes = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """The same launch as asked for, as its model declares it, and as it runs.

    declared: after the architecture's own declarations and weight data parallelism, before attention data
        parallelism divides the chunk and an all-to-all backend widens ep_size.
    effective: with every automatic value filled in; where it is illegal, as far as the engine gets.
    """

    declared: Layout
    effective: Layout


def resolve(
    layout: Layout, model: Model, cluster: Cluster, version: EngineVersion = NEWEST
) -> tuple[Layout, tuple[Adjustment, ...]]:
    """The layout with every automatic value filled in, and what was changed without being asked.

    Filling in a value that was left open (chunk, graph limit, memory fraction) is no change; overriding
    one, or choosing another than the documented default, is.
    """
    target = Target(model=model, gpu=cluster.gpu)
    effective = resolution_of(layout, target, version).effective
    return effective, adjustments_of(layout, effective, target, facts_of(version))


def resolution_of(asked: Layout, target: Target, version: EngineVersion = NEWEST) -> Resolution:
    """In the order of the engine's pipeline. Each step sees what the steps before it have settled."""
    facts = facts_of(version)
    now = _with(asked, unaliased(asked) | renamed_backends(asked) | weight_data_parallel(asked))
    graphs = graph_plan(now, target, facts)
    sizes = graphs.changes() | decode_context_backend(now, target) | sizes_by_memory(now, graphs, target, facts)
    if now.disaggregation_mode == "decode":
        sizes["disable_radix_cache"] = True
    now = _with(now, sizes)
    now = _with(now, _declared(now, target, facts))
    now = _with(now, _deepseek_experts(now, target, facts) | all_reduce_fusion(now, target, facts))
    declared = now
    now = _with(now, _attention(asked, now, target, facts))
    now = _with(now, _runner(now, target, facts))
    if facts.stops_prefill_graphs_for_trtllm and not names_prefill_backend(asked) and _bypasses_routing(now, target):
        now = _with(now, {"cuda_graph_backend_prefill": "disabled"})
    now = _with(now, expert_parallel(now, facts))
    now = _with(now, _scheduling(now, target, facts))
    return Resolution(declared=declared, effective=now)


def _with(layout: Layout, changes: Changes) -> Layout:
    return layout.changed(**changes) if changes else layout


def _declared(now: Layout, target: Target, facts: VersionFacts) -> Changes:
    changes = declared_by_model(now, target) | deepseek_v4_limits(now, target) | kv_cache_dtype(now, target)
    if target.is_sm120 and target.model.architecture == "GptOssForCausalLM" and "moe_runner_backend" in changes:
        changes["moe_runner_backend"] = facts.gpt_oss_runner_on_sm120
    if changes.get("attention_backend") == "dsa":
        changes["attention_backend"] = facts.dsa_backend
    if now.enable_prefill_cp and target.is_mla and target.model.architecture in DEEPSEEK_FAMILY:
        changes["cuda_graph_backend_prefill"] = "disabled"
    return _as_the_release_reads_modelopt(changes, facts)


def _as_the_release_reads_modelopt(changes: Changes, facts: VersionFacts) -> Changes:
    """0.5.9 does not see a checkpoint's precision, and so has no runner for it (0.5.9 utils/common.py:2844)."""
    if facts.tells_modelopt_apart or not str(changes.get("quantization")).startswith("modelopt_"):
        return changes
    rest = {name: value for name, value in changes.items() if name != "moe_runner_backend"}
    return rest | {"quantization": "modelopt"}


_DEEPSEEK_ON_TRTLLM = {"fp8": 9, "modelopt_fp8": 9, "modelopt_fp4": 9, "modelopt_mixed": 10, "int4": 10, None: 12}
"""Kinds of experts that run on `flashinfer_trtllm` by themselves, with the 0.5 release since which they do."""


def _deepseek_experts(now: Layout, target: Target, facts: VersionFacts) -> Changes:
    """DeepSeek's quantisation and runner on compute capability 10.x (arg_groups/overrides.py:760)."""
    if not target.is_sm100 or target.model.architecture not in DEEPSEEK_FAMILY:
        return {}
    changes: Changes = {}
    quantization = now.quantization
    if quantization is None:
        quantization = target.config_quantization
        is_plain = quantization is None and target.model.architecture == "DeepseekV3ForCausalLM"
        if is_plain and facts.takes_deepseek_for_fp8:
            quantization = "fp8"
        if quantization is not None:
            changes["quantization"] = quantization
    elif quantization == UNQUANTIZED:
        quantization = None
    # INT4 counts in the recipe of Kimi K2 Thinking, groups of 32.
    is_int4 = target.config_quantization == "compressed-tensors" and target.model.quantization.group_size == 32
    since = _DEEPSEEK_ON_TRTLLM.get("int4" if is_int4 else quantization)
    is_new_enough = since is not None and facts.version >= release_0_5(since)
    if is_new_enough and now.moe_a2a_backend == "none" and now.moe_runner_backend == "auto":
        changes["moe_runner_backend"] = "flashinfer_trtllm"
    return _as_the_release_reads_modelopt(changes, facts)


def _attention(asked: Layout, now: Layout, target: Target, facts: VersionFacts) -> Changes:
    """Attention backends, and attention data parallelism."""
    changes = fp4_cache_backends(now, target)
    changes |= attention_backends(_with(now, changes), target, facts)
    backend = changes["attention_backend"]
    prefill = changes.get("prefill_attention_backend", now.prefill_attention_backend) or backend
    if (
        prefill == "trtllm_mla"
        and facts.spares_trtllm_mla_prefill
        and target.model.architecture == "DeepseekV3ForCausalLM"
        and not names_prefill_backend(asked)
    ):
        changes["cuda_graph_backend_prefill"] = "disabled"
    graph = changes.get("cuda_graph_backend_prefill", now.cuda_graph_backend_prefill)
    changes |= data_parallel(asked, now, follows_chunk=facts.limits_graph_to_chunk and graph != "disabled")
    if now.quantization == UNQUANTIZED:
        changes["quantization"] = None
    if now.enable_prefill_cp:
        changes |= context_parallel_graphs(asked, now.changed(**changes), target, facts)
    return changes


def _runner(now: Layout, target: Target, facts: VersionFacts) -> Changes:
    """Runners that the scheme settles (arg_groups/overrides.py:1449)."""
    if now.moe_runner_backend != "auto" or target.is_cpu:
        return {}
    match now.quantization:
        case "mxfp8":
            is_mega = now.moe_a2a_backend == "flashinfer_megamoe"
            return {"moe_runner_backend": "flashinfer_megamoe" if is_mega else facts.online_mxfp8_runner}
        case "nvfp4_online":
            return {"moe_runner_backend": "flashinfer_trtllm"}
        case "modelopt_fp4" if target.is_sm120 and facts.prefers_cutlass_on_sm120:
            return {"moe_runner_backend": "flashinfer_cutlass"}
        case _:
            return {}


def _bypasses_routing(now: Layout, target: Target) -> bool:
    """Whether the experts' kernel routes by itself, which piecewise compilation cannot see (server_args.py:3177 of
    0.5.12)."""
    is_fused = now.moe_runner_backend in {"flashinfer_trtllm", "flashinfer_mxfp4"}
    return is_fused and target.model.architecture != "GptOssForCausalLM"


def _scheduling(now: Layout, target: Target, facts: VersionFacts) -> Changes:
    """What balances experts, overlaps batches and drafts tokens."""
    changes = expert_balancing(now)
    if now.pp_size > 1:
        changes["disable_overlap_schedule"] = True
    return changes | speculation(now, target, facts)
