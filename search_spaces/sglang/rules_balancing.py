"""Rules on moving experts between ranks while serving (EPLB)."""

from __future__ import annotations

from search_spaces.sglang.rule import Launch, Rule, says
from search_spaces.sglang.versions import release_0_5
from search_spaces.verdict import Stage


def _moves_experts(launch: Launch) -> bool:
    asked = launch.asked
    return asked.enable_eplb or asked.ep_num_redundant_experts > 0 or asked.init_expert_location != "trivial"


NEMOTRON = (
    Rule(
        id="eplb.nemotron_h_runner",
        stage=Stage.RESOLVE,
        source="arg_groups/model_overrides/nemotron_h.py:150",
        architectures=frozenset({"NemotronHForCausalLM"}),
        broken=lambda launch: (
            launch.model.architecture == "NemotronHForCausalLM"
            and _moves_experts(launch)
            and launch.asked.moe_runner_backend == "flashinfer_trtllm"
        ),
        message=says(
            "--moe-runner-backend flashinfer_trtllm cannot move or copy experts of Nemotron-H; "
            "flashinfer_trtllm_routed can"
        ),
        exception="ValueError",
        engine_text=says(
            "flashinfer_trtllm routes inside the kernel and does not support EPLB or redundant experts on Nemotron-H;"
        ),
        since=release_0_5(23),
    ),
    Rule(
        id="eplb.nemotron_h_scales",
        stage=Stage.RESOLVE,
        source="arg_groups/model_overrides/nemotron_h.py:157",
        architectures=frozenset({"NemotronHForCausalLM"}),
        broken=lambda launch: (
            launch.model.architecture == "NemotronHForCausalLM"
            and launch.asked.enable_eplb
            and launch.asked.moe_runner_backend == "flashinfer_cutedsl"
            and launch.declared.moe_a2a_backend == "none"
        ),
        message=says(
            "--moe-runner-backend flashinfer_cutedsl moves no expert scales of Nemotron-H without an all-to-all backend"
        ),
        exception="ValueError",
        engine_text=says(
            "flashinfer_cutedsl without an a2a backend does not migrate its expert scales on EPLB rebalance;"
        ),
        since=release_0_5(23),
    ),
)

DISPATCH = (
    Rule(
        id="eplb.dispatch",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:783",
        concerns=frozenset({"ep_dispatch_algorithm"}),
        broken=lambda launch: (
            launch.effective.moe_a2a_backend == "none" and launch.asked.ep_dispatch_algorithm in ("static", "lp")
        ),
        message=lambda launch: (
            f"--ep-dispatch-algorithm {launch.asked.ep_dispatch_algorithm} needs an all-to-all backend; "
            "dynamic works without one"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            f"--ep-dispatch-algorithm {launch.asked.ep_dispatch_algorithm} picks a different physical replica per "
            "rank, which only holds up when an a2a backend routes each token to a single rank. Use "
            "--ep-dispatch-algorithm dynamic with --moe-a2a-backend none."
        ),
        since=release_0_5(17),
    ),
    Rule(
        id="eplb.ep",
        stage=Stage.RESOLVE,
        source="arg_groups/parallel_hook.py:791",
        concerns=frozenset({"enable_eplb"}),
        broken=lambda launch: launch.asked.enable_eplb and launch.effective.ep_size <= 1,
        message=lambda launch: f"enable_eplb needs ep_size above 1, but it is {launch.effective.ep_size}",
        exception="AssertionError",
    ),
)
