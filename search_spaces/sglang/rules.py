"""Judges a layout by the engine's rules, in the order in which the engine would come to them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.sglang import (
    rules_arguments,
    rules_backends,
    rules_budgets,
    rules_experts,
    rules_layers,
    rules_runners,
    rules_running,
    rules_topology,
)
from search_spaces.sglang.choices import DEEPEP_MODES, MOE_RUNNER_BACKENDS, moe_a2a_backends
from search_spaces.sglang.resolution import effective_layout, resolve
from search_spaces.sglang.rule import ATTENTION, CHOICES, EXPERTS, SIZES, Launch, Rule
from search_spaces.sglang.suggestions import nearest_legal
from search_spaces.sglang.target import Target
from search_spaces.sglang.versions import NEWEST, EngineVersion
from search_spaces.verdict import Stage, Verdict


def _room(cluster: Cluster) -> str:
    nodes = f"{cluster.num_nodes} nodes of " if cluster.num_nodes > 1 else ""
    return f"{nodes}{cluster.gpus_per_node} GPUs"


def _exceeds(launch: Launch) -> bool:
    asked, cluster = launch.asked, launch.cluster
    return asked.nnodes > cluster.num_nodes or asked.num_gpus > asked.nnodes * cluster.gpus_per_node


_ROOM = (
    Rule(
        id="cluster.too_small",
        stage=Stage.INIT,
        source="entrypoints/engine.py:2045",
        broken=_exceeds,
        message=lambda launch: (
            f"dp_size * tp_size * pp_size must fit the cluster, but {launch.asked.dp_size} * "
            f"{launch.asked.tp_size} * {launch.asked.pp_size} = {launch.asked.num_gpus} GPUs on "
            f"{launch.asked.nnodes} node(s) do not fit {_room(launch.cluster)}"
        ),
        exception="torch.AcceleratorError",
        engine_text=lambda _: "CUDA error: invalid device ordinal",
        needs=frozenset({SIZES}),
    ),
)

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
    *rules_backends.EARLY,
    *rules_runners.EARLY,
    *_SPARSE_ATTENTION,
    *rules_topology.ATTENTION_GROUPS,
    *rules_topology.EXPERT_DATA_GROUPS,
    *rules_runners.RUNNERS,
    *rules_backends.BACKENDS,
    *rules_budgets.BUDGETS,
    *rules_arguments.CHECKS,
    *rules_topology.TOPOLOGY,
    *_ROOM,
    *rules_layers.BEFORE_EXPERTS,
    *rules_experts.CONSTRUCTION,
    *rules_layers.AFTER_EXPERTS,
    *rules_experts.DISPATCH,
    *rules_running.MEMORY_AND_GRAPHS,
    *rules_running.FORWARD,
    *rules_arguments.UNDETECTED_SIZES,
    *rules_topology.FLOORED,
)


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
    """
    effective, adjustments = resolve(layout, model, cluster, version)
    target = Target(model=model, gpu=cluster.gpu)
    launch = launch_of(layout, effective, target, cluster, version, env)
    broken = [rule for rule in rules_for(version, is_cpu=cluster.gpu.is_cpu) if rule.is_broken_by(launch)]
    suggestions: tuple[Layout, ...] = ()
    if broken and suggest:
        suggestions = nearest_legal(
            layout,
            cluster,
            lambda near: (
                first_violation(launch_of(near, effective_layout(near, target), target, cluster, version, env)) is None
            ),
        )
    return Verdict(
        requested=layout,
        effective=effective,
        violations=tuple(rule.violation(launch) for rule in broken),
        adjustments=adjustments,
        suggestions=suggestions,
    )


def first_violation(launch: Launch) -> Rule | None:
    """The rule that stops `launch` first, or None where it is legal."""
    rules = rules_for(launch.version, is_cpu=launch.cluster.gpu.is_cpu)
    return next((rule for rule in rules if rule.is_broken_by(launch)), None)


def launch_of(
    asked: Layout,
    effective: Layout,
    target: Target,
    cluster: Cluster,
    version: EngineVersion,
    env: Mapping[str, str] | None = None,
) -> Launch:
    return Launch(
        asked=asked,
        effective=effective,
        target=target,
        cluster=cluster,
        version=version,
        env=env or {},
        sound=_sound(asked, effective, version),
    )


@cache
def rules_for(version: EngineVersion, *, is_cpu: bool) -> tuple[Rule, ...]:
    return tuple(rule for rule in RULES if rule.holds_for(version, is_cpu=is_cpu))


def _sound(asked: Layout, run: Layout, version: EngineVersion) -> frozenset[str]:
    found = []
    if (
        asked.moe_a2a_backend in moe_a2a_backends(version)
        and asked.moe_runner_backend in MOE_RUNNER_BACKENDS
        and asked.deepep_mode in DEEPEP_MODES
    ):
        found.append(CHOICES)
    sizes = (
        run.tp_size,
        run.pp_size,
        run.dp_size,
        run.attn_dp_size,
        run.attn_cp_size,
        run.ep_size,
        run.moe_dp_size,
        run.nnodes,
    )
    if min(sizes) >= 1:
        found.append(SIZES)
        if run.tp_size % (run.attn_dp_size * run.attn_cp_size) == 0:
            found.append(ATTENTION)
        if run.tp_size % (run.ep_size * run.moe_dp_size) == 0:
            found.append(EXPERTS)
    return frozenset(found)
