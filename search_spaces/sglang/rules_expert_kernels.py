"""Rules on the kernels that run the experts, and on how these reach their tokens, while the model is built."""

from __future__ import annotations

from search_spaces.parts import Scheme
from search_spaces.sglang.experts import (
    DEEPEP_CAPACITY,
    DEEPEP_CLASS,
    kind_of_experts,
    of_experts,
    pair_is_missing,
    runner_of_experts,
    scheme_of_experts,
    unpacks_nvfp4,
)
from search_spaces.sglang.rule import Rule, says
from search_spaces.sglang.versions import EngineVersion, release_0_5
from search_spaces.verdict import Stage

_PAIRS_CHECKED_SINCE = EngineVersion(0, 5, 13)
"""Servers of INT4 experts with `--moe-a2a-backend flashinfer` are known to have started before."""

_MXFP4_RUNNERS = frozenset(
    {
        *("aiter", "auto", "deep_gemm", "experimental_sgl_marlin", "flashinfer_mxfp4", "marlin", "triton"),
        "triton_kernel",
    }
)


KERNELS = of_experts(
    Rule(
        id="quant.nvfp4.gpu",
        stage=Stage.MODEL,
        source="layers/quantization/modelopt_quant.py:2383",
        broken=lambda launch: (
            scheme_of_experts(launch) is Scheme.NVFP4
            and not (launch.target.is_sm100 or launch.target.is_sm120)
            and not unpacks_nvfp4(launch)
        ),
        message=lambda launch: (
            f"NVFP4 experts need a Blackwell GPU or --moe-runner-backend marlin, not "
            f"{runner_of_experts(launch)} on {launch.cluster.gpu.key}"
        ),
        exception="ValueError",
        engine_text=says(
            "Current platform does not support NVFP4 quantization with the selected MoE backend. Please use "
            "Blackwell and above, or use moe_runner_backend=marlin on SM80+."
        ),
        since=release_0_5(13),
    ),
    Rule(
        id="runner.cutlass.gpu",
        stage=Stage.MODEL,
        source="layers/quantization/fp8.py:1513",
        broken=lambda launch: (
            launch.effective.moe_runner_backend == "cutlass"
            and launch.model.quantization.method == "fp8"
            and scheme_of_experts(launch) is not Scheme.NVFP4
            and not (launch.target.is_sm90 or launch.target.is_sm100 or launch.target.is_sm120)
        ),
        message=lambda launch: (
            "--moe-runner-backend cutlass runs FP8 experts on compute capability 9.x, 10.x and 12.x, and "
            f"{launch.cluster.gpu.key} has {launch.cluster.gpu.sm / 10:g}"
        ),
        exception="AssertionError",
        engine_text=lambda launch: (
            "cutlass_fp8 MoE requires CUDA 12.0+ with SM90 or CUDA 12.4+ with SM89"
            if launch.cluster.gpu.sm < 89
            else "cutlass_fp8 MoE requires SM90, SM100, or SM120 GPUs"
        ),
        cuda_only=True,
    ),
    Rule(
        id="runner.hpc_ops.experts",
        stage=Stage.MODEL,
        source="layers/moe/fused_moe_triton/layer.py:262",
        broken=lambda launch: (
            launch.effective.moe_runner_backend == "hpc_ops"
            and (launch.model.quantization.method != "fp8" or scheme_of_experts(launch) is Scheme.NVFP4)
        ),
        message=lambda launch: (
            f"--moe-runner-backend hpc_ops is for FP8 experts, and these are {kind_of_experts(launch)}"
        ),
        exception="ValueError",
        engine_text=says("--moe-runner-backend hpc_ops only supports Fp8MoEMethod"),
        cuda_only=True,
    ),
    Rule(
        id="deepep_v2.experts",
        stage=Stage.MODEL,
        source="layers/moe/fused_moe_triton/layer.py:300",
        backends=frozenset({"deepep_v2"}),
        broken=lambda launch: (
            launch.effective.moe_a2a_backend == "deepep_v2"
            and scheme_of_experts(launch) not in (Scheme.NONE, Scheme.FP8_BLOCK)
        ),
        message=lambda launch: (
            "--moe-a2a-backend deepep_v2 is for block-FP8 or unquantised experts, and these are "
            f"{kind_of_experts(launch)}"
        ),
        exception="ValueError",
        engine_text=says("--moe-a2a-backend deepep_v2 requires 128x128 blockwise FP8 or 1x32 MXFP8"),
        cuda_only=True,
    ),
    Rule(
        id="quant.nvfp4.runner",
        stage=Stage.MODEL,
        source="layers/quantization/modelopt_quant.py:3145, layers/moe/moe_runner/runner.py:165",
        broken=lambda launch: (
            scheme_of_experts(launch) is Scheme.NVFP4 and runner_of_experts(launch) in ("cutlass", "intel_xpu")
        ),
        message=lambda launch: f"NVFP4 experts have no --moe-runner-backend {launch.effective.moe_runner_backend}",
        exception="NotImplementedError",
        engine_text=lambda launch: (
            "moe_runner_backend=cutlass is not supported for NVFP4 MoE."
            if launch.effective.moe_runner_backend == "cutlass"
            else "Unsupported runner backend: MoeRunnerBackend.INTEL_XPU"
        ),
        cuda_only=True,
    ),
    Rule(
        id="quant.mxfp4.runner",
        stage=Stage.MODEL,
        source="layers/quantization/mxfp4.py:1474",
        broken=lambda launch: (
            scheme_of_experts(launch) is Scheme.MXFP4
            and launch.model.quantization.method != "fp8"
            and (
                launch.effective.moe_runner_backend not in _MXFP4_RUNNERS
                or (
                    launch.effective.moe_runner_backend == "flashinfer_mxfp4"
                    and not (launch.target.is_sm90 or launch.target.is_sm100 or launch.target.is_sm120)
                )
            )
        ),
        message=lambda launch: (
            f"MXFP4 experts have no --moe-runner-backend {launch.effective.moe_runner_backend} on "
            f"{launch.cluster.gpu.key}; known: {', '.join(sorted(_MXFP4_RUNNERS))}"
        ),
        exception="NotImplementedError",
        engine_text=lambda launch: (
            "moe_runner_backend=flashinfer_mxfp4 requires SM90, SM100, or SM120."
            if launch.effective.moe_runner_backend == "flashinfer_mxfp4"
            else "Mxfp4MoEMethod has no MoeRunner for backend=MoeRunnerBackend."
            f"{launch.effective.moe_runner_backend.upper()}"
        ),
        cuda_only=True,
        since=release_0_5(17),
    ),
    Rule(
        id="runner.hpc_ops.gpu",
        stage=Stage.MODEL,
        source="layers/moe/moe_runner/runner.py:152",
        broken=lambda launch: launch.effective.moe_runner_backend == "hpc_ops" and not launch.target.is_sm90,
        message=lambda launch: f"--moe-runner-backend hpc_ops needs a Hopper GPU, not {launch.cluster.gpu.key}",
        exception="ValueError",
        engine_text=lambda launch: (
            "--moe-runner-backend hpc_ops requires an SM90 (Hopper) GPU (the HPC-Ops kernels ship sm90a only), "
            f"got sm{launch.cluster.gpu.sm}."
        ),
        cuda_only=True,
    ),
)

DISPATCH = of_experts(
    Rule(
        id="runner.a2a_pair",
        stage=Stage.MODEL,
        source="layers/moe/moe_runner/runner.py:178",
        broken=pair_is_missing,
        message=lambda launch: (
            f"--moe-runner-backend {runner_of_experts(launch)} has no kernel for --moe-a2a-backend "
            f"{launch.effective.moe_a2a_backend} ({kind_of_experts(launch)} experts)"
        ),
        exception="NotImplementedError",
        engine_text=lambda launch: (
            f"Runner backend MoeRunnerBackend.{runner_of_experts(launch).upper()} requires a fused func for a2a "
            f"backend {launch.effective.moe_a2a_backend}, but none is registered."
        ),
        since=_PAIRS_CHECKED_SINCE,
        cuda_only=True,
    ),
    Rule(
        id="dispatch.mode",
        stage=Stage.MODEL,
        source="layers/moe/token_dispatcher/mooncake.py:344, nixl.py:482",
        backends=frozenset({"mooncake", "nixl"}),
        broken=lambda launch: (
            launch.effective.moe_a2a_backend in ("mooncake", "nixl") and launch.effective.deepep_mode != "low_latency"
        ),
        message=lambda launch: (
            f"--moe-a2a-backend {launch.effective.moe_a2a_backend} needs --deepep-mode low_latency, but it is "
            f"{launch.effective.deepep_mode}"
        ),
        exception="NotImplementedError",
        engine_text=lambda launch: (
            "Normal mode is not supported for Nixl EP yet." if launch.effective.moe_a2a_backend == "nixl" else ""
        ),
    ),
    Rule(
        id="deepep.deep_gemm_bf16",
        stage=Stage.MODEL,
        source="layers/moe/ep_moe/layer.py:144",
        backends=frozenset({"deepep", "pplx"}),
        broken=lambda launch: (
            launch.effective.moe_a2a_backend in ("deepep", "pplx")
            and launch.effective.moe_runner_backend == "deep_gemm"
            and scheme_of_experts(launch) is Scheme.NONE
            and launch.cluster.gpu.sm < 90
        ),
        message=lambda launch: (
            f"--moe-a2a-backend {launch.effective.moe_a2a_backend} runs unquantised experts on DeepGEMM, which "
            f"{launch.cluster.gpu.key} is too old for"
        ),
        exception="AssertionError",
        engine_text=says("Unquantized DeepEP MoE requires DeepGEMM BF16"),
        cuda_only=True,
    ),
    Rule(
        id="deepep.deep_gemm",
        stage=Stage.MODEL,
        source="layers/moe/ep_moe/layer.py:175",
        broken=lambda launch: (
            launch.effective.moe_a2a_backend in {*DEEPEP_CLASS, "pplx"}
            and launch.effective.deepep_mode != "normal"
            and scheme_of_experts(launch) is not Scheme.NONE
            and launch.cluster.gpu.sm < 90
            and not (launch.effective.moe_runner_backend == "humming" and launch.model.quantization.method == "fp8")
        ),
        message=lambda launch: (
            f"--moe-a2a-backend {launch.effective.moe_a2a_backend} needs DeepGEMM for quantised experts, which "
            f"{launch.cluster.gpu.key} is too old for"
        ),
        exception="AssertionError",
        engine_text=lambda launch: f"DeepEP DeepEPMode.{launch.effective.deepep_mode.upper()} mode requires deep_gemm",
        cuda_only=True,
    ),
    Rule(
        id="deepep.limit",
        stage=Stage.MODEL,
        source="layers/moe/token_dispatcher/deepep.py:409",
        broken=lambda launch: (
            launch.effective.moe_a2a_backend == "deepep" and launch.limit(DEEPEP_CAPACITY, 128) > 1024
        ),
        message=lambda launch: f"{DEEPEP_CAPACITY} must not exceed 1024, but is {launch.limit(DEEPEP_CAPACITY, 128)}",
        exception="AssertionError",
    ),
    Rule(
        id="pplx.pp",
        stage=Stage.MODEL,
        source="layers/moe/token_dispatcher/pplx.py:88",
        broken=lambda launch: launch.effective.moe_a2a_backend == "pplx" and launch.effective.pp_size > 1,
        message=lambda launch: (
            "--moe-a2a-backend pplx needs the experts to span all ranks, so pp_size must be 1 "
            f"(pp_size={launch.effective.pp_size})"
        ),
        exception="AssertionError",
        engine_text=lambda launch: (
            "moe_a2a_backend='pplx' requires the EP group to span the whole world (got "
            f"ep_size={launch.effective.ep_size}, "
            f"world_size={launch.effective.tp_size * launch.effective.pp_size}); pipeline parallelism and "
            "EP-subset layouts are not"
        ),
    ),
)
