"""Rules on `--moe-a2a-backend` that argument resolution checks."""

from __future__ import annotations

from search_spaces.model import Scheme
from search_spaces.sglang import rules_overlap
from search_spaces.sglang.rule import Launch, Rule, says, worded
from search_spaces.sglang.versions import release_0_5
from search_spaces.verdict import Stage

_DEEPEP_V2_ARCHITECTURES = {
    "DeepseekV3ForCausalLM": 19,
    "DeepseekV4ForCausalLM": 19,
    "GlmMoeDsaForCausalLM": 22,
    "MiMoV2FlashForCausalLM": 22,
    "Qwen3MoeForCausalLM": 19,
}
"""Those read here that are validated for it, with the 0.5 release since which (configs/moe_model_registry.py:20)."""

_MEGAMOE_ARCHITECTURES = frozenset(
    {
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "DeepseekV4ForCausalLM",
        "Glm4MoeForCausalLM",
        "GlmMoeDsaForCausalLM",
        "KimiK3ForConditionalGeneration",
        "NemotronHForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3MoeForCausalLM",
    }
)
"""Those read here that are validated for FlashInfer's MegaMoE (arg_groups/moe_hook.py:241)."""

_FLASHINFER_RUNNERS = {
    "flashinfer_cutlass": 9,
    "flashinfer_cutedsl": 13,
    "flashinfer_trtllm_routed": 15,
    "flashinfer_trtllm": 19,
    "deep_gemm": 19,
}
"""With the 0.5 release in which each was added."""
_FLASHINFER_REWORKED = release_0_5(13)


def _has_fp4_experts(launch: Launch) -> bool:
    """Experts in FP4 beside another scheme (`is_fp4_experts`, `nvfp4_moe_meta` of configs/model_config.py)."""
    return launch.model.architecture == "DeepseekV4ForCausalLM" and launch.model.quantization.scheme in (
        Scheme.MXFP4,
        Scheme.NVFP4,
    )


_DP_IS_TP = "is only supported with dp_size == tp_size and --enable-dp-attention"


def _is_validated_for_deepep_v2(launch: Launch) -> bool:
    since = _DEEPEP_V2_ARCHITECTURES.get(launch.model.architecture)
    return since is not None and launch.version >= release_0_5(since)


def _deepep_v2_models(launch: Launch) -> str:
    if launch.version < release_0_5(21):
        return (
            "; supported architectures are ['DeepseekV3ForCausalLM', 'DeepseekV4ForCausalLM', 'Qwen3MoeForCausalLM']."
        )
    return (
        ". The model package must register its architecture with register_deepep_v2_model, because its combine and "
        "post-expert reduction semantics must be validated first."
    )


def _megamoe_schemes(launch: Launch) -> str:
    if launch.version < release_0_5(23):
        return "MXFP8, ModelOpt NVFP4, FP4-expert, or hybrid NVFP4 MoE checkpoints"
    return (
        "MXFP8, ModelOpt NVFP4, FP4-expert, hybrid NVFP4 MoE checkpoints, or nvfp4_online with "
        "SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16=1"
    )


def _flashinfer_runners(launch: Launch) -> list[str]:
    return [runner for runner, since in _FLASHINFER_RUNNERS.items() if launch.version >= release_0_5(since)]


def _runner(launch: Launch) -> str:
    return launch.effective.moe_runner_backend


def _a2a(launch: Launch) -> str:
    return launch.effective.moe_a2a_backend


def _chunk(launch: Launch) -> int:
    return launch.effective.chunked_prefill_size or 0


def _is_attn_dp_full(launch: Launch) -> bool:
    return launch.declared.attn_dp_size > 1 and launch.declared.attn_dp_size == launch.asked.tp_size


def _attn_dp_message(launch: Launch, backend: str) -> str:
    return (
        f"--moe-a2a-backend {backend} needs attn_dp_size to be tp_size and more than 1 "
        f"(attn_dp_size={launch.declared.attn_dp_size}, tp_size={launch.asked.tp_size})"
    )


def _pplx_tokens(launch: Launch) -> int:
    return max(_chunk(launch), launch.asked.cuda_graph_max_bs_decode or 0)


EARLY = (
    Rule(
        id="megamoe.gpu",
        stage=Stage.RESOLVE,
        source="arg_groups/mega_moe_hook.py:43",
        concerns=frozenset({"moe_a2a_backend", "moe_runner_backend"}),
        broken=lambda launch: launch.asks_megamoe and not (launch.target.is_sm90 or launch.target.is_sm100),
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
        since=release_0_5(21),
    ),
)


BACKENDS = (
    Rule(
        id="flashinfer_megamoe.architecture",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:258",
        backends=frozenset({"flashinfer_megamoe"}),
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
        backends=frozenset({"flashinfer_megamoe"}),
        broken=lambda launch: (
            _a2a(launch) == "flashinfer_megamoe"
            and launch.effective.quantization not in ("mxfp8", "modelopt_fp4")
            and not _has_fp4_experts(launch)
        ),
        message=lambda launch: (
            "--moe-a2a-backend flashinfer_megamoe needs NVFP4 experts on compute capability 10.x, but they are "
            f"{launch.model.quantization.scheme} on {launch.cluster.gpu.key}"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            f"FlashInfer MegaMOE currently supports only {_megamoe_schemes(launch)}; got "
            f"quantization={launch.effective.quantization!r}. Standard FP8 MoE checkpoints are not supported."
        ),
    ),
    Rule(
        id="flashinfer_megamoe.attn_dp",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:325",
        backends=frozenset({"flashinfer_megamoe"}),
        broken=lambda launch: _a2a(launch) == "flashinfer_megamoe" and not _is_attn_dp_full(launch),
        message=lambda launch: _attn_dp_message(launch, "flashinfer_megamoe"),
        exception="AssertionError",
        engine_text=worded(
            (release_0_5(20), f"FlashInfer MegaMOE {_DP_IS_TP}"),
            (release_0_5(22), "FlashInfer MegaMOE is only supported with --attn-dp-size equal to --tp-size"),
        ),
    ),
    Rule(
        id="flashinfer_megamoe.runner",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:332",
        backends=frozenset({"flashinfer_megamoe"}),
        broken=lambda launch: _a2a(launch) == "flashinfer_megamoe" and _runner(launch) != "flashinfer_megamoe",
        message=lambda launch: (
            "--moe-a2a-backend flashinfer_megamoe needs --moe-runner-backend flashinfer_megamoe, "
            f"but it is {_runner(launch)}"
        ),
        exception="AssertionError",
        engine_text=says("FlashInfer MegaMOE a2a backend requires --moe-runner-backend flashinfer_megamoe"),
    ),
    Rule(
        id="flashinfer_megamoe.gpu",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:336",
        backends=frozenset({"flashinfer_megamoe"}),
        broken=lambda launch: _a2a(launch) == "flashinfer_megamoe" and not launch.target.is_sm100,
        message=lambda launch: (
            f"--moe-a2a-backend flashinfer_megamoe needs compute capability 10.x, and {launch.cluster.gpu.key} has "
            f"{launch.cluster.gpu.sm / 10:g}"
        ),
        exception="ValueError",
        engine_text=says("FlashInfer MegaMOE currently requires an SM100-family CUDA device for all supported quanti"),
        cuda_only=True,
    ),
    Rule(
        id="deepep.cutedsl_mode",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:377",
        backends=frozenset({"deepep"}),
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
        since=release_0_5(17),
    ),
    Rule(
        id="deepep_v2.architecture",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:726",
        backends=frozenset({"deepep_v2"}),
        broken=lambda launch: _a2a(launch) == "deepep_v2" and not _is_validated_for_deepep_v2(launch),
        message=lambda launch: f"--moe-a2a-backend deepep_v2 is not validated for {launch.model.architecture}",
        exception="ValueError",
        engine_text=lambda launch: (
            f"DeepEP v2 MoE is not validated for '{launch.model.architecture}'{_deepep_v2_models(launch)}"
        ),
    ),
    Rule(
        id="deepep_v2.runner",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:414",
        backends=frozenset({"deepep_v2"}),
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
    *rules_overlap.DEEPEP_V2,
    Rule(
        id="deepep_v2.nnodes",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:433",
        backends=frozenset({"deepep_v2"}),
        broken=lambda launch: (
            _a2a(launch) == "deepep_v2" and launch.asked.deepep_v2_mode == "direct" and launch.asked.nnodes > 1
        ),
        message=lambda launch: (
            "--moe-a2a-backend deepep_v2 runs over NVLink inside one node unless --deepep-v2-mode hybrid is "
            f"given (nnodes={launch.asked.nnodes})"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            "--deepep-v2-mode direct is NVLink-only and cannot run across nodes "
            f"(nnodes={launch.asked.nnodes}); pass --deepep-v2-mode hybrid."
        ),
        since=release_0_5(22),
    ),
    Rule(
        id="flashinfer.attn_dp",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:475",
        backends=frozenset({"flashinfer"}),
        broken=lambda launch: _a2a(launch) == "flashinfer" and not _is_attn_dp_full(launch),
        message=lambda launch: _attn_dp_message(launch, "flashinfer"),
        exception="AssertionError",
        engine_text=worded(
            (_FLASHINFER_REWORKED, f"Flashinfer MoE A2A {_DP_IS_TP}"),
            (release_0_5(22), "Flashinfer MoE A2A is only supported with --attn-dp-size equal to --tp-size"),
            (
                release_0_5(23),
                (
                    "Flashinfer MoE A2A requires --attn-dp-size equal to --tp-size, except for Muse Spark TP4/EP4 or "
                    "TP8/EP8 prefill sequence parallelism."
                ),
            ),
        ),
        since=_FLASHINFER_REWORKED,
    ),
    Rule(
        id="flashinfer.runner",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:531",
        backends=frozenset({"flashinfer"}),
        broken=lambda launch: _a2a(launch) == "flashinfer" and _runner(launch) not in _flashinfer_runners(launch),
        message=lambda launch: (
            f"--moe-a2a-backend flashinfer needs one of {', '.join(_flashinfer_runners(launch))} as "
            f"--moe-runner-backend, but it is {_runner(launch)}"
        ),
        exception="AssertionError",
        engine_text=worded(
            (
                release_0_5(9),
                "Flashinfer MoE A2A is only supported with flashinfer_cutlass moe runner backend",
            ),
            (
                _FLASHINFER_REWORKED,
                (
                    "Flashinfer MoE A2A is only supported with flashinfer_cutlass or flashinfer_cutedsl moe runner "
                    "backend"
                ),
            ),
            (
                release_0_5(15),
                (
                    "Flashinfer MoE A2A is only supported with flashinfer_cutlass, flashinfer_cutedsl or "
                    "flashinfer_trtllm_routed moe runner backend"
                ),
            ),
            (
                release_0_5(19),
                (
                    "FlashInfer MoE A2A is supported with flashinfer_cutlass, flashinfer_cutedsl, flashinfer_trtllm, "
                    "flashinfer_trtllm_routed, or deep_gemm."
                ),
            ),
        ),
    ),
    Rule(
        id="mori.budget",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:567",
        backends=frozenset({"mori"}),
        broken=lambda launch: (
            _a2a(launch) == "mori"
            and launch.asked.disaggregation_mode != "decode"
            and _chunk(launch) > launch.limit("SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK", 4096)
        ),
        message=lambda launch: (
            f"--moe-a2a-backend mori takes at most "
            f"{launch.limit('SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK', 4096)} tokens a rank, but "
            f"chunked_prefill_size is {_chunk(launch)}"
        ),
        exception="AssertionError",
        engine_text=worded(
            (
                release_0_5(9),
                (
                    "SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK (default 4096) must be larger or equal to "
                    "chunked_prefill_size"
                ),
            ),
            (
                release_0_5(15),
                (
                    "SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK (default 4096) must be >= the per-rank MoRI dispatch "
                    "tokens (chunked_prefill_size by default)"
                ),
            ),
        ),
    ),
    Rule(
        id="pplx.mode",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:577",
        backends=frozenset({"pplx"}),
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
        backends=frozenset({"pplx"}),
        broken=lambda launch: _a2a(launch) == "pplx" and launch.declared.attn_dp_size < 2,
        message=lambda launch: (
            f"--moe-a2a-backend pplx needs attn_dp_size of at least 2, but it is {launch.declared.attn_dp_size}"
        ),
        exception="AssertionError",
        engine_text=worded(
            (
                release_0_5(17),
                "moe_a2a_backend='pplx' requires --enable-dp-attention with at least 2 DP groups (--dp-size >= 2).",
            ),
            (
                release_0_5(22),
                "moe_a2a_backend='pplx' requires attention DP with at least 2 groups (--attn-dp-size >= 2).",
            ),
        ),
    ),
    Rule(
        id="pplx.runner",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:599",
        backends=frozenset({"pplx"}),
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
        backends=frozenset({"pplx"}),
        broken=lambda launch: (
            _a2a(launch) == "pplx"
            and launch.asked.disaggregation_mode != "decode"
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
