"""Rules on how the experts fill the TP group, and on the topology as a whole."""

from __future__ import annotations

from search_spaces.sglang.rule import SIZES, WIDTHS, Launch, Rule, says
from search_spaces.sglang.versions import release_0_5
from search_spaces.verdict import Stage

_ANYWAY: frozenset[str] = frozenset()
_SIZED = frozenset({SIZES})
_TOPOLOGY_CHECKED_SINCE = release_0_5(21)
_TOPOLOGY_CHECKED_BEFORE = release_0_5(20)


def _expert_groups(launch: Launch) -> str:
    asked = launch.declared
    return f"(tp_size={asked.tp_size}, ep_size={asked.ep_size}, moe_dp_size={asked.moe_dp_size})"


EXPERT_DATA_GROUPS = (
    Rule(
        id="moe_dp.divides",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:172",
        broken=lambda launch: (
            launch.declared.moe_dp_size > 1 and launch.declared.tp_size % launch.declared.moe_dp_size != 0
        ),
        message=lambda launch: (
            f"moe_dp_size must divide tp_size, but {launch.declared.moe_dp_size} does not divide "
            f"{launch.declared.tp_size}"
        ),
        exception="AssertionError",
        engine_text=says("tp_size must be divisible by moe_dp_size"),
        needs=_ANYWAY,
    ),
    Rule(
        id="moe_dp.with_ep",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:175",
        broken=lambda launch: (
            launch.declared.moe_dp_size > 1
            and launch.declared.ep_size * launch.declared.moe_dp_size > launch.declared.tp_size
        ),
        message=lambda launch: f"ep_size * moe_dp_size must not exceed tp_size {_expert_groups(launch)}",
        exception="AssertionError",
        engine_text=says("ep_size * moe_dp_size must be less than or equal to tp_size"),
        needs=_ANYWAY,
    ),
    Rule(
        id="moe_dp.with_pp",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:178",
        broken=lambda launch: launch.declared.moe_dp_size > 1 and launch.declared.pp_size != 1,
        message=lambda launch: (
            "MoE data parallelism and pipeline parallelism cannot be combined "
            f"(moe_dp_size={launch.declared.moe_dp_size}, pp_size={launch.declared.pp_size})"
        ),
        exception="AssertionError",
        engine_text=says("PP is not supported with context parallelism"),
        needs=_ANYWAY,
    ),
    Rule(
        id="moe_dp.fills_tp",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:181",
        broken=lambda launch: (
            launch.declared.moe_dp_size > 1
            and launch.declared.ep_size > 1
            and launch.declared.ep_size * launch.declared.moe_dp_size < launch.declared.tp_size
        ),
        message=lambda launch: (
            "with both MoE data parallelism and expert parallelism, ep_size * moe_dp_size must be tp_size "
            + _expert_groups(launch)
        ),
        exception="AssertionError",
        engine_text=says("ep_size * moe_dp_size must be equal to tp_size"),
        needs=_ANYWAY,
    ),
    Rule(
        id="moe_dp.is_attn_cp",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:190",
        broken=lambda launch: launch.declared.moe_dp_size not in (1, launch.declared.attn_cp_size),
        message=lambda launch: (
            f"moe_dp_size must be 1 or attn_cp_size (moe_dp_size={launch.declared.moe_dp_size}, "
            f"attn_cp_size={launch.declared.attn_cp_size})"
        ),
        exception="AssertionError",
        engine_text=says("attn_cp_size != moe_dp_size is only supported when moe_dp_size == 1"),
        needs=_ANYWAY,
        since=release_0_5(11),
    ),
)


def _moe_tp(launch: Launch) -> int:
    """As the engine floors it; only asked where no divisor is 0."""
    run = launch.effective
    return run.tp_size // run.ep_size // run.moe_dp_size


def _has_divisors(launch: Launch) -> bool:
    return launch.effective.ep_size != 0 and launch.effective.moe_dp_size != 0


def _topology(launch: Launch) -> str:
    run = launch.effective
    return (
        f"ep_size * moe_dp_size must divide tp_size, but {run.ep_size} * {run.moe_dp_size} does not divide "
        f"{run.tp_size}"
    )


def _topology_text(launch: Launch) -> str:
    run = launch.effective
    width = _moe_tp(launch)
    return (
        "parallel topology is inconsistent (set by override_permanently):\n"
        "tp_size == moe_ep_size * moe_dp_size * moe_tp_size\n"
        f"  {run.tp_size} != {run.ep_size} * {run.moe_dp_size} * {width} "
        f"(= {run.ep_size * run.moe_dp_size * width})"
    )


def _leaves_ranks_over(launch: Launch) -> bool:
    run = launch.effective
    return _has_divisors(launch) and run.tp_size != run.ep_size * run.moe_dp_size * _moe_tp(launch)


TOPOLOGY = (
    Rule(
        id="attn_cp.positive",
        stage=Stage.PUBLISH,
        source="runtime_context.py:81",
        broken=lambda launch: launch.asked.attn_cp_size < 1,
        message=lambda launch: f"attn_cp_size must be at least 1, but is {launch.asked.attn_cp_size}",
        exception="ZeroDivisionError",
        engine_text=says("integer division or modulo by zero"),
        needs=_ANYWAY,
    ),
    Rule(
        id="ep.zero",
        stage=Stage.PUBLISH,
        source="runtime_context.py:154",
        broken=lambda launch: launch.effective.ep_size == 0,
        message=says("ep_size must be at least 1, but is 0"),
        exception="ZeroDivisionError",
        engine_text=says("integer division or modulo by zero"),
        needs=_ANYWAY,
    ),
    Rule(
        id="moe_dp.zero",
        stage=Stage.PUBLISH,
        source="0.5.10 entrypoints/engine.py:1271",
        broken=lambda launch: launch.declared.moe_dp_size == 0,
        message=says("moe_dp_size must be at least 1, but is 0"),
        exception="ZeroDivisionError",
        engine_text=says("integer division or modulo by zero"),
        needs=_ANYWAY,
        until=release_0_5(10),
    ),
    Rule(
        id="ep.divides",
        stage=Stage.PUBLISH,
        source="runtime_context.py:347",
        broken=lambda launch: launch.asked.tp_size > 0 and launch.asked.dcp_size <= 1 and _leaves_ranks_over(launch),
        message=_topology,
        exception="ValueError",
        engine_text=_topology_text,
        since=_TOPOLOGY_CHECKED_SINCE,
    ),
    Rule(
        id="ep.exceeds_tp",
        stage=Stage.PUBLISH,
        source="entrypoints/engine.py (_compute_parallelism_ranks), 0.5.9 to 0.5.20",
        broken=lambda launch: _has_divisors(launch) and _moe_tp(launch) == 0,
        message=lambda launch: (
            f"{_topology(launch)}: {launch.effective.tp_size} // {launch.effective.moe_dp_size} // "
            f"{launch.effective.ep_size} = 0"
        ),
        exception="ZeroDivisionError",
        engine_text=says("integer division or modulo by zero"),
        needs=_SIZED,
        until=_TOPOLOGY_CHECKED_BEFORE,
    ),
    Rule(
        id="ep.exceeds_tp_under_dcp",
        stage=Stage.INIT,
        source="runtime_context.py:129",
        broken=lambda launch: launch.asked.dcp_size > 1 and _has_divisors(launch) and _moe_tp(launch) == 0,
        message=lambda launch: (
            f"{_topology(launch)}: {launch.effective.tp_size} // {launch.effective.moe_dp_size} // "
            f"{launch.effective.ep_size} = 0"
        ),
        exception="ZeroDivisionError",
        engine_text=says("integer division or modulo by zero"),
        needs=frozenset({WIDTHS}),
        since=_TOPOLOGY_CHECKED_SINCE,
    ),
    Rule(
        id="ep.divides_under_dcp",
        stage=Stage.INIT,
        source="runtime_context.py:347 (the main process skips it under decode context parallelism, :1567)",
        broken=lambda launch: launch.asked.tp_size > 0 and launch.asked.dcp_size > 1 and _leaves_ranks_over(launch),
        message=_topology,
        exception="ValueError",
        engine_text=_topology_text,
        since=_TOPOLOGY_CHECKED_SINCE,
    ),
    Rule(
        id="ep.negative",
        stage=Stage.INIT,
        source="runtime_context.py:347",
        broken=lambda launch: launch.effective.ep_size < 0,
        message=lambda launch: f"ep_size must be at least 1, but is {launch.effective.ep_size}",
        exception="ValueError",
        engine_text=lambda launch: (
            "parallel topology is inconsistent (set by override_permanently):\n"
            f"0 <= moe_ep_rank < moe_ep_size\n  0 is not a rank of {launch.effective.ep_size}"
        ),
        needs=_ANYWAY,
        since=release_0_5(21),
    ),
)


FLOORED = (
    Rule(
        id="ep.negative",
        stage=Stage.UNDETECTED,
        source="0.5.20 entrypoints/engine.py:1904 (no lower bound)",
        broken=lambda launch: launch.effective.ep_size < 0,
        message=lambda launch: f"ep_size must be at least 1, but is {launch.effective.ep_size}",
        needs=_ANYWAY,
        until=release_0_5(20),
    ),
    Rule(
        id="ep.floored",
        stage=Stage.UNDETECTED,
        source="entrypoints/engine.py (_compute_parallelism_ranks), 0.5.9 to 0.5.20",
        broken=lambda launch: _leaves_ranks_over(launch) and _moe_tp(launch) > 0,
        message=lambda launch: (
            f"{_topology(launch)}; the engine rounds down and leaves ranks without a part in the experts"
        ),
        needs=_SIZED,
        until=_TOPOLOGY_CHECKED_BEFORE,
    ),
)
