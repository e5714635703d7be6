"""Rules that stop a server after its weights are loaded: KV pool, graph capture, the first forward."""

from __future__ import annotations

from search_spaces.model import Scheme
from search_spaces.sglang.experts import (
    DEEPEP_CAPACITY,
    DEEPEP_CLASS,
    falls_back_from_megamoe,
    kind_of_experts,
    runner_of_experts,
    scheme_of_experts,
)
from search_spaces.sglang.memory_defaults import decode_graph_batch_sizes
from search_spaces.sglang.rule import ATTENTION, CHOICES, SIZES, Launch, Rule, says
from search_spaces.sglang.rules_budgets import decode_graph_requests
from search_spaces.sglang.target import DEEPSEEK_FAMILY
from search_spaces.verdict import Stage

_SIZED = frozenset({CHOICES, SIZES})

_WITH_ATTENTION = frozenset({CHOICES, SIZES, ATTENTION})

_DEEPEP_HIDDEN_SIZES = frozenset({2048, 2560, 4096, 5120, 6144, 7168, 8192})


def _low_latency_tokens(launch: Launch) -> int:
    """Decode tokens that one rank dispatches from the largest graph."""
    return -(-decode_graph_requests(launch) // launch.effective.attn_tp_size)


def _graph_alignment(launch: Launch) -> int:
    """What every captured batch size must be a multiple of (utils/common.py:4168)."""
    run = launch.effective
    gathers = run.attn_dp_size > 1 or run.moe_a2a_backend != "none" or run.moe_dense_tp_size is not None
    alignment = run.attn_tp_size if gathers else 1
    return alignment * run.attn_cp_size if alignment % run.attn_cp_size != 0 else alignment


def _captures_nothing(launch: Launch) -> bool:
    alignment = _graph_alignment(launch)
    sizes = decode_graph_batch_sizes(launch.effective.cuda_graph_max_bs_decode or 0)
    return all(size % alignment != 0 for size in sizes)


def _captures_decode(launch: Launch) -> bool:
    run = launch.effective
    return not (run.moe_a2a_backend == "deepep" and run.deepep_mode == "normal")


MEMORY_AND_GRAPHS = (
    Rule(
        id="mem_fraction.range",
        stage=Stage.KV_POOL,
        source="mem_cache/kv_cache_configurator.py:3043 (no range check before)",
        broken=lambda launch: not 0 < (launch.effective.mem_fraction_static or 0) < 1,
        message=lambda launch: (
            f"mem_fraction_static must lie between 0 and 1, but is {launch.effective.mem_fraction_static:g}"
            + ("" if launch.asked.mem_fraction_static is not None else " by default")
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            "Loaded weights leave no GPU memory for the KV cache under "
            f"--mem-fraction-static={launch.effective.mem_fraction_static:g}."
        ),
    ),
    Rule(
        id="deepep.graph_tokens",
        stage=Stage.GRAPHS,
        source="layers/moe/token_dispatcher/deepep.py:404",
        broken=lambda launch: (
            launch.effective.moe_a2a_backend in DEEPEP_CLASS
            and launch.effective.deepep_mode != "normal"
            and _low_latency_tokens(launch) > launch.limit(DEEPEP_CAPACITY, 128)
        ),
        message=lambda launch: (
            f"--moe-a2a-backend {launch.effective.moe_a2a_backend} takes at most "
            f"{launch.limit(DEEPEP_CAPACITY, 128)} decode tokens a rank, but graphs of "
            f"{decode_graph_requests(launch)} requests over attention TP {launch.effective.attn_tp_size} make "
            f"{_low_latency_tokens(launch)}; lower cuda_graph_max_bs_decode and max_running_requests"
        ),
        exception="Exception",
        engine_text=says(
            "Capture cuda graph failed: 'x.size(0) == topk_idx.size(0) and x.size(0) <= "
            "num_max_dispatch_tokens_per_rank'"
        ),
        needs=_WITH_ATTENTION,
    ),
    Rule(
        id="graphs.alignment",
        stage=Stage.GRAPHS,
        source="model_executor/runner/base_cuda_graph_runner.py:104",
        broken=lambda launch: _captures_decode(launch) and _captures_nothing(launch),
        message=lambda launch: (
            f"decode graphs hold multiples of {_graph_alignment(launch)} requests, but "
            f"cuda_graph_max_bs_decode is {launch.effective.cuda_graph_max_bs_decode}"
        ),
        exception="AssertionError",
        engine_text=says("capture_bs=[]"),
        needs=_WITH_ATTENTION,
        cuda_only=True,
    ),
)


def _deepep_can_run(launch: Launch) -> bool:
    """The kernel paths of DeepEP's experts (layers/moe/ep_moe/layer.py:97)."""
    runner = launch.effective.moe_runner_backend
    if runner == "humming":
        return True
    match scheme_of_experts(launch):
        case Scheme.FP8_BLOCK:
            return runner in ("auto", "deep_gemm")
        case Scheme.NONE | Scheme.MXFP4:
            return runner == "deep_gemm"
        case Scheme.NVFP4:
            return runner == "flashinfer_cutedsl"
        case _:
            return False


def _deepep_has_ranks(ep_size: int) -> bool:
    return ep_size in (2, 4, 8) or (ep_size % 8 == 0 and ep_size // 8 in (2, 4, 8, 16))


FORWARD = (
    Rule(
        id="dispatch.mode",
        stage=Stage.FORWARD,
        source="layers/moe/token_dispatcher/mooncake.py:107, nixl.py:150",
        broken=lambda launch: (
            launch.effective.moe_a2a_backend in ("mooncake", "nixl") and launch.effective.deepep_mode != "low_latency"
        ),
        message=lambda launch: (
            f"--moe-a2a-backend {launch.effective.moe_a2a_backend} needs --deepep-mode low_latency, but it is "
            f"{launch.effective.deepep_mode}"
        ),
        exception="NotImplementedError",
        engine_text=lambda launch: (
            f"Normal mode is not supported for {launch.effective.moe_a2a_backend.capitalize()} EP yet."
        ),
    ),
    Rule(
        id="deepep.gpt_oss",
        stage=Stage.FORWARD,
        source="models/gpt_oss.py:277",
        broken=lambda launch: (
            launch.effective.moe_a2a_backend == "deepep" and launch.model.architecture == "GptOssForCausalLM"
        ),
        message=says("GptOssForCausalLM has no forward for --moe-a2a-backend deepep"),
        exception="NotImplementedError",
        engine_text=says("forward_deepep branch not implemented yet"),
    ),
    Rule(
        id="deepep.quantization",
        stage=Stage.FORWARD,
        source="layers/moe/ep_moe/layer.py:288",
        broken=lambda launch: launch.effective.moe_a2a_backend in DEEPEP_CLASS and not _deepep_can_run(launch),
        message=lambda launch: (
            f"--moe-a2a-backend {launch.effective.moe_a2a_backend} has no kernel for {kind_of_experts(launch)} experts "
            f"with --moe-runner-backend {launch.effective.moe_runner_backend}; it runs block FP8 (auto or "
            "deep_gemm), unquantised and MXFP4 (deep_gemm) and NVFP4 (flashinfer_cutedsl)"
        ),
        exception="AssertionError",
        engine_text=says("forward_deepgemm_masked is deprecated"),
    ),
    Rule(
        id="deepep_v2.quantization",
        stage=Stage.FORWARD,
        source="layers/moe/moe_runner/deep_gemm.py:1715",
        broken=lambda launch: (
            launch.effective.moe_a2a_backend in ("deepep_v2", "pplx")
            and scheme_of_experts(launch) not in (Scheme.NONE, Scheme.FP8_BLOCK)
        ),
        message=lambda launch: (
            f"--moe-a2a-backend {launch.effective.moe_a2a_backend} runs block FP8 and unquantised experts only, "
            f"not {kind_of_experts(launch)}"
        ),
    ),
    Rule(
        id="deepep.hidden_size",
        stage=Stage.FORWARD,
        source="DeepEP csrc/kernels/internode_ll.cu (SWITCH_HIDDEN)",
        broken=lambda launch: (
            launch.effective.moe_a2a_backend == "deepep"
            and launch.effective.deepep_mode != "normal"
            and launch.model.hidden_size not in _DEEPEP_HIDDEN_SIZES
        ),
        message=lambda launch: (
            f"DeepEP's low-latency kernels take hidden sizes {', '.join(map(str, sorted(_DEEPEP_HIDDEN_SIZES)))}, "
            f"not {launch.model.hidden_size}"
        ),
        exception="RuntimeError",
        engine_text=says("Unsupported hidden"),
    ),
    Rule(
        id="deepep.ranks",
        stage=Stage.FORWARD,
        source="DeepEP csrc/kernels/launch.cuh (SWITCH_RANKS)",
        broken=lambda launch: (
            launch.effective.moe_a2a_backend == "deepep"
            and launch.effective.deepep_mode != "low_latency"
            and not _deepep_has_ranks(launch.effective.ep_size)
        ),
        message=lambda launch: (
            "DeepEP's normal kernels run on 2, 4 or 8 ranks, or on 2, 4, 8 or 16 nodes of 8, but ep_size is "
            f"{launch.effective.ep_size}"
        ),
        exception="RuntimeError",
        engine_text=says("Failed: Assertion error ... 'false and \"Unsupported ranks\"'"),
        needs=_SIZED,
    ),
    Rule(
        id="megamoe.weights",
        stage=Stage.FORWARD,
        source="models/qwen3_moe.py:382",
        broken=lambda launch: launch.model.architecture == "Qwen3MoeForCausalLM" and falls_back_from_megamoe(launch),
        message=lambda launch: (
            "--moe-a2a-backend megamoe needs block-FP8 experts on Hopper, NVFP4 or MXFP4 experts on compute "
            f"capability 10.x, not {kind_of_experts(launch)} on {launch.cluster.gpu.key}"
        ),
        exception="RuntimeError",
        engine_text=says(
            "moe_a2a_backend=megamoe needs MegaMoE expert weights on this model: on SM100 load a checkpoint "
            "with MXFP4 or NVFP4 routed experts; on SM90 load a block-FP8 checkpoint with a DeepGEMM that "
            "ships fp8_mega_moe."
        ),
    ),
    Rule(
        id="runner.flashinfer_trtllm.gpu",
        stage=Stage.FORWARD,
        source="arg_groups/moe_hook.py:123 (no check of the GPU)",
        broken=lambda launch: (
            launch.effective.moe_runner_backend in ("flashinfer_trtllm", "flashinfer_trtllm_routed")
            and not launch.target.is_sm100
            and runner_of_experts(launch) != "marlin"
        ),
        message=lambda launch: (
            f"--moe-runner-backend {launch.effective.moe_runner_backend} has kernels for compute capability "
            f"10.x only, {launch.cluster.gpu.key} has {launch.cluster.gpu.sm / 10:g}"
        ),
    ),
    Rule(
        id="runner.cutlass.ep_unseen",
        stage=Stage.UNDETECTED,
        source="arg_groups/moe_hook.py:157 (needs --quantization fp8 to notice)",
        broken=lambda launch: (
            launch.effective.moe_runner_backend == "cutlass"
            and scheme_of_experts(launch) is Scheme.FP8_BLOCK
            and launch.target.quantization is None
            and launch.effective.ep_size > 1
        ),
        message=lambda launch: (
            f"--moe-runner-backend cutlass needs ep_size 1 for FP8 experts, but it is {launch.effective.ep_size}"
        ),
    ),
    Rule(
        id="megamoe.architecture",
        stage=Stage.UNDETECTED,
        source="models/deepseek_v2.py:1061, models/qwen3_moe.py:371 (no other model here calls it)",
        broken=lambda launch: (
            launch.effective.moe_a2a_backend == "megamoe"
            and launch.model.architecture not in {*DEEPSEEK_FAMILY, "Qwen3MoeForCausalLM"}
        ),
        message=lambda launch: f"{launch.model.architecture} has no forward for --moe-a2a-backend megamoe",
    ),
    Rule(
        id="attn_dp.architecture",
        stage=Stage.UNDETECTED,
        source="models/mixtral.py:137",
        broken=lambda launch: launch.effective.attn_dp_size > 1 and launch.model.architecture == "MixtralForCausalLM",
        message=lambda launch: (
            "MixtralForCausalLM splits attention over all of tp_size and ignores attn_dp_size "
            f"(attn_dp_size={launch.effective.attn_dp_size}); its results would be wrong"
        ),
    ),
)
