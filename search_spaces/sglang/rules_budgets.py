"""Rules on how many tokens an all-to-all backend's buffers hold."""

from __future__ import annotations

from search_spaces.sglang.dispatch_tokens import (
    decode_graph_requests,
    decode_graph_tokens,
    deepep_v2_tokens,
    flashinfer_tokens,
    megamoe_decode_tokens,
    megamoe_prefill_tokens,
    prefill_tokens,
    tokens_per_request,
)
from search_spaces.sglang.rule import CHOICES, WIDTHS, Launch, Rule, says
from search_spaces.sglang.versions import release_0_5
from search_spaces.verdict import Stage

_SIZED = frozenset({CHOICES, WIDTHS})

_MEGAMOE_VARIABLE = "SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK"

_WITHOUT_FALLBACK = frozenset(
    {
        "DeepseekV4ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
    }
)
"""Architectures read here whose experts run in MegaMoE or not at all (arg_groups/mega_moe_hook.py:53)."""


def _a2a(launch: Launch) -> str:
    return launch.effective.moe_a2a_backend


def _chunk(launch: Launch) -> int:
    return launch.effective.chunked_prefill_size or 0


def _is_decode_server(launch: Launch) -> bool:
    return launch.effective.disaggregation_mode == "decode"


def _flashinfer_capacity(launch: Launch) -> int:
    return launch.limit(
        "SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK", max(prefill_tokens(launch.effective), 4096)
    )


def _megamoe_capacity(launch: Launch) -> int:
    return launch.limit(_MEGAMOE_VARIABLE, 8192)


def _is_bounded_by_megamoe(launch: Launch) -> bool:
    """Whether no other path can take what exceeds MegaMoE's buffers (arg_groups/mega_moe_hook.py:66)."""
    return _a2a(launch) == "megamoe" and (
        launch.model.architecture in _WITHOUT_FALLBACK
        or launch.target.config_quantization == "modelopt_fp4"
        or launch.effective.quantization in ("modelopt_fp4", "minimax_m3_nvfp4")
    )


def _bounds_prefill(launch: Launch) -> bool:
    run = launch.effective
    grows = run.pp_size > 1 and run.enable_dynamic_chunking
    return _is_bounded_by_megamoe(launch) and not _is_decode_server(launch) and not grows


def _deepep_v2_capacity(launch: Launch) -> int:
    return launch.limit("SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK", 128)


BUDGETS = (
    Rule(
        id="flashinfer.chunk",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:756",
        backends=frozenset({"flashinfer"}),
        broken=lambda launch: _a2a(launch) == "flashinfer" and not _is_decode_server(launch) and _chunk(launch) <= 0,
        message=lambda launch: (
            f"--moe-a2a-backend flashinfer needs chunked prefill, but chunked_prefill_size comes to {_chunk(launch)}"
        ),
        exception="ValueError",
        engine_text=says(
            "FlashInfer MoE A2A requires chunked prefill: eager prefill dispatches the whole per-rank extend "
            "batch through a fixed-size workspace, so --chunked-prefill-size must be > 0."
        ),
        since=release_0_5(22),
    ),
    Rule(
        id="flashinfer.budget",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:767",
        backends=frozenset({"flashinfer"}),
        broken=lambda launch: (
            _a2a(launch) == "flashinfer" and flashinfer_tokens(launch.effective) > _flashinfer_capacity(launch)
        ),
        message=lambda launch: (
            f"--moe-a2a-backend flashinfer takes at most {_flashinfer_capacity(launch)} tokens a rank, but "
            f"{flashinfer_tokens(launch.effective)} are needed"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            "FlashInfer MoE A2A per-rank token budget exceeds its workspace: "
            f"required={flashinfer_tokens(launch.effective)} tokens per rank (prefill chunk, prefill graph, or "
            f"decode/verify graph), capacity={_flashinfer_capacity(launch)}."
        ),
        needs=_SIZED,
        since=release_0_5(22),
    ),
    Rule(
        id="megamoe.decode_budget",
        stage=Stage.RESOLVE,
        source="arg_groups/mega_moe_hook.py:171",
        backends=frozenset({"megamoe"}),
        broken=lambda launch: (
            _is_bounded_by_megamoe(launch)
            and launch.effective.disaggregation_mode != "prefill"
            and megamoe_decode_tokens(launch.effective) > _megamoe_capacity(launch)
        ),
        message=lambda launch: (
            f"--moe-a2a-backend megamoe takes at most {_megamoe_capacity(launch)} decode tokens a rank, but graphs go "
            f"up to {megamoe_decode_tokens(launch.effective)}"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            f"{launch.model.architecture} with MegaMoE requires {_MEGAMOE_VARIABLE} to cover the largest decode / "
            "verify forward on one rank."
        ),
        needs=_SIZED,
        since=release_0_5(21),
    ),
    Rule(
        id="megamoe.chunk",
        stage=Stage.RESOLVE,
        source="arg_groups/mega_moe_hook.py:192",
        backends=frozenset({"megamoe"}),
        broken=lambda launch: _bounds_prefill(launch) and _chunk(launch) <= 0,
        message=lambda launch: (
            f"--moe-a2a-backend megamoe needs chunked prefill, but chunked_prefill_size comes to {_chunk(launch)}"
        ),
        exception="ValueError",
        engine_text=lambda launch: f"{launch.model.architecture} with MegaMoE requires chunked prefill to be enabled.",
        needs=_SIZED,
        since=release_0_5(21),
    ),
    Rule(
        id="megamoe.shared_chunk",
        stage=Stage.RESOLVE,
        source="arg_groups/mega_moe_hook.py:226",
        backends=frozenset({"megamoe"}),
        broken=lambda launch: (
            _bounds_prefill(launch) and megamoe_prefill_tokens(launch.effective) <= 0 < _chunk(launch)
        ),
        message=lambda launch: (
            f"chunked_prefill_size={_chunk(launch)} leaves a rank no token when shared out once more by MegaMoE"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            f"{launch.model.architecture} with MegaMoE requires a positive effective per-rank chunked prefill size."
        ),
        needs=_SIZED,
        since=release_0_5(21),
    ),
    Rule(
        id="megamoe.budget",
        stage=Stage.RESOLVE,
        source="arg_groups/mega_moe_hook.py:241",
        backends=frozenset({"megamoe"}),
        broken=lambda launch: (
            _bounds_prefill(launch) and megamoe_prefill_tokens(launch.effective) > _megamoe_capacity(launch)
        ),
        message=lambda launch: (
            f"--moe-a2a-backend megamoe takes at most {_megamoe_capacity(launch)} tokens a rank, "
            f"but {megamoe_prefill_tokens(launch.effective)} are needed (chunked_prefill_size={_chunk(launch)})"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            f"{launch.model.architecture} with MegaMoE requires {_MEGAMOE_VARIABLE} to cover each rank's "
            "effective prefill token budget."
        ),
        needs=_SIZED,
        since=release_0_5(21),
    ),
)

DEEPEP_V2 = (
    Rule(
        id="deepep_v2.budget",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:689",
        backends=frozenset({"deepep_v2"}),
        broken=lambda launch: (
            _a2a(launch) == "deepep_v2"
            and not _is_decode_server(launch)
            and deepep_v2_tokens(launch.effective) > _deepep_v2_capacity(launch)
        ),
        message=lambda launch: (
            f"--moe-a2a-backend deepep_v2 takes at most {_deepep_v2_capacity(launch)} prefill tokens a rank, "
            f"but {deepep_v2_tokens(launch.effective)} are needed (chunked_prefill_size={_chunk(launch)})"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            "DeepEP v2 per-rank prefill budget exceeds SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK: "
            f"required={deepep_v2_tokens(launch.effective)}, capacity={_deepep_v2_capacity(launch)}. Raise the "
            "environment value or lower --chunked-prefill-size/--max-prefill-tokens."
        ),
        needs=_SIZED,
    ),
    Rule(
        id="deepep_v2.graph",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:700",
        backends=frozenset({"deepep_v2"}),
        broken=lambda launch: (
            _a2a(launch) == "deepep_v2" and decode_graph_tokens(launch.effective) > _deepep_v2_capacity(launch)
        ),
        message=lambda launch: (
            f"--moe-a2a-backend deepep_v2 takes at most {_deepep_v2_capacity(launch)} decode tokens a rank, "
            f"but graphs go up to {decode_graph_tokens(launch.effective)}"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            "DeepEP v2 per-rank decode CUDA graph exceeds SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK: "
            f"required={decode_graph_tokens(launch.effective)}, capacity={_deepep_v2_capacity(launch)} "
            f"(requests={decode_graph_requests(launch.effective)}, "
            f"tokens/request={tokens_per_request(launch.effective)}). Raise the environment value or "
            "lower --cuda-graph-max-bs-decode."
        ),
        needs=_SIZED,
    ),
)
