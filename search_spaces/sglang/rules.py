"""Judges a layout by the engine's rules, in the order in which the engine would come to them."""

from __future__ import annotations

from collections.abc import Mapping

from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.sglang import (
    rules_arguments,
    rules_attention,
    rules_attention_groups,
    rules_backends,
    rules_balancing,
    rules_budgets,
    rules_decode_context,
    rules_deepseek_v4,
    rules_expert_kernels,
    rules_experts,
    rules_graph_sizes,
    rules_kv_cache,
    rules_layers,
    rules_model,
    rules_overlap,
    rules_placement,
    rules_prefill_context,
    rules_quantization,
    rules_runners,
    rules_running,
    rules_speculation,
    rules_spelling,
    rules_state,
    rules_topology,
)
from search_spaces.sglang.adjustments import adjustments_of
from search_spaces.sglang.relevance import RuleBook, sound_parts
from search_spaces.sglang.resolution import resolution_of
from search_spaces.sglang.rule import Launch, Rule
from search_spaces.sglang.suggestions import nearest_legal
from search_spaces.sglang.target import Target
from search_spaces.sglang.version_facts import facts_of
from search_spaces.sglang.versions import NEWEST, EngineVersion
from search_spaces.verdict import Stage, Verdict

_SPARSE_ATTENTION = (
    Rule(
        id="cpu.sparse_attention",
        stage=Stage.RESOLVE,
        source="arg_groups/overrides.py:512",
        broken=lambda launch: launch.cluster.gpu.is_cpu and launch.model.indexer is not None,
        message=lambda launch: f"{launch.model.architecture}'s sparse attention needs CUDA GPUs",
        exception="AssertionError",
        engine_text=lambda _: "Torch not compiled with CUDA enabled",
    ),
)

# The order is that of execution: parsing, resolution, checks, topology, construction, and what comes after.
RULES: tuple[Rule, ...] = (
    *rules_arguments.PARSING,
    *rules_spelling.SPELLING,
    *rules_overlap.MEGAMOE,
    *rules_backends.EARLY,
    *rules_decode_context.DECODE,
    *rules_model.MODEL,
    *rules_quantization.KNOWN,
    *rules_decode_context.WEIGHT_DATA,
    *rules_graph_sizes.LISTED,
    *rules_decode_context.SPARSE,
    *rules_balancing.NEMOTRON,
    *rules_prefill_context.REWRITTEN,
    *rules_overlap.SPARSE,
    *rules_kv_cache.SPARSE,
    *rules_deepseek_v4.LIMITS,
    *rules_attention.MODEL_BACKENDS,
    *rules_runners.EARLY,
    *_SPARSE_ATTENTION,
    *rules_state.STATE,
    *rules_kv_cache.FP4_CACHE,
    *rules_attention.BACKENDS,
    *rules_kv_cache.KV_CACHE,
    *rules_attention_groups.ATTENTION_GROUPS,
    *rules_prefill_context.PREFILL,
    *rules_attention_groups.CONTEXT_GROUPS,
    *rules_topology.EXPERT_DATA_GROUPS,
    *rules_quantization.ONLINE,
    *rules_runners.RUNNERS,
    *rules_backends.BACKENDS,
    *rules_balancing.DISPATCH,
    *rules_runners.MARLIN,
    *rules_speculation.RESOLUTION,
    *rules_overlap.SEQUENCE,
    *rules_budgets.BUDGETS,
    *rules_speculation.DRAFT_BACKEND,
    *rules_budgets.DEEPEP_V2,
    *rules_arguments.CHECKS,
    *rules_topology.TOPOLOGY,
    *rules_decode_context.GROUPS,
    *rules_arguments.NEGATIVE_SIZES,
    *rules_overlap.START,
    *rules_placement.ROOM,
    *rules_running.START,
    *rules_experts.PLACES,
    *rules_quantization.LOADING,
    *rules_model.LOADING,
    *rules_layers.BEFORE_EXPERTS,
    *rules_quantization.LINEAR,
    *rules_experts.COUNTS,
    *rules_expert_kernels.KERNELS,
    *rules_experts.WIDTHS,
    *rules_layers.AFTER_EXPERTS,
    *rules_expert_kernels.DISPATCH,
    *rules_experts.AFTER_LOAD,
    *rules_speculation.LOADING,
    *rules_running.MEMORY_AND_GRAPHS,
    *rules_running.FORWARD,
    *rules_overlap.FORWARD,
    *rules_arguments.UNDETECTED_SIZES,
    *rules_placement.UNDETECTED,
    *rules_topology.FLOORED,
    *rules_speculation.UNDETECTED,
)

_BOOK = RuleBook(RULES)


def judge(
    layout: Layout,
    model: Model,
    cluster: Cluster,
    version: EngineVersion = NEWEST,
    *,
    suggest: bool = True,
    env: Mapping[str, str] | None = None,
) -> Verdict:
    """What the engine would make of `layout`.

    suggest: also look for the nearest legal layouts where it is refused (a few hundred more judgements).
    env: the server's environment, for the capacity limits that some rules depend on.

    Raises MalformedError for a number beyond 64 bits.
    """
    layout.check_numbers()
    target = Target(model=model, gpu=cluster.gpu)
    launch = launch_of(layout, target, cluster, version, env)
    broken = [rule for _, rule in _BOOK.relevant_to(launch) if rule.broken(launch)]
    suggestions: tuple[Layout, ...] = ()
    if broken and suggest:
        suggestions = nearest_legal(
            layout, cluster, lambda near: how_far(launch_of(near, target, cluster, version, env))
        )
    return Verdict(
        requested=layout,
        effective=launch.effective,
        violations=tuple(rule.violation(launch) for rule in broken),
        adjustments=adjustments_of(layout, launch.effective, target, facts_of(version)),
        suggestions=suggestions,
    )


def first_violation(launch: Launch) -> Rule | None:
    """The rule that stops `launch` first, or None where it is legal."""
    for _, rule in _BOOK.relevant_to(launch):
        if rule.broken(launch):
            return rule
    return None


def how_far(launch: Launch) -> int | None:
    """The place, in the engine's order, of the first rule that `launch` breaks; None where it is legal."""
    return next((place for place, rule in _BOOK.relevant_to(launch) if rule.broken(launch)), None)


def launch_of(
    asked: Layout,
    target: Target,
    cluster: Cluster,
    version: EngineVersion,
    env: Mapping[str, str] | None = None,
) -> Launch:
    resolution = resolution_of(asked, target, version)
    return Launch(
        asked=asked,
        declared=resolution.declared,
        effective=resolution.effective,
        target=target,
        cluster=cluster,
        version=version,
        env=env or {},
        sound=sound_parts(asked, resolution.effective, version),
    )
