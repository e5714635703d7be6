"""Rules of DeepSeek-V4's own argument hook."""

from __future__ import annotations

from search_spaces.sglang.rule import Launch, Rule, says
from search_spaces.sglang.rules_prefill_context import (
    has_no_groups,
    has_replicas_of_groups,
    no_groups,
    replicas_of_groups,
    replicas_of_groups_text,
)
from search_spaces.sglang.versions import release_0_5
from search_spaces.verdict import Stage

_LARGEST_GROUP = 8


def _is_v4(launch: Launch) -> bool:
    return launch.model.architecture == "DeepseekV4ForCausalLM"


def _splits_prefill(launch: Launch) -> bool:
    return _is_v4(launch) and launch.asked.enable_prefill_cp


LIMITS = (
    Rule(
        id="deepseek_v4.speculation",
        stage=Stage.RESOLVE,
        source="arg_groups/deepseek_v4_hook.py:144",
        architectures=frozenset({"DeepseekV4ForCausalLM"}),
        broken=lambda launch: _is_v4(launch) and launch.asked.speculative_algorithm not in (None, "EAGLE", "DSPARK"),
        message=lambda launch: (
            f"DeepSeek-V4 drafts with speculative_algorithm EAGLE or DSPARK, not {launch.asked.speculative_algorithm}"
        ),
        exception="AssertionError",
        engine_text=lambda launch: (
            f"Only EAGLE and DSPARK speculative algorithms are supported for {launch.model.architecture}"
        ),
    ),
    Rule(
        id="deepseek_v4.topk",
        stage=Stage.RESOLVE,
        source="arg_groups/deepseek_v4_hook.py:151",
        architectures=frozenset({"DeepseekV4ForCausalLM"}),
        broken=lambda launch: (
            _is_v4(launch)
            and launch.asked.speculative_algorithm == "EAGLE"
            and launch.asked.speculative_eagle_topk != 1
        ),
        message=lambda launch: (
            "DeepSeek-V4 needs speculative_eagle_topk to be given as 1, but it is "
            f"{launch.asked.speculative_eagle_topk}"
        ),
        exception="AssertionError",
        engine_text=lambda launch: (
            f"Only EAGLE speculative algorithm with topk == 1 is supported for {launch.model.architecture}"
        ),
    ),
    Rule(
        id="deepseek_v4.cp_strategy",
        stage=Stage.RESOLVE,
        source="arg_groups/deepseek_v4_hook.py:163",
        architectures=frozenset({"DeepseekV4ForCausalLM"}),
        broken=lambda launch: _splits_prefill(launch) and launch.asked.cp_strategy is None,
        message=says("enable_prefill_cp needs cp_strategy"),
        exception="ValueError",
        engine_text=says("DeepSeekV4 only supports interleave/zigzag CP strategy, got None"),
        since=release_0_5(21),
    ),
    Rule(
        id="deepseek_v4.zigzag",
        stage=Stage.RESOLVE,
        source="arg_groups/deepseek_v4_hook.py:168",
        architectures=frozenset({"DeepseekV4ForCausalLM"}),
        broken=lambda launch: _splits_prefill(launch) and launch.asked.cp_strategy == "zigzag",
        message=says("DeepSeek-V4 deals prefill out by --cp-strategy interleave, not zigzag"),
        exception="ValueError",
        engine_text=says(
            "DeepSeekV4 zigzag CP requires the NPU backend; CUDA/HIP backends reindex with interleave order."
        ),
        since=release_0_5(22),
    ),
    Rule(
        id="deepseek_v4.replicas",
        stage=Stage.RESOLVE,
        source="arg_groups/model_override_base.py:227",
        architectures=frozenset({"DeepseekV4ForCausalLM"}),
        broken=lambda launch: _splits_prefill(launch) and has_replicas_of_groups(launch),
        message=replicas_of_groups,
        exception="AssertionError",
        engine_text=replicas_of_groups_text,
        since=release_0_5(22),
    ),
    Rule(
        id="deepseek_v4.no_groups",
        stage=Stage.RESOLVE,
        source="arg_groups/deepseek_v4_hook.py:215",
        architectures=frozenset({"DeepseekV4ForCausalLM"}),
        broken=lambda launch: _splits_prefill(launch) and has_no_groups(launch),
        message=no_groups,
        exception="ZeroDivisionError",
        engine_text=says("integer division or modulo by zero"),
    ),
    Rule(
        id="deepseek_v4.cp_with_attn_dp",
        stage=Stage.RESOLVE,
        source="arg_groups/deepseek_v4_hook.py:218",
        architectures=frozenset({"DeepseekV4ForCausalLM"}),
        broken=lambda launch: _splits_prefill(launch) and launch.declared.attn_dp_size != 1,
        message=lambda launch: (
            "DeepSeek-V4 cannot combine prefill context parallelism with attention data parallelism "
            f"(attn_dp_size={launch.declared.attn_dp_size})"
        ),
        exception="AssertionError",
        engine_text=says("For round-robin split mode, dp attention is not supported."),
    ),
    Rule(
        id="deepseek_v4.one_machine",
        stage=Stage.RESOLVE,
        source="arg_groups/deepseek_v4_hook.py:221",
        architectures=frozenset({"DeepseekV4ForCausalLM"}),
        broken=lambda launch: _splits_prefill(launch) and launch.asked.tp_size > _LARGEST_GROUP,
        message=lambda launch: (
            f"prefill context parallelism of DeepSeek-V4 goes up to tp_size 8, but it is {launch.asked.tp_size}"
        ),
        exception="AssertionError",
        engine_text=says(
            "Context parallel only supports single machine (tp_size <= 8). Cross-machine CP has precision issues."
        ),
    ),
    Rule(
        id="deepseek_v4.cp_backend",
        stage=Stage.RESOLVE,
        source="arg_groups/deepseek_v4_hook.py:225",
        architectures=frozenset({"DeepseekV4ForCausalLM"}),
        broken=lambda launch: (
            _splits_prefill(launch) and launch.declared.moe_a2a_backend not in ("none", "deepep", "megamoe", "mori")
        ),
        message=lambda launch: (
            "DeepSeek-V4's prefill context parallelism works with --moe-a2a-backend none, deepep, megamoe or mori, "
            f"not {launch.declared.moe_a2a_backend}"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            "DeepSeekV4 CP supports moe_a2a_backend in ('none', 'deepep', 'megamoe', 'mori'), got "
            f"{launch.declared.moe_a2a_backend!r}."
        ),
        since=release_0_5(17),
    ),
)
