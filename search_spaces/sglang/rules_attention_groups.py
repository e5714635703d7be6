"""Rules on how attention fills the TP group: attention data parallelism and context parallelism."""

from __future__ import annotations

from search_spaces.sglang.rule import Launch, Rule, says, worded
from search_spaces.sglang.versions import release_0_5
from search_spaces.verdict import Stage

_ANYWAY: frozenset[str] = frozenset()


def _divides_not(divisor: int, number: int) -> bool:
    return divisor < 1 or number % divisor != 0


def _attention_groups(launch: Launch) -> str:
    asked = launch.declared
    return (
        f"tp_size must be divisible by attn_dp_size * attn_cp_size, but {asked.attn_dp_size} * "
        f"{asked.attn_cp_size} does not divide {asked.tp_size}"
    )


def _dp_size(launch: Launch) -> int:
    """`--dp-size` as releases before 0.5.22 take it: replicas, or attention data parallelism."""
    return launch.declared.dp_size * launch.declared.attn_dp_size


ATTENTION_GROUPS = (
    Rule(
        id="attn_dp.positive",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:286",
        broken=lambda launch: launch.declared.attn_dp_size < 1,
        message=lambda launch: f"attn_dp_size must be at least 1, but is {launch.declared.attn_dp_size}",
        exception="ValueError",
        engine_text=lambda launch: f"--attn-dp-size must be positive (got {launch.declared.attn_dp_size}).",
        needs=_ANYWAY,
        since=release_0_5(22),
    ),
    Rule(
        id="attn_dp.positive",
        stage=Stage.RESOLVE,
        source="0.5.21 arg_groups/parallel_hook.py:240 (tp_size % dp_size)",
        broken=lambda launch: launch.declared.attn_dp_size == 0,
        message=says("dp_size must be at least 1 with enable_dp_attention, but is 0"),
        exception="ZeroDivisionError",
        engine_text=says("integer modulo by zero"),
        needs=_ANYWAY,
        until=release_0_5(21),
    ),
    Rule(
        id="attn_dp.with_dp",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:288",
        broken=lambda launch: launch.declared.attn_dp_size > 1 and launch.declared.dp_size > 1,
        message=lambda launch: (
            "replicas and attention data parallelism cannot be combined "
            f"(dp_size={launch.declared.dp_size}, attn_dp_size={launch.declared.attn_dp_size})"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            f"--dp-size {launch.declared.dp_size} with --attn-dp-size {launch.declared.attn_dp_size}: data-parallel "
            "replicas combined with attention data parallelism are not supported."
        ),
        needs=_ANYWAY,
        since=release_0_5(22),
    ),
    Rule(
        id="attn_dp.divides",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:326",
        broken=lambda launch: (
            launch.declared.attn_dp_size > 1 and launch.declared.tp_size % launch.declared.attn_dp_size != 0
        ),
        message=lambda launch: (
            f"attn_dp_size must divide tp_size, but {launch.declared.attn_dp_size} does not divide "
            f"{launch.declared.tp_size}"
        ),
        exception="AssertionError",
        needs=_ANYWAY,
    ),
    Rule(
        id="attn_dp.dp_lm_head",
        stage=Stage.RESOLVE,
        source="arg_groups/overrides.py:1425",
        broken=lambda launch: (
            launch.declared.enable_dp_lm_head and launch.declared.attn_dp_size == 1 and launch.declared.dp_size != 1
        ),
        message=lambda launch: (
            f"enable_dp_lm_head needs attention data parallelism (attn_dp_size=1, dp_size={launch.declared.dp_size})"
        ),
        exception="AssertionError",
        engine_text=worded(
            (release_0_5(9), "Please enable dp attention when setting enable_dp_lm_head."),
            (release_0_5(22), "--enable-dp-lm-head requires attention DP (--attn-dp-size)."),
        ),
        needs=_ANYWAY,
    ),
)

CONTEXT_GROUPS = (
    Rule(
        id="attn_cp.divides",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:159",
        broken=lambda launch: (
            launch.declared.attn_cp_size > 1 and launch.declared.tp_size % launch.declared.attn_cp_size != 0
        ),
        message=lambda launch: (
            f"attn_cp_size must divide tp_size, but {launch.declared.attn_cp_size} does not divide "
            f"{launch.declared.tp_size}"
        ),
        exception="AssertionError",
        engine_text=says("tp_size must be divisible by attn_cp_size"),
        needs=_ANYWAY,
    ),
    Rule(
        id="attn_cp.with_attn_dp",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:162",
        broken=lambda launch: (
            launch.declared.attn_cp_size > 1
            and _divides_not(launch.declared.attn_dp_size * launch.declared.attn_cp_size, launch.declared.tp_size)
        ),
        message=_attention_groups,
        exception="AssertionError",
        engine_text=says("tp_size must be divisible by attn_dp_size * attn_cp_size"),
        needs=_ANYWAY,
        since=release_0_5(22),
    ),
    Rule(
        id="attn_cp.with_attn_dp",
        stage=Stage.RESOLVE,
        source="0.5.21 arg_groups/parallel_hook.py:71",
        broken=lambda launch: (
            launch.declared.attn_cp_size > 1
            and _divides_not(_dp_size(launch) * launch.declared.attn_cp_size, launch.declared.tp_size)
        ),
        message=lambda launch: (
            f"tp_size must be divisible by dp_size * attn_cp_size, replicas or not, but {_dp_size(launch)} * "
            f"{launch.declared.attn_cp_size} does not divide {launch.declared.tp_size}"
        ),
        exception="AssertionError",
        engine_text=says("tp_size must be divisible by dp_size * attn_cp_size"),
        needs=_ANYWAY,
        until=release_0_5(21),
    ),
    Rule(
        id="attn_cp.with_pp",
        stage=Stage.RESOLVE,
        source="0.5.9 server_args.py:2092",
        broken=lambda launch: launch.declared.attn_cp_size > 1 and launch.asked.pp_size != 1,
        message=lambda launch: (
            "attention context parallelism and pipeline parallelism cannot be combined "
            f"(attn_cp_size={launch.declared.attn_cp_size}, pp_size={launch.asked.pp_size})"
        ),
        exception="AssertionError",
        engine_text=says("PP is not supported with context parallelism"),
        needs=_ANYWAY,
        until=release_0_5(9),
    ),
)
