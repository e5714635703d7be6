"""Rules on speculative decoding by draft models that propose a block of tokens at once: DFLASH and DSPARK."""

from __future__ import annotations

from search_spaces.sglang.rule import Launch, Rule, says
from search_spaces.sglang.speculation import algorithm_of
from search_spaces.sglang.versions import release_0_5
from search_spaces.verdict import Evidence, Stage


def _algorithm(launch: Launch) -> str | None:
    return algorithm_of(launch.asked)


def _has_groups(launch: Launch) -> bool:
    return launch.declared.attn_dp_size > 1


def _lacks_draft(launch: Launch, name: str) -> bool:
    return _algorithm(launch) == name and launch.asked.speculative_draft_model_path is None


RESOLUTION = (
    Rule(
        id="speculation.dflash_lm_head",
        stage=Stage.RESOLVE,
        source="arg_groups/speculative_hook.py:303",
        concerns=frozenset({"speculative_algorithm"}),
        broken=lambda launch: (
            _algorithm(launch) == "DFLASH" and _has_groups(launch) and not launch.effective.enable_dp_lm_head
        ),
        message=says("DFLASH under attention data parallelism needs enable_dp_lm_head"),
        exception="ValueError",
        engine_text=says("DFLASH with dp attention requires --enable-dp-lm-head."),
        since=release_0_5(23),
    ),
    Rule(
        id="speculation.dflash_attn_cp",
        stage=Stage.RESOLVE,
        source="arg_groups/speculative_hook.py:305",
        concerns=frozenset({"speculative_algorithm"}),
        broken=lambda launch: (
            _algorithm(launch) == "DFLASH" and _has_groups(launch) and launch.effective.attn_cp_size != 1
        ),
        message=lambda launch: (
            "DFLASH cannot combine attention data and context parallelism "
            f"(attn_cp_size={launch.effective.attn_cp_size})"
        ),
        exception="ValueError",
        engine_text=says("DFLASH with dp attention does not support context parallel."),
        since=release_0_5(23),
    ),
    Rule(
        id="speculation.dflash_pp",
        stage=Stage.RESOLVE,
        source="arg_groups/speculative_hook.py:319",
        concerns=frozenset({"speculative_algorithm"}),
        broken=lambda launch: _algorithm(launch) == "DFLASH" and launch.asked.pp_size != 1,
        message=lambda launch: f"DFLASH needs pp_size 1, but it is {launch.asked.pp_size}",
        exception="ValueError",
        engine_text=says("Currently DFLASH speculative decoding only supports pp_size == 1."),
    ),
    Rule(
        id="speculation.dflash_draft",
        stage=Stage.RESOLVE,
        source="arg_groups/speculative_hook.py:325",
        concerns=frozenset({"speculative_algorithm"}),
        broken=lambda launch: _lacks_draft(launch, "DFLASH"),
        message=says("DFLASH needs speculative_draft_model_path"),
        exception="ValueError",
        engine_text=says("DFLASH speculative decoding requires setting --speculative-draft-model-path."),
    ),
    Rule(
        id="speculation.dspark_lm_head",
        stage=Stage.RESOLVE,
        source="arg_groups/speculative_hook.py:665",
        concerns=frozenset({"speculative_algorithm"}),
        broken=lambda launch: (
            _algorithm(launch) == "DSPARK" and _has_groups(launch) and not launch.effective.enable_dp_lm_head
        ),
        message=says("DSPARK under attention data parallelism needs enable_dp_lm_head"),
        exception="ValueError",
        engine_text=says("DSpark with dp attention requires --enable-dp-lm-head."),
    ),
    Rule(
        id="speculation.dspark_backend",
        stage=Stage.RESOLVE,
        source="arg_groups/speculative_hook.py:667",
        concerns=frozenset({"speculative_algorithm"}),
        broken=lambda launch: (
            _algorithm(launch) == "DSPARK"
            and _has_groups(launch)
            and launch.effective.moe_a2a_backend not in ("none", "megamoe", "mori")
        ),
        message=lambda launch: (
            "DSPARK under attention data parallelism works with --moe-a2a-backend none, megamoe or mori, not "
            f"{launch.effective.moe_a2a_backend}"
        ),
        exception="ValueError",
        engine_text=says("DSpark with dp attention supports moe_a2a_backend 'none' (built-in TP MoE)"),
        since=release_0_5(18),
    ),
    Rule(
        id="speculation.dspark_attn_cp",
        stage=Stage.RESOLVE,
        source="arg_groups/speculative_hook.py:690",
        concerns=frozenset({"speculative_algorithm"}),
        broken=lambda launch: (
            _algorithm(launch) == "DSPARK" and _has_groups(launch) and launch.effective.attn_cp_size > 1
        ),
        message=lambda launch: (
            "DSPARK cannot combine attention data and context parallelism "
            f"(attn_cp_size={launch.effective.attn_cp_size})"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            "DSpark with dp attention does not support context parallel "
            f"(attn_cp_size={launch.effective.attn_cp_size})."
        ),
    ),
    Rule(
        id="speculation.dspark_pp",
        stage=Stage.RESOLVE,
        source="arg_groups/speculative_hook.py:706",
        concerns=frozenset({"speculative_algorithm"}),
        broken=lambda launch: (
            _algorithm(launch) == "DSPARK"
            and launch.asked.pp_size != 1
            and launch.asked.disaggregation_mode != "prefill"
        ),
        message=lambda launch: (
            f"DSPARK needs pp_size 1 outside --disaggregation-mode prefill, but it is {launch.asked.pp_size}"
        ),
        exception="ValueError",
        engine_text=says("DSpark pipeline parallelism requires PD prefill;"),
        since=release_0_5(21),
    ),
    Rule(
        id="speculation.dspark_draft",
        stage=Stage.RESOLVE,
        source="arg_groups/speculative_hook.py:743",
        concerns=frozenset({"speculative_algorithm"}),
        broken=lambda launch: _lacks_draft(launch, "DSPARK"),
        message=says("DSPARK needs speculative_draft_model_path, unless the checkpoint brings its draft along"),
        exception="ValueError",
        engine_text=says("DSpark dense speculative decoding requires setting --speculative-draft-model-path."),
        evidence=Evidence.UNCERTAIN,
    ),
)
