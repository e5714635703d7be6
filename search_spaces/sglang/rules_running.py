"""Rules that stop a server after its weights are loaded: KV pool, graph capture, the first forward."""

from __future__ import annotations

from search_spaces.architectures.table import ARCHITECTURES
from search_spaces.model import Scheme
from search_spaces.sglang.cuda_graphs import decode_graph_sizes
from search_spaces.sglang.dispatch_tokens import decode_graph_requests, decode_graph_tokens, tokens_per_request
from search_spaces.sglang.experts import (
    DEEPEP_CAPACITY,
    DEEPEP_CLASS,
    falls_back_from_megamoe,
    is_marlin,
    kind_of_experts,
    scheme_of_experts,
)
from search_spaces.sglang.rule import ATTENTION, CHOICES, SIZES, Launch, Rule, says
from search_spaces.sglang.target import DEEPSEEK_FAMILY
from search_spaces.sglang.versions import release_0_5
from search_spaces.verdict import Evidence, Stage

_SIZED = frozenset({CHOICES, SIZES})

_WITH_ATTENTION = frozenset({CHOICES, SIZES, ATTENTION})

_DEEPEP_HIDDEN_SIZES = frozenset({2048, 2560, 4096, 5120, 6144, 7168, 8192})


def _low_latency_tokens(launch: Launch) -> int:
    """Decode tokens that one rank dispatches from the largest graph."""
    return -(-decode_graph_tokens(launch.effective) // launch.effective.attn_tp_size)


def _graph_alignment(launch: Launch) -> int:
    """What every captured batch size must be a multiple of (utils/common.py:4168)."""
    run = launch.effective
    gathers = run.attn_dp_size > 1 or run.moe_a2a_backend != "none" or run.moe_dense_tp_size is not None
    alignment = (2 if run.enable_two_batch_overlap else 1) * (run.attn_tp_size if gathers else 1)
    return alignment * run.attn_cp_size if alignment % run.attn_cp_size != 0 else alignment


def _captures_nothing(launch: Launch) -> bool:
    """A limit on requests below the largest size is captured too, rounded up (base_cuda_graph_runner.py:92)."""
    run = launch.effective
    alignment = _graph_alignment(launch)
    sizes = decode_graph_sizes(run)
    requests = None if run.max_running_requests is None else max(1, run.max_running_requests // run.attn_dp_size)
    if requests is not None and max(sizes, default=0) > -(-requests // alignment) * alignment:
        return False
    width = 1 if run.enable_two_batch_overlap else tokens_per_request(run)
    return all(size * width % alignment != 0 for size in sizes)


def _captures_decode(launch: Launch) -> bool:
    run = launch.effective
    return run.cuda_graph_backend_decode != "disabled" and run.disaggregation_mode != "prefill"


START = (
    Rule(
        id="schedule.policy_needs_cache",
        stage=Stage.INIT,
        source="managers/schedule_policy.py:344",
        concerns=frozenset({"schedule_policy"}),
        broken=lambda launch: (
            launch.asked.schedule_policy == "shortest-prefill-first" and launch.effective.disable_radix_cache
        ),
        message=says("--schedule-policy shortest-prefill-first needs the radix cache (disable_radix_cache)"),
        exception="ValueError",
        engine_text=says("Unknown schedule_policy: policy='shortest-prefill-first'"),
        evidence=Evidence.READ,
    ),
)


MEMORY_AND_GRAPHS = (
    Rule(
        id="mem_fraction.range",
        stage=Stage.KV_POOL,
        source="mem_cache/kv_cache_configurator.py:3043 (no range check before)",
        broken=lambda launch: not (launch.effective.mem_fraction_static or 0) > 0,
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
        id="mem_fraction.below_one",
        stage=Stage.KV_POOL,
        source="mem_cache/kv_cache_configurator.py:3043 (no range check before)",
        broken=lambda launch: (launch.effective.mem_fraction_static or 0) >= 1,
        message=lambda launch: (
            f"mem_fraction_static must lie between 0 and 1, but is {launch.effective.mem_fraction_static:g}: the KV "
            "cache would take more than is left of the GPU"
        ),
        exception="torch.OutOfMemoryError",
        engine_text=says("CUDA out of memory."),
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
            f"{decode_graph_requests(launch.effective)} requests over attention TP {launch.effective.attn_tp_size} "
            f"make {_low_latency_tokens(launch)}; lower cuda_graph_max_bs_decode and max_running_requests"
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


_NVLINK_BETWEEN_NODES = frozenset({"gb200", "gb300"})
"""GPUs that are sold in racks with one NVLink domain."""

FORWARD = (
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
        since=release_0_5(21),
    ),
    Rule(
        id="runner.flashinfer_trtllm.gpu",
        stage=Stage.FORWARD,
        source="arg_groups/moe_hook.py:123 (no check of the GPU)",
        broken=lambda launch: (
            launch.effective.moe_runner_backend in ("flashinfer_trtllm", "flashinfer_trtllm_routed")
            and not launch.target.is_sm100
            and not is_marlin(launch)
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
            and launch.effective.quantization is None
            and launch.effective.ep_size > 1
        ),
        message=lambda launch: (
            f"--moe-runner-backend cutlass needs ep_size 1 for FP8 experts, but it is {launch.effective.ep_size}"
        ),
    ),
    Rule(
        id="ascend.gpu",
        stage=Stage.FORWARD,
        source="layers/moe/fused_moe_triton/layer.py:1666, hardware_backend/npu/moe/fuseep.py",
        backends=frozenset({"ascend_fuseep"}),
        broken=lambda launch: launch.model.is_moe and launch.effective.moe_a2a_backend == "ascend_fuseep",
        message=lambda launch: (
            f"--moe-a2a-backend ascend_fuseep runs kernels of Ascend NPUs, which {launch.cluster.gpu.key} is not"
        ),
        cuda_only=True,
    ),
    Rule(
        id="megamoe.nodes",
        stage=Stage.FORWARD,
        source="https://github.com/sgl-project/sglang/issues/36303",
        backends=frozenset({"megamoe"}),
        broken=lambda launch: (
            launch.model.is_moe
            and launch.effective.moe_a2a_backend == "megamoe"
            and launch.asked.nnodes > 1
            and launch.cluster.gpu.key not in _NVLINK_BETWEEN_NODES
            and not falls_back_from_megamoe(launch)
        ),
        message=lambda launch: (
            "--moe-a2a-backend megamoe reads the other ranks' memory over NVLink, which does not reach across "
            f"{launch.asked.nnodes} nodes of {launch.cluster.gpu.key}"
        ),
        evidence=Evidence.UNCERTAIN,
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
        source="models/mixtral.py:137, llama.py:181, gemma4_causal.py:323",
        broken=lambda launch: (
            launch.effective.attn_dp_size > 1 and ARCHITECTURES[launch.model.architecture].ignores_attention_dp
        ),
        message=lambda launch: (
            f"{launch.model.architecture} splits attention over all of tp_size and ignores attn_dp_size "
            f"(attn_dp_size={launch.effective.attn_dp_size}); its results would be wrong"
        ),
    ),
)
