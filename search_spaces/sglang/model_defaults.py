"""What each architecture declares for itself where the flags leave it open, or in spite of them.

The engine's own files are `arg_groups/model_overrides/*` of 0.5.23; each function here names its one.
All of an architecture's declarations see the same flags; the later wins where two name one field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from search_spaces.layout import Layout
from search_spaces.model import Scheme
from search_spaces.sglang.attention_backends import default_attention_backend, names_attention_backend
from search_spaces.sglang.target import DEEPSEEK_FAMILY, Target

Changes = dict[str, Any]
Declaration = Callable[[Layout, Target], Changes]

UNQUANTIZED = "unquant"
"""`--quantization unquant`: what the checkpoint says is not looked at (arg_groups/serving_hook.py:694)."""

_LARGE_HOPPER_MIB = 60 * 1024


def declared_by_model(layout: Layout, target: Target) -> Changes:
    """The fields that the architecture declares, with their values."""
    if target.is_cpu:
        return {}
    changes: Changes = {}
    for declaration in _DECLARATIONS.get(target.model.architecture, ()):
        changes |= declaration(layout, target)
    return changes


def _quantization(layout: Layout, detected: str | None) -> str | None:
    """The scheme asked for, or what the checkpoint is; `unquant` forbids the latter."""
    return None if layout.quantization == UNQUANTIZED else layout.quantization or detected


def _loaded_quantization(layout: Layout, target: Target) -> str | None:
    """What the weights are loaded as: ModelOpt's checkpoints win over what is asked for."""
    found = target.checkpoint_quantization
    if found is not None and found.startswith("modelopt_") and layout.quantization != "nvfp4_online":
        return found
    return found if layout.quantization in (None, UNQUANTIZED) else layout.quantization


def _deepseek(layout: Layout, target: Target) -> Changes:
    """deepseek_v2.py:54: sparse attention pages 64 tokens; prefill context parallelism takes the TP group."""
    changes: Changes = {}
    if target.is_dsa:
        if not names_attention_backend(layout):
            changes["attention_backend"] = "dsa"
        changes["page_size"] = 64
    elif target.is_sm100 and not names_attention_backend(layout):
        changes["attention_backend"] = "trtllm_mla"
    if layout.enable_prefill_cp:
        changes |= _context_parallel(layout, is_dsa=target.is_dsa)
    return changes


def _context_parallel(layout: Layout, *, is_dsa: bool) -> Changes:
    groups = layout.attn_dp_size * layout.dp_size
    changes: Changes = {"attn_dp_size": groups, "dp_size": 1, "attn_cp_size": layout.tp_size // max(groups, 1)}
    if is_dsa and layout.cp_strategy == "interleave" and layout.attn_cp_size > 1:
        changes["attn_cp_size"] = layout.attn_cp_size
    if not is_dsa or layout.cp_strategy == "zigzag":
        changes |= {"moe_dense_tp_size": 1, "moe_a2a_backend": "deepep", "ep_size": layout.tp_size}
    return changes


def _deepseek_v4(layout: Layout, target: Target) -> Changes:
    """deepseek_v4.py:19."""
    changes: Changes = {"attention_backend": "dsv4", "page_size": 256}
    if layout.moe_runner_backend == "auto":
        has_kernels = target.is_sm90 or target.is_blackwell
        if target.model.quantization.scheme is Scheme.NVFP4:
            changes["moe_runner_backend"] = "flashinfer_trtllm_routed"
        elif target.model.quantization.scheme is Scheme.MXFP4 and layout.moe_a2a_backend == "none" and has_kernels:
            changes["moe_runner_backend"] = "flashinfer_mxfp4"
    return changes


def _qwen3_moe(layout: Layout, target: Target) -> Changes:
    """qwen3_moe.py:34."""
    if not target.is_sm100:
        return {}
    changes: Changes = {}
    quantization = _quantization(layout, target.config_quantization)
    if quantization is not None:
        changes["quantization"] = quantization
    suited = quantization in ("fp8", "modelopt_fp4", "modelopt_mixed", None)
    if suited and layout.moe_a2a_backend == "none" and layout.moe_runner_backend == "auto":
        changes["moe_runner_backend"] = "flashinfer_trtllm"
    return changes


def _qwen3_5(layout: Layout, target: Target) -> Changes:
    """qwen3_5.py:18: the linear-attention state without an extra buffer keeps pages of one token."""
    if not target.is_sm100 or layout.attention_backend is not None:
        return {}
    keeps_state = layout.disable_radix_cache or layout.speculative_algorithm is not None
    if keeps_state and default_attention_backend(layout, target) == "trtllm_mha":
        return {"attention_backend": "trtllm_mha", "page_size": 64}
    return {"attention_backend": "triton", "page_size": 1}


def _qwen3_vl(layout: Layout, target: Target) -> Changes:
    """qwen3_vl.py:79, for Hopper cards from 60 GiB."""
    if not target.is_sm90 or (target.capacity_mib or 0) < _LARGE_HOPPER_MIB:
        return {}
    if layout.attention_backend is None and layout.decode_attention_backend is None:
        return {"decode_attention_backend": "flashinfer"}
    return {}


def _glm4_moe(layout: Layout, target: Target) -> Changes:
    """glm4_moe.py:13."""
    if not target.is_sm100:
        return {}
    changes: Changes = {}
    quantization = _quantization(layout, target.config_quantization)
    if quantization is not None:
        changes["quantization"] = quantization
    suited = quantization in ("modelopt_fp4", None)
    if suited and layout.moe_a2a_backend == "none" and layout.moe_runner_backend == "auto":
        changes["moe_runner_backend"] = "flashinfer_trtllm"
    return changes


def _gpt_oss(layout: Layout, target: Target) -> Changes:
    """gpt_oss.py:20; where the package triton_kernels is installed, ep_size 1 takes `triton_kernel` instead."""
    changes: Changes = {}
    if not names_attention_backend(layout):
        changes["attention_backend"] = "trtllm_mha" if target.is_sm100 else "fa3" if target.is_sm90 else "triton"
    if target.config_quantization == "mxfp4":
        changes["dtype"] = "bfloat16"
        if layout.moe_runner_backend == "auto" and target.is_blackwell:
            changes["moe_runner_backend"] = "flashinfer_mxfp4"
    return changes


def _gemma4(layout: Layout, target: Target) -> Changes:
    """gemma4.py:18."""
    changes: Changes = {}
    if layout.attention_backend is None:
        changes["attention_backend"] = "trtllm_mha" if target.is_sm100 else "triton"
    if (
        target.is_sm100
        and layout.moe_runner_backend == "auto"
        and _loaded_quantization(layout, target) == "modelopt_fp4"
    ):
        changes |= {"quantization": "modelopt_fp4", "moe_runner_backend": "flashinfer_trtllm"}
    return changes


def _llama4(layout: Layout, target: Target) -> Changes:
    """llama4.py:13."""
    changes: Changes = {}
    if layout.attention_backend is None:
        changes["attention_backend"] = "trtllm_mha" if target.is_sm100 else "fa3" if target.is_sm90 else "triton"
    if target.is_sm100 and layout.moe_runner_backend == "auto" and layout.quantization in ("fp8", "modelopt_fp8"):
        changes["moe_runner_backend"] = "flashinfer_trtllm"
    return changes


def _mimo_v2(layout: Layout, target: Target) -> Changes:
    """mimo_v2.py:16."""
    changes: Changes = {}
    if not target.is_sm100:
        return changes
    if not names_attention_backend(layout):
        changes["attention_backend"] = "fa4"
    is_open = layout.moe_runner_backend == "auto" and layout.moe_a2a_backend == "none"
    if is_open and target.config_quantization == "fp8":
        changes["moe_runner_backend"] = "flashinfer_trtllm"
    return changes


def _minimax_m2(layout: Layout, target: Target) -> Changes:
    """minimax_m2.py:14."""
    quantization = _loaded_quantization(layout, target)
    if target.is_sm100 and layout.moe_runner_backend == "auto" and quantization == "modelopt_fp4":
        return {"moe_runner_backend": "flashinfer_trtllm_routed"}
    return {}


def _minimax_m3(layout: Layout, target: Target) -> Changes:
    """minimax_m3.py:36, for checkpoints that are not of the packed NVFP4 kind."""
    changes: Changes = {}
    quantization = _quantization(layout, target.config_quantization)
    if quantization is not None:
        changes["quantization"] = quantization
    runner = layout.moe_runner_backend
    if target.is_sm100 or target.is_sm90:
        if not names_attention_backend(layout):
            takes_fp8 = target.is_sm100 and layout.kv_cache_dtype == "fp8_e4m3"
            changes["attention_backend"] = "fa3" if target.is_sm90 else "trtllm_mha" if takes_fp8 else "fa4"
        backend = changes.get("attention_backend", layout.attention_backend)
        wide = ("fa3",) if target.is_sm90 else ("fa4", "trtllm_mha")
        if layout.page_size is None and backend in wide:
            changes["page_size"] = 128
    if target.is_sm100 and runner == "auto":
        runner = {"mxfp8": "deep_gemm", "modelopt_mixed": "flashinfer_trtllm_routed"}.get(quantization or "", runner)
    if quantization is None and runner in ("auto", "deep_gemm"):
        runner = "triton"
    if runner != layout.moe_runner_backend:
        changes["moe_runner_backend"] = runner
    return changes


def _nemotron_h(layout: Layout, target: Target) -> Changes:
    """nemotron_h.py:19."""
    changes: Changes = {}
    quantization = _loaded_quantization(layout, target)
    is_modelopt = quantization in ("modelopt_fp8", "modelopt_fp4", "modelopt_mixed")
    if is_modelopt:
        changes["quantization"] = quantization
    if layout.moe_runner_backend == "auto":
        moves_experts = (
            layout.enable_eplb or layout.ep_num_redundant_experts > 0 or layout.init_expert_location != "trivial"
        )
        is_trtllm = target.is_sm100 and layout.moe_a2a_backend == "none"
        if moves_experts and is_trtllm:
            changes["moe_runner_backend"] = "flashinfer_trtllm_routed"
        elif is_modelopt or quantization is None:
            packs_fp4 = quantization in ("modelopt_fp4", "modelopt_mixed") and 80 <= target.gpu.sm < 100
            changes["moe_runner_backend"] = (
                "flashinfer_trtllm" if is_trtllm else "marlin" if packs_fp4 else "flashinfer_cutlass"
            )
    if target.is_blackwell and not names_attention_backend(layout):
        if layout.speculative_algorithm is None:
            if target.is_sm100:
                changes["attention_backend"] = "trtllm_mha"
        elif target.is_sm100 and layout.speculative_eagle_topk in (None, 1):
            changes["attention_backend"] = "trtllm_mha"
            if layout.page_size is None:
                changes["page_size"] = 64
        else:
            changes["attention_backend"] = "triton"
    return changes


def _step3(layout: Layout, target: Target) -> Changes:
    """arg_groups/overrides.py:353."""
    if names_attention_backend(layout) or not (target.is_blackwell or target.is_sm90):
        return {}
    return {"attention_backend": "fa4" if target.is_blackwell else "fa3"}


def _kimi_k3(layout: Layout, target: Target) -> Changes:
    """kimi_k3.py:51 and :184."""
    changes: Changes = {}
    if layout.dcp_size > 1:
        if layout.enable_symm_mem:
            changes["enable_symm_mem"] = False
        if layout.decode_attention_backend in ("cutedsl_mla", None) and layout.attention_backend in (
            "cutedsl_mla",
            None,
        ):
            changes |= {"prefill_attention_backend": "trtllm_mla", "decode_attention_backend": "cutedsl_mla"}
    elif target.is_sm100 and not names_attention_backend(layout):
        changes |= {"prefill_attention_backend": "trtllm_mla", "decode_attention_backend": "trtllm_mla"}
    if layout.moe_runner_backend == "auto" and target.is_sm100 and target.model.quantization.scheme is Scheme.MXFP4:
        changes["moe_runner_backend"] = "flashinfer_mxfp4"
    return changes


_DECLARATIONS: Mapping[str, tuple[Declaration, ...]] = {
    **dict.fromkeys(DEEPSEEK_FAMILY, (_deepseek,)),
    "DeepseekV4ForCausalLM": (_deepseek_v4,),
    "Gemma4ForCausalLM": (_gemma4,),
    "Gemma4ForConditionalGeneration": (_gemma4,),
    "Glm4MoeForCausalLM": (_glm4_moe,),
    "GptOssForCausalLM": (_gpt_oss,),
    "KimiK3ForConditionalGeneration": (_kimi_k3,),
    "Llama4ForCausalLM": (_llama4,),
    "Llama4ForConditionalGeneration": (_llama4,),
    "MiMoV2FlashForCausalLM": (_mimo_v2,),
    "MiniMaxM2ForCausalLM": (_minimax_m2,),
    "MiniMaxM3SparseForCausalLM": (_minimax_m3,),
    "MiniMaxM3SparseForConditionalGeneration": (_minimax_m3,),
    "NemotronHForCausalLM": (_nemotron_h,),
    "Qwen3MoeForCausalLM": (_qwen3_moe,),
    "Qwen3NextForCausalLM": (_qwen3_5, _qwen3_moe),
    "Qwen3VLForConditionalGeneration": (_qwen3_vl,),
    "Qwen3VLMoeForConditionalGeneration": (_qwen3_moe, _qwen3_vl),
    "Qwen3_5ForConditionalGeneration": (_qwen3_5, _qwen3_moe),
    "Step3p5ForCausalLM": (_step3,),
    "Step3p7ForConditionalGeneration": (_step3,),
    "Qwen3_5MoeForConditionalGeneration": (_qwen3_5, _qwen3_moe),
}
