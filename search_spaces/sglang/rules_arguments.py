"""Rules on sizes that the engine's main process checks before it starts anything."""

from __future__ import annotations

from dataclasses import fields

from search_spaces.layout import Layout
from search_spaces.sglang import rules_overlap, rules_runners, rules_speculation
from search_spaces.sglang.options import choices_of
from search_spaces.sglang.rule import Launch, Rule, says, worded
from search_spaces.sglang.versions import EngineVersion, release_0_5
from search_spaces.verdict import Evidence, Stage

_ANYWAY: frozenset[str] = frozenset()
_DEFAULT = Layout()


CHOSEN = (
    "attention_backend",
    "cp_strategy",
    "cuda_graph_backend_decode",
    "cuda_graph_backend_prefill",
    "dcp_comm_backend",
    "decode_attention_backend",
    "deepep_mode",
    "deepep_v2_mode",
    "disaggregation_mode",
    "dtype",
    "ep_dispatch_algorithm",
    "flashinfer_allreduce_fusion_backend",
    "kv_cache_dtype",
    "load_balance_method",
    "moe_a2a_backend",
    "moe_runner_backend",
    "prefill_attention_backend",
    "quantization",
    "schedule_policy",
    "speculative_algorithm",
)
"""The fields whose option has a closed list of words."""

_RULE_IDS = {"moe_a2a_backend": "a2a", "moe_runner_backend": "runner"}


def is_known_word(name: str, value: object, version: EngineVersion) -> bool:
    """Whether the option that sets `name` takes `value`; one that `version` lacks is for the parser to refuse."""
    if value is None or value == getattr(_DEFAULT, name):
        return True
    choices = choices_of(name, version)
    return not choices or value in choices


def _choice_rule(name: str) -> Rule:
    """The words that one option takes, in the release that is judged."""
    flag = "--" + name.replace("_", "-")

    def message(launch: Launch) -> str:
        accepted = ", ".join(choices_of(name, launch.version))
        return f"{flag} must be one of {accepted} in SGLang {launch.version}, but is {getattr(launch.asked, name)}"

    def engine_text(launch: Launch) -> str:
        listed = ", ".join(repr(choice) for choice in choices_of(name, launch.version))
        return f"argument {flag}: invalid choice: {getattr(launch.asked, name)!r} (choose from {listed})"

    return Rule(
        id=f"{_RULE_IDS.get(name, name)}.choice",
        stage=Stage.PARSE,
        source="arg_groups/fields/",
        concerns=frozenset({name}),
        broken=lambda launch: not is_known_word(name, getattr(launch.asked, name), launch.version),
        message=message,
        exception="SystemExit(2)",
        engine_text=engine_text,
        needs=_ANYWAY,
    )


PARSING = tuple(_choice_rule(f.name) for f in fields(Layout) if f.name in CHOSEN)
"""In the order in which a layout's words are written, which is that of the parser's complaints."""


def _is_below_one(limit: int | None) -> bool:
    return limit is not None and limit < 1


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
        id="pp.micro_batch",
        stage=Stage.CHECK,
        source="arg_groups/validation_hook.py:183",
        concerns=frozenset({"pp_max_micro_batch_size"}),
        broken=lambda launch: _is_below_one(launch.asked.pp_max_micro_batch_size),
        message=lambda launch: (
            f"pp_max_micro_batch_size must be at least 1, but is {launch.asked.pp_max_micro_batch_size}"
        ),
        exception="AssertionError",
        engine_text=lambda launch: (
            "pp_max_micro_batch_size must be a positive integer or None (for auto-compute). Got: "
            f"{launch.asked.pp_max_micro_batch_size}"
        ),
        since=release_0_5(11),
    ),
    Rule(
        id="graphs.compiled_unpadded",
        stage=Stage.CHECK,
        source="arg_groups/validation_hook.py:188",
        concerns=frozenset({"disable_cuda_graph_padding"}),
        broken=lambda launch: launch.asked.disable_cuda_graph_padding and launch.asked.enable_torch_compile,
        message=says("disable_cuda_graph_padding and enable_torch_compile together compile every batch size anew"),
        exception="AssertionError",
        engine_text=says("--disable-cuda-graph-padding is incompatible with --enable-torch-compile."),
        since=release_0_5(12),
    ),
    *rules_speculation.PIPELINE_CHECKS,
    Rule(
        id="dp.multinode",
        stage=Stage.CHECK,
        source="arg_groups/validation_hook.py:199",
        broken=lambda launch: launch.asked.dp_size > 1 and launch.asked.nnodes != 1,
        message=lambda launch: (
            f"replicas must share one node (dp_size={launch.asked.dp_size}, nnodes={launch.asked.nnodes})"
        ),
        exception="AssertionError",
        engine_text=worded(
            (release_0_5(9), "multi-node data parallel is not supported unless dp attention!"),
            (
                release_0_5(22),
                "multi-node data-parallel replicas are not supported; use attention DP (--attn-dp-size) across nodes",
            ),
        ),
        needs=_ANYWAY,
    ),
    Rule(
        id="gpu.base",
        stage=Stage.CHECK,
        source="arg_groups/validation_hook.py:204",
        concerns=frozenset({"base_gpu_id"}),
        broken=lambda launch: launch.asked.base_gpu_id < 0,
        message=lambda launch: f"base_gpu_id must be at least 0, but is {launch.asked.base_gpu_id}",
        exception="AssertionError",
        engine_text=says("base_gpu_id must be non-negative"),
    ),
    Rule(
        id="gpu.step",
        stage=Stage.CHECK,
        source="arg_groups/validation_hook.py:205",
        concerns=frozenset({"gpu_id_step"}),
        broken=lambda launch: launch.asked.gpu_id_step < 1,
        message=lambda launch: f"gpu_id_step must be at least 1, but is {launch.asked.gpu_id_step}",
        exception="AssertionError",
        engine_text=says("gpu_id_step must be positive"),
    ),
    Rule(
        id="moe_dense_tp.choice",
        stage=Stage.CHECK,
        source="arg_groups/validation_hook.py:207",
        broken=lambda launch: launch.effective.moe_dense_tp_size not in (None, 1, launch.asked.tp_size),
        message=lambda launch: (
            f"moe_dense_tp_size must be left out, 1 or tp_size ({launch.asked.tp_size}), "
            f"but is {launch.asked.moe_dense_tp_size}"
        ),
        exception="AssertionError",
        engine_text=says("moe_dense_tp_size only supports None, 1, or tp_size currently"),
        needs=_ANYWAY,
        since=release_0_5(13),
    ),
    Rule(
        id="moe_dense_tp.choice",
        stage=Stage.CHECK,
        source="0.5.12 server_args.py:7243",
        broken=lambda launch: launch.effective.moe_dense_tp_size not in (None, 1),
        message=lambda launch: f"moe_dense_tp_size must be left out or 1, but is {launch.asked.moe_dense_tp_size}",
        exception="AssertionError",
        engine_text=says("moe_dense_tp_size only support 1 and None currently"),
        needs=_ANYWAY,
        until=release_0_5(12),
    ),
    *rules_speculation.CHECKS,
    *rules_runners.LORA,
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
    Rule(
        id="schedule.conservativeness",
        stage=Stage.CHECK,
        source="arg_groups/validation_hook.py:314",
        concerns=frozenset({"schedule_conservativeness"}),
        broken=lambda launch: not launch.effective.schedule_conservativeness >= 0,
        message=lambda launch: (
            f"schedule_conservativeness must be at least 0, but is {launch.asked.schedule_conservativeness:g}"
        ),
        exception="AssertionError",
        engine_text=says("schedule_conservativeness must be non-negative"),
    ),
    *rules_overlap.CHECKS,
)


_LIMITS = (
    "max_running_requests",
    "max_total_tokens",
    "max_prefill_tokens",
    "num_continuous_decode_steps",
    "cuda_graph_max_bs_decode",
    "cuda_graph_max_bs_prefill",
    "cuda_graph_bs_decode",
    "cuda_graph_bs_prefill",
)
"""Fields that the engine takes as they are, and that mean nothing below 1."""


def _limit_rule(name: str) -> Rule:
    def is_below_one(launch: Launch) -> bool:
        value = getattr(launch.asked, name)
        return any(map(_is_below_one, value)) if isinstance(value, tuple) else _is_below_one(value)

    return Rule(
        id=f"{name}.positive",
        stage=Stage.UNDETECTED,
        source="arg_groups/validation_hook.py:172 (no lower bound)",
        concerns=frozenset({name}),
        broken=is_below_one,
        message=lambda launch: f"{name} must be at least 1, but is {getattr(launch.asked, name)}",
        needs=_ANYWAY,
    )


def _without_rank(launch: Launch) -> tuple[str, ...]:
    """The sizes that leave a scheduler no place: a rank is from 0 up to its size."""
    asked = launch.asked
    sizes = {"tp": asked.tp_size, "pp": asked.pp_size, "attn_tp": asked.attn_tp_size}
    is_refused = asked.tp_size < 0 or (asked.pp_size < 0 and asked.tp_size > 0)
    if not is_refused:
        return ()
    return tuple(f"0 <= {name}_rank < {name}_size\n  0 is not a rank of {n}" for name, n in sizes.items() if n < 0)


NEGATIVE_SIZES = (
    Rule(
        id="pp.zero",
        stage=Stage.INIT,
        source="entrypoints/engine.py:2063",
        broken=lambda launch: launch.asked.pp_size == 0,
        message=says("pp_size must be at least 1, but is 0"),
        exception="ZeroDivisionError",
        engine_text=says("integer division or modulo by zero"),
        needs=_ANYWAY,
        evidence=Evidence.READ,
    ),
    Rule(
        id="size.negative",
        stage=Stage.INIT,
        source="runtime_context.py:347",
        broken=lambda launch: bool(_without_rank(launch)),
        message=lambda launch: (
            f"tp_size and pp_size must be at least 1 (tp_size={launch.asked.tp_size}, pp_size={launch.asked.pp_size})"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            "parallel topology is inconsistent (set by override_permanently):\n" + "\n".join(_without_rank(launch))
        ),
        needs=_ANYWAY,
        since=release_0_5(21),
    ),
)

UNDETECTED_SIZES = (
    Rule(
        id="size.positive",
        stage=Stage.UNDETECTED,
        source="arg_groups/validation_hook.py:172 (no lower bound)",
        broken=lambda launch: (
            min(launch.asked.tp_size, launch.asked.pp_size or 1, launch.asked.dp_size) < 1
            and not (_without_rank(launch) and launch.version >= release_0_5(21))
        ),
        message=lambda launch: (
            f"tp_size, pp_size and dp_size must be at least 1 (tp_size={launch.asked.tp_size}, "
            f"pp_size={launch.asked.pp_size}, dp_size={launch.asked.dp_size}); "
            "the engine starts no scheduler and waits"
        ),
        needs=_ANYWAY,
    ),
    *(_limit_rule(name) for name in _LIMITS),
    Rule(
        id="ep_num_redundant_experts.positive",
        stage=Stage.UNDETECTED,
        source="arg_groups/validation_hook.py:172 (no lower bound)",
        broken=lambda launch: launch.asked.ep_num_redundant_experts < 0,
        message=lambda launch: (
            f"ep_num_redundant_experts must be at least 0, but is {launch.asked.ep_num_redundant_experts}"
        ),
        needs=_ANYWAY,
    ),
)
