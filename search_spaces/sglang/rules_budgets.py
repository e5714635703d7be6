"""Rules on how many tokens an all-to-all backend's buffers hold."""

from __future__ import annotations

from search_spaces.model import Scheme
from search_spaces.sglang.rule import CHOICES, SIZES, Launch, Rule, says
from search_spaces.sglang.versions import EngineVersion
from search_spaces.verdict import Stage

_SIZED = frozenset({CHOICES, SIZES})
_FLASHINFER_REWORKED = EngineVersion(0, 5, 13)
_MAX_PREFILL_TOKENS = 16384


def _a2a(launch: Launch) -> str:
    return launch.effective.moe_a2a_backend


def _chunk(launch: Launch) -> int:
    return launch.effective.chunked_prefill_size or 0


def decode_graph_requests(launch: Launch) -> int:
    """Requests of the largest decode graph on one attention-DP rank (arg_groups/moe_hook.py:659)."""
    graph_bs = launch.effective.cuda_graph_max_bs_decode or 0
    limit = launch.asked.max_running_requests
    return graph_bs if limit is None else min(graph_bs, max(1, limit // launch.asked.attn_dp_size))


def _flashinfer_capacity(launch: Launch) -> int:
    return launch.limit("SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK", max(_chunk(launch), 4096))


def _flashinfer_tokens(launch: Launch) -> int:
    return max(_chunk(launch), decode_graph_requests(launch))


_MEGAMOE_VARIABLE = "SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK"


def _megamoe_is_bounded(launch: Launch) -> bool:
    """Whether no other path can take what exceeds MegaMoE's buffers (arg_groups/mega_moe_hook.py:66)."""
    return _a2a(launch) == "megamoe" and (
        launch.model.architecture == "Qwen3MoeForCausalLM" or launch.model.quantization.scheme is Scheme.NVFP4
    )


def _megamoe_tokens(launch: Launch) -> int:
    """Tokens of one prefill on one rank (mega_moe_hook.py:198); 0 where the chunk is switched off."""
    run = launch.effective
    local = _chunk(launch) // run.attn_dp_size if run.attn_dp_size > 1 else _chunk(launch)
    width = max(run.tp_size // run.attn_dp_size // run.attn_cp_size, 1)
    prefill = -(-local // width) * width
    return max(prefill, decode_graph_requests(launch)) if local > 0 else 0


def _deepep_v2_tokens(launch: Launch) -> int:
    ceiling = _chunk(launch) if _chunk(launch) > 0 else _MAX_PREFILL_TOKENS
    return -(-ceiling // max(1, launch.asked.tp_size // launch.asked.attn_dp_size))


def _deepep_v2_capacity(launch: Launch) -> int:
    return launch.limit("SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK", 128)


BUDGETS = (
    Rule(
        id="flashinfer.chunk",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:756",
        broken=lambda launch: _a2a(launch) == "flashinfer" and _chunk(launch) <= 0,
        message=lambda launch: (
            f"--moe-a2a-backend flashinfer needs chunked prefill, but chunked_prefill_size comes to {_chunk(launch)}"
        ),
        exception="ValueError",
        engine_text=says(
            "FlashInfer MoE A2A requires chunked prefill: eager prefill dispatches the whole per-rank extend "
            "batch through a fixed-size workspace, so --chunked-prefill-size must be > 0."
        ),
        since=_FLASHINFER_REWORKED,
    ),
    Rule(
        id="flashinfer.budget",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:767",
        broken=lambda launch: (
            _a2a(launch) == "flashinfer" and _flashinfer_tokens(launch) > _flashinfer_capacity(launch)
        ),
        message=lambda launch: (
            f"--moe-a2a-backend flashinfer takes at most {_flashinfer_capacity(launch)} tokens a rank, but "
            f"{_flashinfer_tokens(launch)} are needed"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            "FlashInfer MoE A2A per-rank token budget exceeds its workspace: "
            f"required={_flashinfer_tokens(launch)} tokens per rank (prefill chunk, prefill graph, or "
            f"decode/verify graph), capacity={_flashinfer_capacity(launch)}."
        ),
        needs=_SIZED,
        since=_FLASHINFER_REWORKED,
    ),
    Rule(
        id="megamoe.chunk",
        stage=Stage.RESOLVE,
        source="arg_groups/mega_moe_hook.py:192",
        broken=lambda launch: _megamoe_is_bounded(launch) and _megamoe_tokens(launch) == 0,
        message=lambda launch: (
            f"--moe-a2a-backend megamoe needs chunked prefill, but chunked_prefill_size comes to {_chunk(launch)}"
        ),
        exception="ValueError",
        engine_text=lambda launch: f"{launch.model.architecture} with MegaMoE requires chunked prefill to be enabled.",
        needs=_SIZED,
    ),
    Rule(
        id="megamoe.budget",
        stage=Stage.RESOLVE,
        source="arg_groups/mega_moe_hook.py:241",
        broken=lambda launch: (
            _megamoe_is_bounded(launch) and _megamoe_tokens(launch) > launch.limit(_MEGAMOE_VARIABLE, 8192)
        ),
        message=lambda launch: (
            f"--moe-a2a-backend megamoe takes at most {launch.limit(_MEGAMOE_VARIABLE, 8192)} tokens a rank, "
            f"but {_megamoe_tokens(launch)} are needed (chunked_prefill_size={_chunk(launch)})"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            f"{launch.model.architecture} with MegaMoE requires {_MEGAMOE_VARIABLE} to cover each rank's "
            "effective prefill token budget."
        ),
        needs=_SIZED,
    ),
    Rule(
        id="deepep_v2.budget",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:689",
        broken=lambda launch: _a2a(launch) == "deepep_v2" and _deepep_v2_tokens(launch) > _deepep_v2_capacity(launch),
        message=lambda launch: (
            f"--moe-a2a-backend deepep_v2 takes at most {_deepep_v2_capacity(launch)} prefill tokens a rank, "
            f"but {_deepep_v2_tokens(launch)} are needed (chunked_prefill_size={_chunk(launch)})"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            "DeepEP v2 per-rank prefill budget exceeds SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK: "
            f"required={_deepep_v2_tokens(launch)}, capacity={_deepep_v2_capacity(launch)}. Raise the "
            "environment value or lower --chunked-prefill-size/--max-prefill-tokens."
        ),
        needs=_SIZED,
    ),
    Rule(
        id="deepep_v2.graph",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:700",
        broken=lambda launch: (
            _a2a(launch) == "deepep_v2" and decode_graph_requests(launch) > _deepep_v2_capacity(launch)
        ),
        message=lambda launch: (
            f"--moe-a2a-backend deepep_v2 takes at most {_deepep_v2_capacity(launch)} decode tokens a rank, "
            f"but graphs go up to {decode_graph_requests(launch)}"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            "DeepEP v2 per-rank decode CUDA graph exceeds SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK: "
            f"required={decode_graph_requests(launch)}, capacity={_deepep_v2_capacity(launch)} "
            f"(requests={decode_graph_requests(launch)}, tokens/request=1). Raise the environment value or "
            "lower --cuda-graph-max-bs-decode."
        ),
        needs=_SIZED,
    ),
)
