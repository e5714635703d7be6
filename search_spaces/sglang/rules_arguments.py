"""Rules on sizes that the engine's main process checks before it starts anything."""

from __future__ import annotations

from search_spaces.sglang.choices import DEEPEP_MODES, MOE_RUNNER_BACKENDS, moe_a2a_backends
from search_spaces.sglang.rule import SIZES, Launch, Rule, says
from search_spaces.sglang.versions import EngineVersion
from search_spaces.verdict import Stage

_ANYWAY: frozenset[str] = frozenset()
_SIZED = frozenset({SIZES})
_TOPOLOGY_CHECKED_SINCE = EngineVersion(0, 5, 21)
_TOPOLOGY_CHECKED_BEFORE = EngineVersion(0, 5, 20)


def _refused_choice(option: str, value: str, choices: tuple[str, ...]) -> str:
    listed = ", ".join(repr(choice) for choice in choices)
    return f"argument {option}: invalid choice: {value!r} (choose from {listed})"


PARSING = (
    Rule(
        id="a2a.choice",
        stage=Stage.PARSE,
        source="arg_groups/fields/exec_.py:836",
        broken=lambda launch: launch.asked.moe_a2a_backend not in moe_a2a_backends(launch.version),
        message=lambda launch: (
            f"--moe-a2a-backend must be one of {', '.join(moe_a2a_backends(launch.version))} in SGLang "
            f"{launch.version}, but is {launch.asked.moe_a2a_backend}"
        ),
        exception="SystemExit(2)",
        engine_text=lambda launch: _refused_choice(
            "--moe-a2a-backend", launch.asked.moe_a2a_backend, moe_a2a_backends(launch.version)
        ),
        needs=_ANYWAY,
    ),
    Rule(
        id="runner.choice",
        stage=Stage.PARSE,
        source="arg_groups/choices.py:136",
        broken=lambda launch: launch.asked.moe_runner_backend not in MOE_RUNNER_BACKENDS,
        message=lambda launch: (
            f"--moe-runner-backend must be one of {', '.join(MOE_RUNNER_BACKENDS)}, "
            f"but is {launch.asked.moe_runner_backend}"
        ),
        exception="SystemExit(2)",
        engine_text=lambda launch: _refused_choice(
            "--moe-runner-backend", launch.asked.moe_runner_backend, MOE_RUNNER_BACKENDS
        ),
        needs=_ANYWAY,
    ),
    Rule(
        id="deepep_mode.choice",
        stage=Stage.PARSE,
        source="arg_groups/fields/exec_.py",
        broken=lambda launch: launch.asked.deepep_mode not in DEEPEP_MODES,
        message=lambda launch: (
            f"--deepep-mode must be one of {', '.join(DEEPEP_MODES)}, but is {launch.asked.deepep_mode}"
        ),
        exception="SystemExit(2)",
        engine_text=lambda launch: _refused_choice("--deepep-mode", launch.asked.deepep_mode, DEEPEP_MODES),
        needs=_ANYWAY,
    ),
)


def _divides_not(divisor: int, number: int) -> bool:
    return divisor < 1 or number % divisor != 0


def _attention_groups(launch: Launch) -> str:
    asked = launch.asked
    return (
        f"tp_size must be divisible by attn_dp_size * attn_cp_size, but {asked.attn_dp_size} * "
        f"{asked.attn_cp_size} does not divide {asked.tp_size}"
    )


def _expert_groups(launch: Launch) -> str:
    asked = launch.asked
    return f"(tp_size={asked.tp_size}, ep_size={asked.ep_size}, moe_dp_size={asked.moe_dp_size})"


ATTENTION_GROUPS = (
    Rule(
        id="attn_dp.positive",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:286",
        broken=lambda launch: launch.asked.attn_dp_size < 1,
        message=lambda launch: f"attn_dp_size must be at least 1, but is {launch.asked.attn_dp_size}",
        exception="ValueError",
        engine_text=lambda launch: f"--attn-dp-size must be positive (got {launch.asked.attn_dp_size}).",
        needs=_ANYWAY,
    ),
    Rule(
        id="attn_dp.with_dp",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:288",
        broken=lambda launch: launch.asked.attn_dp_size > 1 and launch.asked.dp_size > 1,
        message=lambda launch: (
            "replicas and attention data parallelism cannot be combined "
            f"(dp_size={launch.asked.dp_size}, attn_dp_size={launch.asked.attn_dp_size})"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            f"--dp-size {launch.asked.dp_size} with --attn-dp-size {launch.asked.attn_dp_size}: data-parallel "
            "replicas combined with attention data parallelism are not supported."
        ),
        needs=_ANYWAY,
    ),
    Rule(
        id="attn_dp.divides",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:326",
        broken=lambda launch: launch.asked.attn_dp_size > 1 and launch.asked.tp_size % launch.asked.attn_dp_size != 0,
        message=lambda launch: (
            f"attn_dp_size must divide tp_size, but {launch.asked.attn_dp_size} does not divide {launch.asked.tp_size}"
        ),
        exception="AssertionError",
        needs=_ANYWAY,
    ),
    Rule(
        id="attn_dp.dp_lm_head",
        stage=Stage.RESOLVE,
        source="arg_groups/overrides.py:1425",
        broken=lambda launch: (
            launch.asked.enable_dp_lm_head and launch.asked.attn_dp_size == 1 and launch.asked.dp_size > 1
        ),
        message=lambda launch: (
            f"enable_dp_lm_head needs attention data parallelism (attn_dp_size=1, dp_size={launch.asked.dp_size})"
        ),
        exception="AssertionError",
        engine_text=says("--enable-dp-lm-head requires attention DP (--attn-dp-size)."),
        needs=_ANYWAY,
    ),
    Rule(
        id="attn_cp.divides",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:159",
        broken=lambda launch: launch.asked.attn_cp_size > 1 and launch.asked.tp_size % launch.asked.attn_cp_size != 0,
        message=lambda launch: (
            f"attn_cp_size must divide tp_size, but {launch.asked.attn_cp_size} does not divide {launch.asked.tp_size}"
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
            launch.asked.attn_cp_size > 1
            and _divides_not(launch.asked.attn_dp_size * launch.asked.attn_cp_size, launch.asked.tp_size)
        ),
        message=_attention_groups,
        exception="AssertionError",
        engine_text=says("tp_size must be divisible by attn_dp_size * attn_cp_size"),
        needs=_ANYWAY,
    ),
)

EXPERT_DATA_GROUPS = (
    Rule(
        id="moe_dp.divides",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:172",
        broken=lambda launch: launch.asked.moe_dp_size > 1 and launch.asked.tp_size % launch.asked.moe_dp_size != 0,
        message=lambda launch: (
            f"moe_dp_size must divide tp_size, but {launch.asked.moe_dp_size} does not divide {launch.asked.tp_size}"
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
            launch.asked.moe_dp_size > 1 and launch.asked.ep_size * launch.asked.moe_dp_size > launch.asked.tp_size
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
        broken=lambda launch: launch.asked.moe_dp_size > 1 and launch.asked.pp_size != 1,
        message=lambda launch: (
            "MoE data parallelism and pipeline parallelism cannot be combined "
            f"(moe_dp_size={launch.asked.moe_dp_size}, pp_size={launch.asked.pp_size})"
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
            launch.asked.moe_dp_size > 1
            and launch.asked.ep_size > 1
            and launch.asked.ep_size * launch.asked.moe_dp_size < launch.asked.tp_size
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
        broken=lambda launch: launch.asked.moe_dp_size not in (1, launch.asked.attn_cp_size),
        message=lambda launch: (
            f"moe_dp_size must be 1 or attn_cp_size (moe_dp_size={launch.asked.moe_dp_size}, "
            f"attn_cp_size={launch.asked.attn_cp_size})"
        ),
        exception="AssertionError",
        engine_text=says("attn_cp_size != moe_dp_size is only supported when moe_dp_size == 1"),
        needs=_ANYWAY,
    ),
)

CHECKS = (
    Rule(
        id="nnodes.positive",
        stage=Stage.CHECK,
        source="arg_groups/validation_hook.py:179",
        broken=lambda launch: launch.asked.nnodes < 1,
        message=lambda launch: f"nnodes must be at least 1, but is {launch.asked.nnodes}",
        exception="ZeroDivisionError",
        engine_text=says("integer modulo by zero"),
        needs=_ANYWAY,
    ),
    Rule(
        id="nnodes.divides",
        stage=Stage.CHECK,
        source="arg_groups/validation_hook.py:179",
        broken=lambda launch: (
            launch.asked.nnodes > 0 and launch.asked.tp_size * launch.asked.pp_size % launch.asked.nnodes != 0
        ),
        message=lambda launch: (
            f"nnodes must divide tp_size * pp_size, but {launch.asked.nnodes} does not divide "
            f"{launch.asked.tp_size} * {launch.asked.pp_size}"
        ),
        exception="AssertionError",
        engine_text=says("tp_size must be divisible by number of nodes"),
        needs=_ANYWAY,
    ),
    Rule(
        id="dp.multinode",
        stage=Stage.CHECK,
        source="arg_groups/validation_hook.py:199",
        broken=lambda launch: launch.asked.dp_size > 1 and launch.asked.nnodes != 1,
        message=lambda launch: (
            f"replicas must share one node (dp_size={launch.asked.dp_size}, nnodes={launch.asked.nnodes})"
        ),
        exception="AssertionError",
        engine_text=says(
            "multi-node data-parallel replicas are not supported; use attention DP (--attn-dp-size) across nodes"
        ),
        needs=_ANYWAY,
    ),
    Rule(
        id="moe_dense_tp.choice",
        stage=Stage.CHECK,
        source="arg_groups/validation_hook.py:207",
        broken=lambda launch: launch.asked.moe_dense_tp_size not in (None, 1, launch.asked.tp_size),
        message=lambda launch: (
            f"moe_dense_tp_size must be left out, 1 or tp_size ({launch.asked.tp_size}), "
            f"but is {launch.asked.moe_dense_tp_size}"
        ),
        exception="AssertionError",
        engine_text=says("moe_dense_tp_size only supports None, 1, or tp_size currently"),
        needs=_ANYWAY,
    ),
    Rule(
        id="page.positive",
        stage=Stage.CHECK,
        source="arg_groups/validation_hook.py:244",
        broken=lambda launch: (launch.effective.page_size or 0) < 1,
        message=lambda launch: f"page_size must be at least 1, but is {launch.effective.page_size}",
        exception="ZeroDivisionError",
        engine_text=says("integer modulo by zero"),
        needs=_ANYWAY,
    ),
    Rule(
        id="page.divides_chunk",
        stage=Stage.CHECK,
        source="arg_groups/validation_hook.py:244",
        broken=lambda launch: (
            (launch.effective.chunked_prefill_size or 0) > 0
            and (launch.effective.page_size or 0) > 0
            and (launch.effective.chunked_prefill_size or 0) % (launch.effective.page_size or 1) != 0
        ),
        message=lambda launch: (
            "page_size must divide chunked_prefill_size after its division by attn_dp_size, but "
            f"{launch.effective.page_size} does not divide {launch.effective.chunked_prefill_size}"
        ),
        exception="AssertionError",
        engine_text=says("chunked_prefill_size must be divisible by page_size"),
        needs=_ANYWAY,
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
        id="ep.divides",
        stage=Stage.PUBLISH,
        source="runtime_context.py:347",
        broken=lambda launch: launch.asked.tp_size > 0 and _leaves_ranks_over(launch),
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
    ),
)


def _stage_split_is_lost(launch: Launch) -> bool:
    pp, nodes = launch.asked.pp_size, launch.asked.nnodes
    return pp % nodes != 0 and nodes % pp != 0


def _is_below_one(limit: int | None) -> bool:
    return limit is not None and limit < 1


UNDETECTED_SIZES = (
    Rule(
        id="size.positive",
        stage=Stage.UNDETECTED,
        source="arg_groups/validation_hook.py:172 (no lower bound)",
        broken=lambda launch: min(launch.asked.tp_size, launch.asked.pp_size, launch.asked.dp_size) < 1,
        message=lambda launch: (
            f"tp_size, pp_size and dp_size must be at least 1 (tp_size={launch.asked.tp_size}, "
            f"pp_size={launch.asked.pp_size}, dp_size={launch.asked.dp_size}); "
            "the engine starts no scheduler and waits"
        ),
        needs=_ANYWAY,
    ),
    Rule(
        id="limit.positive",
        stage=Stage.UNDETECTED,
        source="arg_groups/validation_hook.py:172 (no lower bound)",
        broken=lambda launch: (
            _is_below_one(launch.asked.max_running_requests)
            or _is_below_one(launch.asked.cuda_graph_max_bs_decode)
            or launch.asked.ep_num_redundant_experts < 0
        ),
        message=lambda launch: (
            "max_running_requests and cuda_graph_max_bs_decode must be at least 1 and "
            f"ep_num_redundant_experts at least 0 (max_running_requests={launch.asked.max_running_requests}, "
            f"cuda_graph_max_bs_decode={launch.asked.cuda_graph_max_bs_decode}, "
            f"ep_num_redundant_experts={launch.asked.ep_num_redundant_experts})"
        ),
        needs=_ANYWAY,
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
    Rule(
        id="nnodes.pp",
        stage=Stage.UNDETECTED,
        source="entrypoints/engine.py:2045",
        broken=_stage_split_is_lost,
        message=lambda launch: (
            f"nnodes must divide pp_size or pp_size divide nnodes (pp_size={launch.asked.pp_size}, "
            f"nnodes={launch.asked.nnodes}); otherwise a stage is never started and the others wait for it"
        ),
        needs=_SIZED,
    ),
)
