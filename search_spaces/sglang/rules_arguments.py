"""Rules on sizes that the engine's main process checks before it starts anything."""

from __future__ import annotations

from search_spaces.sglang.choices import DEEPEP_MODES, MOE_RUNNER_BACKENDS, moe_a2a_backends
from search_spaces.sglang.rule import SIZES, Launch, Rule, says
from search_spaces.verdict import Stage

_ANYWAY: frozenset[str] = frozenset()
_SIZED = frozenset({SIZES})


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
