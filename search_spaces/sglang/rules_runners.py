"""Rules on `--moe-runner-backend` that argument resolution checks."""

from __future__ import annotations

from search_spaces.sglang.rule import Launch, Rule, says
from search_spaces.verdict import Stage


def _runner(launch: Launch) -> str:
    return launch.effective.moe_runner_backend


def _spans_ep_partly(launch: Launch) -> bool:
    """Runners are checked before an all-to-all backend changes ep_size."""
    return launch.asked.ep_size not in (1, launch.asked.tp_size)


def _ep_message(launch: Launch) -> str:
    return (
        f"--moe-runner-backend {_runner(launch)} needs ep_size to be 1 or tp_size "
        f"(ep_size={launch.asked.ep_size}, tp_size={launch.asked.tp_size})"
    )


_EP_TEXT = says("The expert parallel size must be 1 or the same as the tensor parallel size")


def _quantization_message(launch: Launch) -> str:
    return f"--moe-runner-backend {_runner(launch)} cannot run {launch.model.quantization.scheme} experts"


EARLY = (
    Rule(
        id="runner.triton_kernel.ep",
        stage=Stage.RESOLVE,
        source="arg_groups/model_hook.py:569",
        broken=lambda launch: (
            _runner(launch) == "triton_kernel"
            and launch.model.architecture == "GptOssForCausalLM"
            and launch.asked.ep_size != 1
        ),
        message=lambda launch: f"--moe-runner-backend triton_kernel needs ep_size 1, but it is {launch.asked.ep_size}",
        exception="AssertionError",
        engine_text=says("Triton kernel MoE is only supported when ep_size == 1"),
    ),
)


RUNNERS = (
    Rule(
        id="runner.flashinfer_cutlass.quantization",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:81",
        broken=lambda launch: (
            _runner(launch) == "flashinfer_cutlass"
            and launch.target.quantization not in ("modelopt_fp4", "modelopt_fp8", "modelopt_mixed", None)
        ),
        message=_quantization_message,
        exception="AssertionError",
        engine_text=lambda launch: (
            f"Invalid quantization '{launch.target.quantization}'. \nFlashInfer Cutlass MOE supports only: "
            "'modelopt_fp4', 'modelopt_fp8', 'modelopt_mixed', or bfloat16 (None)."
        ),
    ),
    Rule(
        id="runner.flashinfer_cutlass.ep",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:89",
        broken=lambda launch: _runner(launch) == "flashinfer_cutlass" and _spans_ep_partly(launch),
        message=_ep_message,
        exception="AssertionError",
        engine_text=_EP_TEXT,
    ),
    Rule(
        id="runner.flashinfer_cutedsl.quantization",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:98",
        broken=lambda launch: _runner(launch) == "flashinfer_cutedsl" and launch.target.quantization != "modelopt_fp4",
        message=_quantization_message,
        exception="AssertionError",
        engine_text=lambda launch: (
            f"Invalid quantization '{launch.target.quantization}'. \nFlashInfer CuteDSL MOE currently "
            "supports only: 'modelopt_fp4', 'modelopt_mixed' (with NVFP4 MoE layers), 'nvfp4_online', or "
            "hybrid NVFP4 models."
        ),
    ),
    Rule(
        id="runner.flashinfer_cutedsl.ep",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:102",
        broken=lambda launch: _runner(launch) == "flashinfer_cutedsl" and _spans_ep_partly(launch),
        message=_ep_message,
        exception="AssertionError",
        engine_text=_EP_TEXT,
    ),
    Rule(
        id="runner.flashinfer_cutedsl.a2a",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:106",
        broken=lambda launch: (
            _runner(launch) == "flashinfer_cutedsl"
            and launch.asked.moe_a2a_backend not in ("none", "deepep", "flashinfer")
        ),
        message=lambda launch: (
            "--moe-runner-backend flashinfer_cutedsl works with --moe-a2a-backend none, deepep or "
            f"flashinfer, but it is {launch.asked.moe_a2a_backend}"
        ),
        exception="AssertionError",
        engine_text=lambda launch: (
            "flashinfer_cutedsl supports moe_a2a_backend='none', 'deepep', or 'flashinfer', got "
            f"'{launch.asked.moe_a2a_backend}'."
        ),
    ),
    Rule(
        id="runner.flashinfer_trtllm.quantization",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:124",
        broken=lambda launch: (
            _runner(launch) in ("flashinfer_trtllm", "experimental_sgl_trtllm")
            and launch.target.quantization == "mxfp4"
        ),
        message=_quantization_message,
        exception="AssertionError",
        engine_text=lambda launch: (
            f"Invalid quantization '{launch.target.quantization}'. \nFlashInfer TRTLLM MOE supports only: "
            "'modelopt_fp4', 'nvfp4_online', 'fp8', 'modelopt_fp8', 'modelopt_mixed', 'compressed-tensors', "
            "or bfloat16 (None)."
        ),
    ),
    Rule(
        id="runner.flashinfer_trtllm_routed.quantization",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:138",
        broken=lambda launch: (
            _runner(launch) == "flashinfer_trtllm_routed"
            and launch.target.quantization not in ("fp8", "modelopt_fp4", None)
        ),
        message=_quantization_message,
        exception="AssertionError",
        engine_text=lambda launch: (
            f"Invalid quantization '{launch.target.quantization}'. \nFlashInfer TRTLLM routed MOE supports "
            "only: 'fp8', 'mxfp8', 'modelopt_fp4', 'modelopt_mixed', 'nvfp4_online', 'minimax_m3_nvfp4', or "
            "bfloat16 (None)."
        ),
    ),
    Rule(
        id="runner.cutlass.ep",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:161",
        broken=lambda launch: (
            _runner(launch) == "cutlass" and launch.target.quantization == "fp8" and launch.asked.ep_size != 1
        ),
        message=lambda launch: (
            f"--moe-runner-backend cutlass needs ep_size 1 for FP8 experts, but it is {launch.asked.ep_size}"
        ),
        exception="AssertionError",
        engine_text=says("FP8/MXFP8 Cutlass MoE is only supported with ep_size == 1"),
    ),
)
