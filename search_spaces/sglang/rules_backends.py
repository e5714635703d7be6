"""Rules on `--moe-a2a-backend` that argument resolution checks."""

from __future__ import annotations

from search_spaces.sglang.rule import Launch, Rule, says
from search_spaces.sglang.versions import EngineVersion
from search_spaces.verdict import Stage

_DEEPEP_V2_ARCHITECTURES = frozenset({"DeepseekV3ForCausalLM", "Qwen3MoeForCausalLM", "GlmMoeDsaForCausalLM"})
"""Those read here that are registered for it (configs/moe_model_registry.py:20)."""

_MEGAMOE_ARCHITECTURES = frozenset(
    {
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "Glm4MoeForCausalLM",
        "GlmMoeDsaForCausalLM",
        "Qwen3MoeForCausalLM",
    }
)
"""Those read here that are validated for FlashInfer's MegaMoE (arg_groups/moe_hook.py:241)."""

_FLASHINFER_RUNNERS = frozenset(
    {"flashinfer_cutlass", "flashinfer_cutedsl", "flashinfer_trtllm", "flashinfer_trtllm_routed", "deep_gemm"}
)
_FLASHINFER_REWORKED = EngineVersion(0, 5, 13)
_FLASHINFER_FIRST_LAST = EngineVersion(0, 5, 12)


def _runner(launch: Launch) -> str:
    return launch.effective.moe_runner_backend


def _a2a(launch: Launch) -> str:
    return launch.effective.moe_a2a_backend


def _chunk(launch: Launch) -> int:
    return launch.effective.chunked_prefill_size or 0


def _is_attn_dp_full(launch: Launch) -> bool:
    return launch.asked.attn_dp_size > 1 and launch.asked.attn_dp_size == launch.asked.tp_size


def _attn_dp_message(launch: Launch, backend: str) -> str:
    return (
        f"--moe-a2a-backend {backend} needs attn_dp_size to be tp_size and more than 1 "
        f"(attn_dp_size={launch.asked.attn_dp_size}, tp_size={launch.asked.tp_size})"
    )


def _pplx_tokens(launch: Launch) -> int:
    return max(_chunk(launch), launch.asked.cuda_graph_max_bs_decode or 0)


EARLY = (
    Rule(
        id="megamoe.gpu",
        stage=Stage.RESOLVE,
        source="arg_groups/mega_moe_hook.py:43",
        broken=lambda launch: _a2a(launch) == "megamoe" and not (launch.target.is_sm90 or launch.target.is_sm100),
        message=lambda launch: (
            f"--moe-a2a-backend megamoe needs a GPU of compute capability 9.x or 10.x, {launch.cluster.gpu.key} "
            f"has {launch.cluster.gpu.sm / 10:g}"
        ),
        exception="ValueError",
        engine_text=says(
            "--moe-a2a-backend megamoe needs a CUDA SM90 GPU (block-FP8 experts) or an SM100-class GPU "
            "(MXFP4 / NVFP4 experts); it runs DeepGEMM kernels over CUDA symmetric memory. On ROCm, set "
            "SGLANG_AMD_USE_FLYDSL_MEGA_MOE=1 to select aiter MegaMoEv2 instead."
        ),
    ),
)


BACKENDS = (
    Rule(
        id="flashinfer_megamoe.architecture",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:258",
        broken=lambda launch: (
            _a2a(launch) == "flashinfer_megamoe" and launch.model.architecture not in _MEGAMOE_ARCHITECTURES
        ),
        message=lambda launch: f"--moe-a2a-backend flashinfer_megamoe is not validated for {launch.model.architecture}",
        exception="ValueError",
        engine_text=lambda launch: (
            f"FlashInfer MegaMOE is not validated for model architectures ['{launch.model.architecture}']."
        ),
    ),
    Rule(
        id="flashinfer_megamoe.quantization",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:275",
        broken=lambda launch: _a2a(launch) == "flashinfer_megamoe" and launch.target.quantization != "modelopt_fp4",
        message=lambda launch: (
            "--moe-a2a-backend flashinfer_megamoe needs NVFP4 experts on compute capability 10.x, but they are "
            f"{launch.model.quantization.scheme} on {launch.cluster.gpu.key}"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            "FlashInfer MegaMOE currently supports only MXFP8, ModelOpt NVFP4, FP4-expert, hybrid NVFP4 MoE "
            "checkpoints, or nvfp4_online with SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16=1; got "
            f"quantization={launch.target.quantization!r}. Standard FP8 MoE checkpoints are not supported."
        ),
    ),
    Rule(
        id="flashinfer_megamoe.attn_dp",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:325",
        broken=lambda launch: _a2a(launch) == "flashinfer_megamoe" and not _is_attn_dp_full(launch),
        message=lambda launch: _attn_dp_message(launch, "flashinfer_megamoe"),
        exception="AssertionError",
        engine_text=says("FlashInfer MegaMOE is only supported with --attn-dp-size equal to --tp-size"),
    ),
    Rule(
        id="flashinfer_megamoe.runner",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:332",
        broken=lambda launch: _a2a(launch) == "flashinfer_megamoe" and _runner(launch) != "flashinfer_megamoe",
        message=lambda launch: (
            "--moe-a2a-backend flashinfer_megamoe needs --moe-runner-backend flashinfer_megamoe, "
            f"but it is {_runner(launch)}"
        ),
        exception="AssertionError",
        engine_text=says("FlashInfer MegaMOE a2a backend requires --moe-runner-backend flashinfer_megamoe"),
    ),
    Rule(
        id="deepep.cutedsl_mode",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:377",
        broken=lambda launch: (
            _a2a(launch) == "deepep"
            and _runner(launch) == "flashinfer_cutedsl"
            and launch.asked.deepep_mode == "normal"
        ),
        message=says("--moe-runner-backend flashinfer_cutedsl cannot run under --deepep-mode normal"),
        exception="ValueError",
        engine_text=says(
            "flashinfer_cutedsl FP4 MoE only supports DeepEP low_latency dispatch (masked layout). DeepEP "
            "normal (prefill) dispatch has no CuteDSL FP4 handler. Pass --deepep-mode low_latency or auto."
        ),
    ),
    Rule(
        id="deepep_v2.architecture",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:726",
        broken=lambda launch: _a2a(launch) == "deepep_v2" and launch.model.architecture not in _DEEPEP_V2_ARCHITECTURES,
        message=lambda launch: f"--moe-a2a-backend deepep_v2 is not validated for {launch.model.architecture}",
        exception="ValueError",
        engine_text=lambda launch: (
            f"DeepEP v2 MoE is not validated for '{launch.model.architecture}'. The model package must register "
            "its architecture with register_deepep_v2_model, because its combine and post-expert reduction "
            "semantics must be validated first."
        ),
    ),
    Rule(
        id="deepep_v2.runner",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:414",
        broken=lambda launch: _a2a(launch) == "deepep_v2" and _runner(launch) != "deep_gemm",
        message=lambda launch: (
            f"--moe-a2a-backend deepep_v2 needs --moe-runner-backend deep_gemm or auto, but it is {_runner(launch)}"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            f"DeepEP v2 MoE currently supports only --moe-runner-backend deep_gemm. Got {_runner(launch)!r}. "
            "Add a runner adapter before enabling DeepEP v2 with other MoE runners."
        ),
    ),
    Rule(
        id="deepep_v2.nnodes",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:433",
        broken=lambda launch: _a2a(launch) == "deepep_v2" and launch.asked.nnodes > 1,
        message=lambda launch: (
            "--moe-a2a-backend deepep_v2 runs over NVLink inside one node unless --deepep-v2-mode hybrid is "
            f"given (nnodes={launch.asked.nnodes})"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            "--deepep-v2-mode direct is NVLink-only and cannot run across nodes "
            f"(nnodes={launch.asked.nnodes}); pass --deepep-v2-mode hybrid."
        ),
    ),
    Rule(
        id="flashinfer.attn_dp",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:475",
        broken=lambda launch: _a2a(launch) == "flashinfer" and not _is_attn_dp_full(launch),
        message=lambda launch: _attn_dp_message(launch, "flashinfer"),
        exception="AssertionError",
        engine_text=says(
            "Flashinfer MoE A2A requires --attn-dp-size equal to --tp-size, except for Muse Spark TP4/EP4 or "
            "TP8/EP8 prefill sequence parallelism."
        ),
        since=_FLASHINFER_REWORKED,
    ),
    Rule(
        id="flashinfer.runner",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:531",
        broken=lambda launch: _a2a(launch) == "flashinfer" and _runner(launch) not in _FLASHINFER_RUNNERS,
        message=lambda launch: (
            f"--moe-a2a-backend flashinfer needs one of {', '.join(sorted(_FLASHINFER_RUNNERS))} as "
            f"--moe-runner-backend, but it is {_runner(launch)}"
        ),
        exception="AssertionError",
        engine_text=says(
            "FlashInfer MoE A2A is supported with flashinfer_cutlass, flashinfer_cutedsl, flashinfer_trtllm, "
            "flashinfer_trtllm_routed, or deep_gemm."
        ),
        since=_FLASHINFER_REWORKED,
    ),
    Rule(
        id="flashinfer.runner",
        stage=Stage.RESOLVE,
        source="server_args.py, 0.5.9 to 0.5.12",
        broken=lambda launch: _a2a(launch) == "flashinfer" and _runner(launch) != "flashinfer_cutlass",
        message=lambda launch: (
            f"--moe-a2a-backend flashinfer needs --moe-runner-backend flashinfer_cutlass, but it is {_runner(launch)}"
        ),
        exception="AssertionError",
        until=_FLASHINFER_FIRST_LAST,
    ),
    Rule(
        id="mori.budget",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:567",
        broken=lambda launch: (
            _a2a(launch) == "mori"
            and _chunk(launch) > launch.limit("SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK", 4096)
        ),
        message=lambda launch: (
            f"--moe-a2a-backend mori takes at most "
            f"{launch.limit('SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK', 4096)} tokens a rank, but "
            f"chunked_prefill_size is {_chunk(launch)}"
        ),
        exception="AssertionError",
        engine_text=says(
            "SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK (default 4096) must be >= the per-rank MoRI dispatch "
            "tokens (chunked_prefill_size by default)"
        ),
    ),
    Rule(
        id="pplx.mode",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:577",
        broken=lambda launch: _a2a(launch) == "pplx" and launch.asked.deepep_mode == "normal",
        message=says("--moe-a2a-backend pplx needs --deepep-mode low_latency or auto, but it is normal"),
        exception="ValueError",
        engine_text=says(
            "moe_a2a_backend='pplx' only supports low-latency mode; set --deepep-mode to 'low_latency' or 'auto'."
        ),
    ),
    Rule(
        id="pplx.attn_dp",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:591",
        broken=lambda launch: _a2a(launch) == "pplx" and launch.asked.attn_dp_size < 2,
        message=lambda launch: (
            f"--moe-a2a-backend pplx needs attn_dp_size of at least 2, but it is {launch.asked.attn_dp_size}"
        ),
        exception="AssertionError",
        engine_text=says("moe_a2a_backend='pplx' requires attention DP with at least 2 groups (--attn-dp-size >= 2)."),
    ),
    Rule(
        id="pplx.runner",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:599",
        broken=lambda launch: _a2a(launch) == "pplx" and _runner(launch) != "deep_gemm",
        message=lambda launch: (
            f"--moe-a2a-backend pplx needs --moe-runner-backend deep_gemm or auto, but it is {_runner(launch)}"
        ),
        exception="AssertionError",
        engine_text=says("moe_a2a_backend='pplx' is only supported with --moe-runner-backend deep_gemm (or auto)."),
    ),
    Rule(
        id="pplx.budget",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:615",
        broken=lambda launch: (
            _a2a(launch) == "pplx"
            and _chunk(launch) > 0
            and _pplx_tokens(launch) > launch.limit("SGLANG_PPLX_NUM_MAX_DISPATCH_TOKENS_PER_RANK", 128)
        ),
        message=lambda launch: (
            "--moe-a2a-backend pplx takes at most "
            f"{launch.limit('SGLANG_PPLX_NUM_MAX_DISPATCH_TOKENS_PER_RANK', 128)} tokens a rank, but "
            f"{_pplx_tokens(launch)} are needed (chunked_prefill_size={_chunk(launch)})"
        ),
        exception="AssertionError",
        engine_text=says(
            "SGLANG_PPLX_NUM_MAX_DISPATCH_TOKENS_PER_RANK (default 128) must be >= the per-rank pplx dispatch "
            "tokens (chunked_prefill_size, or the decode cuda-graph batch size)"
        ),
    ),
)
