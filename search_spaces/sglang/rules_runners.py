"""Rules on `--moe-runner-backend` that argument resolution checks."""

from __future__ import annotations

from search_spaces.parts import Scheme
from search_spaces.sglang.rule import Launch, Rule, says
from search_spaces.sglang.versions import release_0_5
from search_spaces.verdict import Stage

_SCHEMES: dict[str, dict[str | None, int]] = {
    "flashinfer_cutlass": {"modelopt_fp4": 9, "modelopt_fp8": 9, "modelopt_mixed": 10, None: 9},
    "flashinfer_cutedsl": {"modelopt_fp4": 11, "modelopt_mixed": 16, "nvfp4_online": 18},
    "flashinfer_trtllm": {
        "modelopt_fp4": 9,
        "nvfp4_online": 14,
        "fp8": 9,
        "mxfp8": 10,
        "modelopt_fp8": 9,
        "modelopt_mixed": 10,
        "compressed-tensors": 9,
        None: 9,
    },
    "flashinfer_trtllm_routed": {
        "fp8": 10,
        "mxfp8": 10,
        "modelopt_fp4": 11,
        "modelopt_mixed": 16,
        "nvfp4_online": 14,
        "minimax_m3_nvfp4": 23,
        None: 10,
    },
}
"""What each runner takes, with the 0.5 release in which it was added (0.5.9 server_args.py:2139 and later)."""


def _runner(launch: Launch) -> str:
    return launch.effective.moe_runner_backend


def _spans_ep_partly(launch: Launch) -> bool:
    """Runners are checked before an all-to-all backend changes ep_size."""
    return launch.declared.ep_size not in (1, launch.asked.tp_size)


def _ep_message(launch: Launch) -> str:
    return (
        f"--moe-runner-backend {_runner(launch)} needs ep_size to be 1 or tp_size "
        f"(ep_size={launch.declared.ep_size}, tp_size={launch.asked.tp_size})"
    )


_EP_TEXT = says("The expert parallel size must be 1 or the same as the tensor parallel size")


def _cutedsl_backends(launch: Launch) -> tuple[str, ...]:
    return ("none", "deepep", "flashinfer") if launch.version >= release_0_5(13) else ("none", "deepep")


def _refuses_scheme(launch: Launch, runner: str) -> bool:
    since = _SCHEMES[runner].get(launch.effective.quantization)
    return since is None or launch.version < release_0_5(since)


def _is_nvfp4_beside_fp8(launch: Launch) -> bool:
    """DeepSeek-V4's NVFP4 checkpoints (`nvfp4_moe_meta` of configs/model_config.py)."""
    quantization = launch.model.quantization
    return quantization.method == "fp8" and quantization.scheme is Scheme.NVFP4


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
            and launch.declared.ep_size != 1
        ),
        message=lambda launch: (
            f"--moe-runner-backend triton_kernel needs ep_size 1, but it is {launch.declared.ep_size}"
        ),
        exception="AssertionError",
        engine_text=says("Triton kernel MoE is only supported when ep_size == 1"),
    ),
)


RUNNERS = (
    Rule(
        id="runner.flashinfer_cutlass.quantization",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:81",
        broken=lambda launch: _runner(launch) == "flashinfer_cutlass" and _refuses_scheme(launch, "flashinfer_cutlass"),
        message=_quantization_message,
        exception="AssertionError",
        engine_text=lambda launch: (
            f"Invalid quantization '{launch.effective.quantization}'. \nFlashInfer Cutlass MOE supports only: "
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
        broken=lambda launch: (
            _runner(launch) == "flashinfer_cutedsl"
            and _refuses_scheme(launch, "flashinfer_cutedsl")
            and not _is_nvfp4_beside_fp8(launch)
        ),
        message=_quantization_message,
        exception="AssertionError",
        engine_text=lambda launch: (
            f"Invalid quantization '{launch.effective.quantization}'. \nFlashInfer CuteDSL MOE currently "
            "supports only: 'modelopt_fp4', 'modelopt_mixed' (with NVFP4 MoE layers), 'nvfp4_online', or "
            "hybrid NVFP4 models."
        ),
        since=release_0_5(11),
    ),
    Rule(
        id="runner.flashinfer_cutedsl.ep",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:102",
        broken=lambda launch: _runner(launch) == "flashinfer_cutedsl" and _spans_ep_partly(launch),
        message=_ep_message,
        exception="AssertionError",
        engine_text=_EP_TEXT,
        since=release_0_5(11),
    ),
    Rule(
        id="runner.flashinfer_cutedsl.a2a",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:106",
        broken=lambda launch: (
            _runner(launch) == "flashinfer_cutedsl" and launch.declared.moe_a2a_backend not in _cutedsl_backends(launch)
        ),
        message=lambda launch: (
            "--moe-runner-backend flashinfer_cutedsl works with --moe-a2a-backend none, deepep or "
            f"flashinfer, but it is {launch.declared.moe_a2a_backend}"
        ),
        exception="AssertionError",
        engine_text=lambda launch: (
            "flashinfer_cutedsl supports moe_a2a_backend='none', 'deepep', or 'flashinfer', got "
            f"'{launch.declared.moe_a2a_backend}'."
        ),
        since=release_0_5(11),
    ),
    Rule(
        id="runner.flashinfer_trtllm.quantization",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:124",
        broken=lambda launch: (
            _runner(launch) in ("flashinfer_trtllm", "experimental_sgl_trtllm")
            and _refuses_scheme(launch, "flashinfer_trtllm")
        ),
        message=_quantization_message,
        exception="AssertionError",
        engine_text=lambda launch: (
            f"Invalid quantization '{launch.effective.quantization}'. \nFlashInfer TRTLLM MOE supports only: "
            "'modelopt_fp4', 'nvfp4_online', 'fp8', 'modelopt_fp8', 'modelopt_mixed', 'compressed-tensors', "
            "or bfloat16 (None)."
        ),
    ),
    Rule(
        id="runner.flashinfer_trtllm_routed.quantization",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:138",
        broken=lambda launch: (
            _runner(launch) == "flashinfer_trtllm_routed" and _refuses_scheme(launch, "flashinfer_trtllm_routed")
        ),
        message=_quantization_message,
        exception="AssertionError",
        engine_text=lambda launch: (
            f"Invalid quantization '{launch.effective.quantization}'. \nFlashInfer TRTLLM routed MOE supports "
            "only: 'fp8', 'mxfp8', 'modelopt_fp4', 'modelopt_mixed', 'nvfp4_online', 'minimax_m3_nvfp4', or "
            "bfloat16 (None)."
        ),
        since=release_0_5(10),
    ),
    Rule(
        id="runner.cutlass.ep",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:161",
        broken=lambda launch: (
            _runner(launch) == "cutlass"
            and launch.effective.quantization in ("fp8", "mxfp8")
            and launch.declared.ep_size != 1
        ),
        message=lambda launch: (
            f"--moe-runner-backend cutlass needs ep_size 1 for FP8 experts, but it is {launch.declared.ep_size}"
        ),
        exception="AssertionError",
        engine_text=says("FP8/MXFP8 Cutlass MoE is only supported with ep_size == 1"),
    ),
)

MARLIN = (
    Rule(
        id="runner.sgl_marlin.a2a",
        stage=Stage.RESOLVE,
        source="lora/marlin_lora_temp/policy.py:23",
        broken=lambda launch: (
            _runner(launch) == "experimental_sgl_marlin"
            and launch.effective.ep_size > 1
            and launch.effective.moe_a2a_backend != "none"
        ),
        message=lambda launch: (
            "--moe-runner-backend experimental_sgl_marlin works with --moe-a2a-backend none where ep_size is more "
            f"than 1 (moe_a2a_backend={launch.effective.moe_a2a_backend}, ep_size={launch.effective.ep_size})"
        ),
        exception="ValueError",
        engine_text=says("experimental_sgl_marlin EP requires --moe-a2a-backend none"),
    ),
)

LORA = (
    Rule(
        id="runner.lora",
        stage=Stage.CHECK,
        source="arg_groups/lora_hook.py:201",
        broken=lambda launch: _runner(launch).startswith("lora_"),
        message=lambda launch: f"--moe-runner-backend {_runner(launch)} is for adapters: it needs --enable-lora",
        exception="ValueError",
        engine_text=lambda launch: f"--moe-runner-backend {_runner(launch)} requires --enable-lora (or --lora-paths)",
        since=release_0_5(23),
    ),
)
