"""Rules on speculative decoding."""

from __future__ import annotations

from search_spaces.architectures.table import ARCHITECTURES
from search_spaces.sglang import rules_block_drafts
from search_spaces.sglang.attention_backends import backends_by_phase
from search_spaces.sglang.rule import Launch, Rule, says, worded
from search_spaces.sglang.speculation import (
    ALGORITHMS,
    EAGLE_FAMILY,
    MIXED_CHUNK_ALGORITHMS,
    algorithm_of,
    drafts_by_itself,
)
from search_spaces.sglang.versions import release_0_5
from search_spaces.verdict import Stage

_MULTI_LAYER_EAGLE = frozenset({"MiMoV2FlashForCausalLM", "Step3p5ForCausalLM", "Step3p7ForConditionalGeneration"})
"""Architectures whose EAGLE drafts come from several layers (arg_groups/model_overrides/mimo_v2.py:24)."""

_TREE_BACKENDS = ("flashinfer", "fa3", "triton")


def _algorithm(launch: Launch) -> str | None:
    return algorithm_of(launch.asked)


def _is_eagle(launch: Launch) -> bool:
    return _algorithm(launch) in EAGLE_FAMILY


def _has_groups(launch: Launch) -> bool:
    return launch.declared.attn_dp_size > 1


def _branches(launch: Launch) -> bool:
    """Whether drafts form a tree over pages of more than one token."""
    return (launch.effective.speculative_eagle_topk or 0) > 1 and (launch.effective.page_size or 1) > 1


def _is_half_given(launch: Launch) -> bool:
    asked = launch.asked
    return (
        _is_eagle(launch)
        and asked.speculative_num_steps is None
        and not (asked.speculative_eagle_topk is None and asked.speculative_num_draft_tokens is None)
    )


RESOLUTION = (
    Rule(
        id="speculation.algorithm",
        stage=Stage.RESOLVE,
        source="speculative/spec_info.py:65",
        concerns=frozenset({"speculative_algorithm"}),
        broken=lambda launch: _algorithm(launch) not in {*ALGORITHMS, None},
        message=lambda launch: (
            f"speculative_algorithm must be NEXTN or one of {', '.join(sorted(ALGORITHMS))}, but is "
            f"{launch.asked.speculative_algorithm}"
        ),
        exception="ValueError",
        engine_text=lambda launch: f"Unknown speculative algorithm name: {_algorithm(launch)}",
    ),
    *rules_block_drafts.RESOLUTION,
    Rule(
        id="speculation.standalone_attn_dp",
        stage=Stage.RESOLVE,
        source="arg_groups/speculative_hook.py:1082",
        concerns=frozenset({"speculative_algorithm"}),
        broken=lambda launch: _algorithm(launch) == "STANDALONE" and _has_groups(launch),
        message=lambda launch: (
            "STANDALONE drafts cannot be combined with attention data parallelism "
            f"(attn_dp_size={launch.declared.attn_dp_size})"
        ),
        exception="ValueError",
        engine_text=says("Currently standalone speculative decoding does not support dp attention."),
    ),
    Rule(
        id="speculation.half_given",
        stage=Stage.RESOLVE,
        source="arg_groups/speculative_hook.py:1155",
        concerns=frozenset({"speculative_algorithm"}),
        broken=_is_half_given,
        message=says(
            "speculative_eagle_topk and speculative_num_draft_tokens need speculative_num_steps; give all three or none"
        ),
        exception="AssertionError",
    ),
    Rule(
        id="speculation.topk_open",
        stage=Stage.RESOLVE,
        source="arg_groups/speculative_hook.py:1274",
        concerns=frozenset({"speculative_algorithm"}),
        broken=lambda launch: (
            _is_eagle(launch)
            and launch.asked.speculative_num_steps is not None
            and launch.asked.speculative_eagle_topk is None
        ),
        message=says(
            "speculative_num_steps needs speculative_eagle_topk and speculative_num_draft_tokens: give all or none"
        ),
        exception="TypeError",
        engine_text=says("'>' not supported between instances of 'NoneType' and 'int'"),
    ),
    Rule(
        id="speculation.trtllm_mha_topk",
        stage=Stage.RESOLVE,
        source="arg_groups/speculative_hook.py:1171",
        concerns=frozenset({"speculative_algorithm"}),
        broken=lambda launch: (
            _is_eagle(launch)
            and "trtllm_mha" in backends_by_phase(launch.effective)
            and (launch.effective.speculative_eagle_topk or 0) > 1
        ),
        message=lambda launch: (
            f"trtllm_mha verifies drafts in a line: speculative_eagle_topk must be 1, but is "
            f"{launch.effective.speculative_eagle_topk}"
        ),
        exception="ValueError",
        engine_text=says("trtllm_mha backend only supports topk = 1 for speculative decoding."),
    ),
    Rule(
        id="speculation.paged_tree",
        stage=Stage.RESOLVE,
        source="arg_groups/speculative_hook.py:1274",
        concerns=frozenset({"speculative_algorithm"}),
        broken=lambda launch: (
            _is_eagle(launch) and _branches(launch) and launch.effective.attention_backend not in _TREE_BACKENDS
        ),
        message=lambda launch: (
            f"drafts that branch over pages of {launch.effective.page_size} tokens are verified by "
            f"{', '.join(_TREE_BACKENDS)}, not by {launch.effective.attention_backend}"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            f"speculative_eagle_topk > 1 with page_size > 1 is only supported on {_TREE_BACKENDS}; got "
            f"attention_backend={launch.effective.attention_backend!r}. Use page_size == 1 or one of those backends."
        ),
        since=release_0_5(13),
    ),
    Rule(
        id="speculation.ngram_pages",
        stage=Stage.RESOLVE,
        source="arg_groups/speculative_hook.py:1355",
        concerns=frozenset({"speculative_algorithm"}),
        broken=lambda launch: (
            _algorithm(launch) == "NGRAM" and _branches(launch) and launch.effective.attention_backend != "flashinfer"
        ),
        message=lambda launch: (
            f"NGRAM drafts branch over pages of {launch.effective.page_size} tokens, which flashinfer verifies, not "
            f"{launch.effective.attention_backend}"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            f"speculative_eagle_topk({launch.effective.speculative_eagle_topk}) > 1 with "
            f"page_size({launch.effective.page_size}) > 1 is unstable"
        ),
    ),
    Rule(
        id="speculation.ngram_attn_dp",
        stage=Stage.RESOLVE,
        source="arg_groups/speculative_hook.py:1369",
        concerns=frozenset({"speculative_algorithm"}),
        broken=lambda launch: _algorithm(launch) == "NGRAM" and _has_groups(launch),
        message=lambda launch: (
            "NGRAM drafts cannot be combined with attention data parallelism "
            f"(attn_dp_size={launch.declared.attn_dp_size})"
        ),
        exception="ValueError",
        engine_text=says("Currently ngram speculative decoding does not support dp attention."),
    ),
)

DRAFT_BACKEND = (
    Rule(
        id="deepep_v2.draft",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:620",
        concerns=frozenset({"speculative_algorithm"}),
        broken=lambda launch: (
            launch.effective.moe_a2a_backend == "deepep_v2" and _algorithm(launch) not in (None, "NGRAM")
        ),
        message=says("--moe-a2a-backend deepep_v2 runs no draft model"),
        exception="ValueError",
        engine_text=says("DeepEP v2 MoE is not validated as a speculative draft backend."),
        since=release_0_5(19),
    ),
)

PIPELINE_CHECKS = (
    Rule(
        id="pp.speculation",
        stage=Stage.CHECK,
        source="0.5.19 arg_groups/validation_hook.py:31, 0.5.9 server_args.py:5136",
        broken=lambda launch: launch.asked.pp_size > 1 and _algorithm(launch) is not None,
        message=lambda launch: f"pipeline parallelism cannot draft (pp_size={launch.asked.pp_size})",
        exception="AssertionError",
        engine_text=worded(
            (
                release_0_5(9),
                (
                    "Pipeline parallelism is not compatible with overlap schedule, speculative decoding, mixed chunked "
                    "prefill."
                ),
            ),
            (
                release_0_5(11),
                "Pipeline parallelism is not compatible with overlap schedule, speculative decoding",
            ),
        ),
        until=release_0_5(19),
    ),
    Rule(
        id="pp.mixed_chunk",
        stage=Stage.CHECK,
        source="0.5.9 server_args.py:5136",
        broken=lambda launch: launch.asked.pp_size > 1 and launch.asked.enable_mixed_chunk,
        message=lambda launch: f"pipeline parallelism cannot mix chunks (pp_size={launch.asked.pp_size})",
        exception="AssertionError",
        engine_text=says(
            "Pipeline parallelism is not compatible with overlap schedule, speculative decoding, mixed chunked prefill."
        ),
        until=release_0_5(10),
    ),
    Rule(
        id="pp.dspark",
        stage=Stage.CHECK,
        source="arg_groups/validation_hook.py:125",
        concerns=frozenset({"speculative_algorithm"}),
        broken=lambda launch: (
            launch.asked.pp_size > 1
            and _algorithm(launch) == "DSPARK"
            and launch.asked.disaggregation_mode != "prefill"
        ),
        message=says("DSPARK with pipeline parallelism is for --disaggregation-mode prefill"),
        exception="AssertionError",
        engine_text=says("Pipeline parallel DSPARK requires disaggregation-mode=prefill"),
        since=release_0_5(21),
    ),
    Rule(
        id="pp.speculation",
        stage=Stage.CHECK,
        source="arg_groups/validation_hook.py:133",
        concerns=frozenset({"speculative_algorithm"}),
        broken=lambda launch: launch.asked.pp_size > 1 and _algorithm(launch) not in (None, "EAGLE", "DSPARK"),
        message=lambda launch: (
            f"pipeline parallelism drafts with EAGLE only, not {_algorithm(launch)} (pp_size={launch.asked.pp_size})"
        ),
        exception="AssertionError",
        engine_text=says("Pipeline parallelism currently only supports EAGLE (non-multi-layer) speculative decoding"),
        since=release_0_5(20),
    ),
    Rule(
        id="pp.multi_layer_eagle",
        stage=Stage.CHECK,
        source="arg_groups/validation_hook.py:132",
        concerns=frozenset({"speculative_algorithm"}),
        broken=lambda launch: (
            launch.asked.pp_size > 1
            and launch.asked.speculative_algorithm == "EAGLE"
            and launch.model.architecture in _MULTI_LAYER_EAGLE
        ),
        message=lambda launch: (
            f"pipeline parallelism cannot run the several draft layers of {launch.model.architecture} "
            f"(pp_size={launch.asked.pp_size})"
        ),
        exception="AssertionError",
        engine_text=says("Pipeline parallelism currently only supports EAGLE (non-multi-layer) speculative decoding"),
        since=release_0_5(20),
    ),
    Rule(
        id="pp.speculation_mode",
        stage=Stage.CHECK,
        source="arg_groups/validation_hook.py:161",
        concerns=frozenset({"speculative_algorithm"}),
        broken=lambda launch: (
            launch.asked.pp_size > 1
            and _algorithm(launch) == "EAGLE"
            and launch.asked.disaggregation_mode != "prefill"
            and launch.env.get("SGLANG_ENABLE_PP_SPEC", "").lower() not in ("1", "true", "yes", "y")
        ),
        message=lambda launch: (
            "pipeline parallelism with speculative decoding is for --disaggregation-mode prefill "
            f"(pp_size={launch.asked.pp_size})"
        ),
        exception="AssertionError",
        engine_text=says(
            "PP + speculative decoding (MTP) is only supported on prefill nodes (disaggregation-mode=prefill)"
        ),
        since=release_0_5(20),
    ),
)

CHECKS = (
    Rule(
        id="speculation.mixed_chunk",
        stage=Stage.CHECK,
        source="arg_groups/validation_hook.py:225",
        concerns=frozenset({"speculative_algorithm"}),
        broken=lambda launch: (
            _algorithm(launch) is not None
            and launch.effective.enable_mixed_chunk
            and _algorithm(launch) not in MIXED_CHUNK_ALGORITHMS
        ),
        message=lambda launch: f"enable_mixed_chunk cannot be combined with {_algorithm(launch)} drafts",
        exception="AssertionError",
        engine_text=lambda launch: (
            f"enable_mixed_chunk is not supported with speculative_algorithm={_algorithm(launch)}"
        ),
        since=release_0_5(19),
    ),
)


def _drafts(launch: Launch) -> str:
    """How the target's class drafts for itself."""
    return ARCHITECTURES[launch.model.architecture].drafts


LOADING = (
    Rule(
        id="speculation.draft_layer",
        stage=Stage.WEIGHTS,
        source="models/deepseek_common/deepseek_weight_loader.py:567",
        concerns=frozenset({"speculative_algorithm"}),
        broken=lambda launch: (
            drafts_by_itself(launch.asked)
            and _drafts(launch) == "counted"
            and launch.model.num_draft_layers not in (None, 1)
        ),
        message=lambda launch: (
            f"{_algorithm(launch)} without --speculative-draft-model-path needs one draft layer in the checkpoint, but "
            f"{launch.model.name} has {launch.model.num_draft_layers} (num_nextn_predict_layers)"
        ),
        exception="AssertionError",
        engine_text=says("Only 1 nextn layer is supported"),
    ),
)

UNDETECTED = (
    Rule(
        id="speculation.no_draft",
        stage=Stage.UNDETECTED,
        source="configs/model_config.py:956",
        concerns=frozenset({"speculative_algorithm"}),
        broken=lambda launch: drafts_by_itself(launch.asked) and _drafts(launch) == "no",
        message=lambda launch: (
            f"{_algorithm(launch)} needs a draft model: {launch.model.name} has no layer that drafts for it, and "
            "without --speculative-draft-model-path the engine makes a draft of its checkpoint: the whole model a "
            "second time, or a layer without weights"
        ),
    ),
)
