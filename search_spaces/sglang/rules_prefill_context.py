"""Rules on prefill context parallelism."""

from __future__ import annotations

from search_spaces.sglang.rule import Launch, Rule, says, worded
from search_spaces.sglang.target import DEEPSEEK_FAMILY
from search_spaces.sglang.versions import release_0_5
from search_spaces.verdict import Stage

_LARGEST_GROUP = 8


def _is_rewritten(launch: Launch) -> bool:
    """Whether the architecture takes prefill context parallelism into its own hands (deepseek_v2.py:99, :189)."""
    return (
        launch.asked.enable_prefill_cp
        and launch.model.architecture in DEEPSEEK_FAMILY
        and not launch.cluster.gpu.is_cpu
    )


def has_replicas_of_groups(launch: Launch) -> bool:
    """Replicas beside attention data parallelism, as each model that divides its groups anew checks it."""
    asked = launch.asked
    return asked.dwdp_size <= 1 and asked.attn_dp_size > 1 and asked.dp_size > 1


def replicas_of_groups(launch: Launch) -> str:
    return (
        "replicas and attention data parallelism cannot be combined "
        f"(dp_size={launch.asked.dp_size}, attn_dp_size={launch.asked.attn_dp_size})"
    )


def replicas_of_groups_text(launch: Launch) -> str:
    return (
        f"--dp-size {launch.asked.dp_size} with --attn-dp-size {launch.asked.attn_dp_size}: data-parallel replicas "
        "combined with attention data parallelism are not supported."
    )


def has_no_groups(launch: Launch) -> bool:
    return launch.asked.attn_dp_size * launch.asked.dp_size == 0


def no_groups(launch: Launch) -> str:
    return (
        "attn_dp_size and dp_size must be at least 1 "
        f"(attn_dp_size={launch.asked.attn_dp_size}, dp_size={launch.asked.dp_size})"
    )


REWRITTEN = (
    Rule(
        id="prefill_cp.replicas",
        stage=Stage.RESOLVE,
        source="arg_groups/model_override_base.py:227",
        concerns=frozenset({"enable_prefill_cp"}),
        broken=lambda launch: _is_rewritten(launch) and has_replicas_of_groups(launch),
        message=replicas_of_groups,
        exception="AssertionError",
        engine_text=replicas_of_groups_text,
        since=release_0_5(22),
    ),
    Rule(
        id="prefill_cp.one_machine",
        stage=Stage.RESOLVE,
        source="arg_groups/model_overrides/deepseek_v2.py:117",
        concerns=frozenset({"enable_prefill_cp"}),
        broken=lambda launch: _is_rewritten(launch) and launch.target.is_dsa and launch.asked.tp_size > _LARGEST_GROUP,
        message=lambda launch: (
            f"prefill context parallelism of sparse attention goes up to tp_size 8, but it is {launch.asked.tp_size}"
        ),
        exception="AssertionError",
        engine_text=says(
            "Context parallel only supports single machine (tp_size <= 8). Cross-machine CP has precision issues."
        ),
    ),
    Rule(
        id="prefill_cp.no_groups",
        stage=Stage.RESOLVE,
        source="arg_groups/model_overrides/deepseek_v2.py:126, :204",
        concerns=frozenset({"enable_prefill_cp"}),
        broken=lambda launch: _is_rewritten(launch) and has_no_groups(launch),
        message=no_groups,
        exception="ZeroDivisionError",
        engine_text=says("integer division or modulo by zero"),
    ),
    Rule(
        id="prefill_cp.with_decode",
        stage=Stage.RESOLVE,
        source="arg_groups/model_hook.py:358",
        concerns=frozenset({"enable_prefill_cp"}),
        broken=lambda launch: (
            _is_rewritten(launch) and launch.target.is_dsa and launch.asked.disaggregation_mode == "decode"
        ),
        message=says("prefill context parallelism is not for --disaggregation-mode decode"),
        exception="AssertionError",
        engine_text=says("CP is only supported for prefill when PD disaggregation, please remove --enable-prefill-cp."),
        since=release_0_5(14),
    ),
)

PREFILL = (
    Rule(
        id="prefill_cp.nemotron_h",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:77",
        architectures=frozenset({"NemotronHForCausalLM"}),
        broken=lambda launch: launch.model.architecture == "NemotronHForCausalLM" and launch.declared.attn_cp_size > 1,
        message=lambda launch: (
            f"NemotronHForCausalLM has no attention context parallelism (attn_cp_size={launch.declared.attn_cp_size})"
        ),
        exception="ValueError",
        engine_text=says("Nemotron-H does not support --attn-cp-size > 1"),
        since=release_0_5(21),
    ),
    Rule(
        id="prefill_cp.deepseek_v32",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:128",
        concerns=frozenset({"enable_prefill_cp"}),
        broken=lambda launch: (
            launch.asked.enable_prefill_cp
            and launch.model.architecture == "DeepseekV32ForCausalLM"
            and launch.asked.cp_strategy == "zigzag"
        ),
        message=says("DeepSeek V3.2 deals prefill out by --cp-strategy interleave, not zigzag"),
        exception="ValueError",
        engine_text=says("DeepSeek V3.2 prefill CP does not support --cp-strategy zigzag; use interleave."),
        since=release_0_5(20),
    ),
    Rule(
        id="prefill_cp.mimo",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:137",
        concerns=frozenset({"enable_prefill_cp"}),
        broken=lambda launch: (
            launch.asked.enable_prefill_cp
            and launch.model.architecture == "MiMoV2FlashForCausalLM"
            and launch.asked.cp_strategy != "zigzag"
        ),
        message=lambda launch: f"MiMo V2 deals prefill out by --cp-strategy zigzag, not {launch.asked.cp_strategy}",
        exception="ValueError",
        engine_text=worded(
            (release_0_5(16), "MiMo V2 CP-v2 only supports --cp-strategy zigzag."),
            (release_0_5(20), "MiMo V2 prefill CP only supports --cp-strategy zigzag."),
        ),
        since=release_0_5(16),
    ),
    Rule(
        id="prefill_cp.strategy",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:152",
        concerns=frozenset({"enable_prefill_cp"}),
        broken=lambda launch: launch.asked.enable_prefill_cp and launch.asked.cp_strategy is None,
        message=says("enable_prefill_cp needs cp_strategy, zigzag or interleave"),
        exception="ValueError",
        engine_text=says("--cp-strategy must be set when --enable-prefill-cp is enabled."),
        since=release_0_5(14),
    ),
)
