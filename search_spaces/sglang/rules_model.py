"""Rules that stop a launch once schedulers run: model construction, graph capture, the first forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from search_spaces.model import Component, Scheme
from search_spaces.sglang.memory_defaults import decode_graph_batch_sizes
from search_spaces.sglang.rule import ATTENTION, CHOICES, EXPERTS, SIZES, Launch, Rule, says
from search_spaces.sglang.rules_budgets import decode_graph_requests
from search_spaces.sglang.target import DEEPSEEK_FAMILY
from search_spaces.verdict import Stage

_SIZED = frozenset({CHOICES, SIZES})
_WITH_ATTENTION = frozenset({CHOICES, SIZES, ATTENTION})
_WITH_EXPERTS = frozenset({CHOICES, SIZES, EXPERTS})

_FUSED_FUNCTIONS = frozenset(
    {
        ("none", "flashinfer_cutlass"),
        ("none", "flashinfer_cutedsl"),
        ("none", "flashinfer_mxfp4"),
        ("none", "flashinfer_trtllm"),
        ("none", "flashinfer_trtllm_routed"),
        ("none", "hpc_ops"),
        ("none", "marlin"),
        ("flashinfer", "flashinfer_cutlass"),
        ("flashinfer", "flashinfer_cutedsl"),
        ("flashinfer", "flashinfer_trtllm"),
        ("flashinfer", "flashinfer_trtllm_routed"),
        ("deepep", "flashinfer_cutedsl"),
        ("flashinfer_megamoe", "flashinfer_megamoe"),
    }
)
"""(all-to-all backend, runner) with a kernel, for the runners that have no other path (layers/moe/moe_runner/)."""
_FUSED_ONLY = frozenset(runner for _, runner in _FUSED_FUNCTIONS)

_KIMI_VISION_HEADS = 16

_MXFP4_RUNNERS = frozenset({"auto", "deep_gemm", "flashinfer_mxfp4", "humming", "marlin", "triton", "triton_kernel"})

_DEEPEP_CLASS = frozenset({"deepep", "mooncake", "nixl"})
_DEEPEP_HIDDEN_SIZES = frozenset({2048, 2560, 4096, 5120, 6144, 7168, 8192})
_DEEPEP_CAPACITY = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"


def _scheme(launch: Launch) -> Scheme:
    quantization = launch.model.quantization
    return quantization.scheme if Component.ROUTED in quantization.components else Scheme.NONE


def _kind(launch: Launch) -> str:
    scheme = _scheme(launch)
    return "unquantised" if scheme is Scheme.NONE else str(scheme)


def _attention_width(launch: Launch) -> int:
    """Ranks that attention heads are split over; Mixtral ignores attention DP and CP (models/mixtral.py:137)."""
    if launch.model.architecture == "MixtralForCausalLM":
        return launch.effective.tp_size
    return launch.effective.attn_tp_size


def _heads_do_not_split(launch: Launch) -> bool:
    return launch.model.num_attention_heads % _attention_width(launch) != 0


def _kv_heads_do_not_split(launch: Launch) -> bool:
    if launch.model.mla is not None:
        return False
    width, heads = _attention_width(launch), launch.model.num_kv_heads
    return heads % width != 0 if heads >= width else width % heads != 0


def _dense_width(launch: Launch) -> int:
    return launch.asked.moe_dense_tp_size or launch.effective.tp_size


def _shared_width(launch: Launch) -> int:
    """Every all-to-all backend makes each rank hold the shared experts whole (models/deepseek_v2.py:874)."""
    return launch.effective.tp_size if launch.effective.moe_a2a_backend == "none" else 1


class _Mlp(NamedTuple):
    """A plain MLP, split over `ranks`."""

    what: str
    component: Component
    width: int
    ranks: int

    @property
    def divides(self) -> bool:
        return self.width % self.ranks == 0


def _dense(launch: Launch) -> _Mlp | None:
    model = launch.model
    if not model.num_dense_layers:
        return None
    ranks = launch.asked.moe_dense_tp_size or launch.effective.tp_size
    return _Mlp("the dense layers'", Component.DENSE, model.dense_intermediate_size, ranks)


def _shared(launch: Launch) -> _Mlp | None:
    """Every all-to-all backend makes each rank hold the shared experts whole (models/deepseek_v2.py:874)."""
    if not launch.model.shared_intermediate_size:
        return None
    ranks = launch.effective.tp_size if launch.effective.moe_a2a_backend == "none" else 1
    return _Mlp("the shared experts'", Component.SHARED, launch.model.shared_intermediate_size, ranks)


def _mlp_rule(rule_id: str, mlp_of: Callable[[Launch], _Mlp | None]) -> Rule:
    """The MLP's width divides over its ranks."""

    def broken(launch: Launch) -> bool:
        mlp = mlp_of(launch)
        return mlp is not None and not mlp.divides

    def message(launch: Launch) -> str:
        mlp = mlp_of(launch)
        assert mlp is not None
        return f"{mlp.what} width must divide over its ranks, but {mlp.ranks} does not divide {mlp.width}"

    def text(launch: Launch) -> str:
        mlp = mlp_of(launch)
        assert mlp is not None
        return f"{mlp.width} is not divisible by {mlp.ranks}"

    return Rule(
        id=rule_id,
        stage=Stage.MODEL,
        source="distributed/utils.py (divide)",
        broken=broken,
        message=message,
        exception="AssertionError",
        engine_text=text,
        needs=_SIZED,
        cuda_only=True,
    )


def _attention_parts(launch: Launch) -> Iterator[tuple[str, int]]:
    """(what, size on one rank) of each attention projection along its split side."""
    model, width = launch.model, _attention_width(launch)
    heads = model.num_attention_heads // width
    if model.mla is None:
        yield "output", heads * model.head_dim
        yield "output", max(1, model.num_kv_heads // width) * model.head_dim
        yield "input", heads * model.head_dim
        return
    if width == 1:
        return
    yield "output", heads * (model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim)
    yield "output", heads * (model.mla.qk_nope_head_dim + model.mla.v_head_dim)
    yield "input", heads * model.mla.v_head_dim


class _Part(NamedTuple):
    """One rank's part of a projection along its split side."""

    what: str
    side: str
    size: int


def _mlp_part(launch: Launch, mlp: _Mlp | None) -> Iterator[_Part]:
    if mlp is not None and mlp.divides and mlp.component in launch.model.quantization.components:
        yield _Part(mlp.what, "output", mlp.width // mlp.ranks)


def _early_parts(launch: Launch) -> Iterator[_Part]:
    """Projections that the first layer builds before its experts."""
    if Component.ATTENTION in launch.model.quantization.components and not _heads_do_not_split(launch):
        for side, size in _attention_parts(launch):
            yield _Part("an attention projection's", side, size)
    yield from _mlp_part(launch, _dense(launch))


def _late_parts(launch: Launch) -> Iterator[_Part]:
    yield from _mlp_part(launch, _shared(launch))


def _block_rule(rule_id: str, parts: Callable[[Launch], Iterator[_Part]]) -> Rule:
    """Parts of block-FP8 projections are whole blocks (layers/quantization/fp8.py:568)."""

    def first_odd(launch: Launch) -> _Part | None:
        quantization = launch.model.quantization
        if quantization.scheme is not Scheme.FP8_BLOCK:
            return None
        return next((part for part in parts(launch) if part.size % quantization.group_size != 0), None)

    def message(launch: Launch) -> str:
        part = first_odd(launch)
        assert part is not None
        return (
            f"{part.what} {part.side} on one rank must be a multiple of the "
            f"{launch.model.quantization.group_size}-wide FP8 block, but is {part.size} "
            f"(tp_size={launch.effective.tp_size}, attn_tp_size={launch.effective.attn_tp_size}, "
            f"moe_dense_tp_size={launch.asked.moe_dense_tp_size})"
        )

    def text(launch: Launch) -> str:
        part = first_odd(launch)
        assert part is not None
        block = launch.model.quantization.group_size
        if part.side == "input":
            return (
                f"Weight input_size_per_partition = {part.size} is not divisible by weight quantization "
                f"block_k = {block}."
            )
        return f"Weight output_partition_size = {part.size} is not divisible by weight quantization block_n = {block}."

    return Rule(
        id=rule_id,
        stage=Stage.MODEL,
        source="layers/quantization/fp8.py:606",
        broken=lambda launch: first_odd(launch) is not None,
        message=message,
        exception="ValueError",
        engine_text=text,
        needs=_WITH_ATTENTION,
        cuda_only=True,
    )


def _expert_width(launch: Launch) -> int:
    return launch.model.moe_intermediate_size // launch.effective.moe_tp_size


def _num_redundant(launch: Launch) -> int:
    """Redundant experts in the engine's books; Mixtral keeps none (no get_model_config_for_expert_location)."""
    if launch.model.architecture == "MixtralForCausalLM":
        return 0
    return launch.asked.ep_num_redundant_experts


def _expert_splits(launch: Launch) -> int:
    """What the model's class compares with its number of experts: tp_size or, for Qwen3, moe_tp_size."""
    match launch.model.architecture:
        case "Qwen3MoeForCausalLM":
            return launch.effective.moe_tp_size
        case "GptOssForCausalLM" | "MixtralForCausalLM":
            return 0
        case _:
            return launch.effective.tp_size


def _experts_runner(launch: Launch) -> str:
    """The runner that the experts' quantisation ends up with."""
    runner = launch.effective.moe_runner_backend
    match _scheme(launch):
        case Scheme.INT4_GROUP if runner != "flashinfer_trtllm":
            return "marlin"
        case Scheme.NVFP4 if runner == "auto" and 80 <= launch.cluster.gpu.sm < 100:
            return "marlin"
        case _:
            return runner


def _pair_is_missing(launch: Launch) -> bool:
    runner, scheme = _experts_runner(launch), _scheme(launch)
    if runner == "marlin" and scheme not in (Scheme.INT4_GROUP, Scheme.NVFP4):
        return False
    if runner == "flashinfer_mxfp4" and scheme is not Scheme.MXFP4:
        return False
    return runner in _FUSED_ONLY and (launch.effective.moe_a2a_backend, runner) not in _FUSED_FUNCTIONS


def _pads_experts(launch: Launch) -> bool:
    """TensorRT-LLM's kernels round an expert's width up."""
    return launch.effective.moe_runner_backend in ("flashinfer_trtllm", "flashinfer_trtllm_routed")


def _cp_meets_attention_dp(launch: Launch) -> bool:
    run = launch.effective
    return (
        run.attn_cp_size > 1
        and run.attn_dp_size > 1
        and run.moe_dp_size == run.attn_cp_size
        and run.moe_a2a_backend == "none"
    )


def _vision_reduces_too_widely(launch: Launch) -> bool:
    run = launch.effective
    return launch.target.is_multimodal and run.attn_dp_size == 1 and 1 < run.attn_tp_size < run.tp_size


MODEL = (
    Rule(
        id="cpu.a2a",
        stage=Stage.MODEL,
        source="layers/moe/token_dispatcher/",
        broken=lambda launch: launch.cluster.gpu.is_cpu and launch.effective.moe_a2a_backend != "none",
        message=lambda launch: f"--moe-a2a-backend {launch.effective.moe_a2a_backend} needs CUDA GPUs",
        exception="ImportError",
    ),
    Rule(
        id="vision.heads",
        stage=Stage.MODEL,
        source="layers/attention/vision.py:1133",
        broken=lambda launch: launch.target.is_multimodal and _KIMI_VISION_HEADS % launch.effective.attn_tp_size != 0,
        message=lambda launch: (
            f"the vision tower's {_KIMI_VISION_HEADS} heads must divide over attention TP, but "
            f"{launch.effective.attn_tp_size} does not divide them (--mm-enable-dp-encoder replicates it)"
        ),
        exception="AssertionError",
        engine_text=lambda launch: f"{_KIMI_VISION_HEADS} is not divisible by {launch.effective.attn_tp_size}",
        needs=_WITH_ATTENTION,
        cuda_only=True,
    ),
    Rule(
        id="vision.attn_cp",
        stage=Stage.MODEL,
        source="layers/dp_attention.py:567",
        broken=_vision_reduces_too_widely,
        message=lambda launch: (
            "the vision tower's attention cannot be split by attn_cp_size alone: attention TP "
            f"{launch.effective.attn_tp_size} must be 1 or tp_size ({launch.effective.tp_size}), or attn_dp_size "
            "more than 1"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            "VisionAttention shards over the attention TP group "
            f"({launch.effective.attn_tp_size} ranks) but all-reduces over the full TP group "
            f"({launch.effective.tp_size} ranks), so it does not support --attn-cp-size "
            f"{launch.effective.attn_cp_size} yet."
        ),
        needs=_WITH_ATTENTION,
        cuda_only=True,
    ),
    Rule(
        id="pp.layers",
        stage=Stage.MODEL,
        source="utils/common.py:1635",
        broken=lambda launch: launch.effective.pp_size > launch.model.num_layers,
        message=lambda launch: (
            f"pp_size must not exceed the number of layers, but {launch.effective.pp_size} > {launch.model.num_layers}"
        ),
        exception="AssertionError",
        needs=_SIZED,
    ),
    Rule(
        id="heads.divide",
        stage=Stage.MODEL,
        source="models/qwen3_moe.py:506, glm4_moe.py:237, gpt_oss.py:394, mixtral.py:139, deepseek_v2.py:2057",
        broken=_heads_do_not_split,
        message=lambda launch: (
            "the attention heads must divide over attention TP, but "
            f"{_attention_width(launch)} does not divide {launch.model.num_attention_heads} "
            f"(tp_size={launch.effective.tp_size}, attn_dp_size={launch.effective.attn_dp_size}, "
            f"attn_cp_size={launch.effective.attn_cp_size})"
        ),
        exception="AssertionError",
        needs=_WITH_ATTENTION,
        cuda_only=True,
    ),
    Rule(
        id="kv_heads.divide",
        stage=Stage.MODEL,
        source="models/qwen3_moe.py:512",
        broken=_kv_heads_do_not_split,
        message=lambda launch: (
            "the KV heads must divide over attention TP or attention TP over them, but "
            f"{launch.model.num_kv_heads} KV heads and {_attention_width(launch)} ranks do not"
        ),
        exception="AssertionError",
        needs=_WITH_ATTENTION,
        cuda_only=True,
    ),
    _mlp_rule("dense.divides", _dense),
    _block_rule("quant.fp8_block.linear", _early_parts),
    Rule(
        id="experts.at_least_tp",
        stage=Stage.MODEL,
        source="models/qwen3_moe.py:246, models/deepseek_v2.py:714, models/glm4_moe.py:422",
        broken=lambda launch: _expert_splits(launch) > launch.model.num_experts,
        message=lambda launch: (
            f"TP must not exceed the number of experts, but {_expert_splits(launch)} > {launch.model.num_experts}"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            f"Tensor parallel size {_expert_splits(launch)} is greater than the number of experts "
            f"{launch.model.num_experts}."
        ),
        needs=_WITH_EXPERTS,
    ),
    Rule(
        id="quant.nvfp4.gpu",
        stage=Stage.MODEL,
        source="layers/quantization/modelopt_quant.py:2383",
        broken=lambda launch: (
            _scheme(launch) is Scheme.NVFP4
            and not (launch.target.is_sm100 or launch.target.is_sm120)
            and _experts_runner(launch) != "marlin"
        ),
        message=lambda launch: (
            f"NVFP4 experts need a Blackwell GPU or --moe-runner-backend marlin, not "
            f"{_experts_runner(launch)} on {launch.cluster.gpu.key}"
        ),
        exception="ValueError",
        engine_text=says(
            "Current platform does not support NVFP4 quantization with the selected MoE backend. Please use "
            "Blackwell and above, or use moe_runner_backend=marlin on SM80+."
        ),
    ),
    Rule(
        id="quant.mxfp4.runner",
        stage=Stage.MODEL,
        source="layers/quantization/mxfp4.py:1474",
        broken=lambda launch: (
            _scheme(launch) is Scheme.MXFP4
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
            "Mxfp4MoEMethod has no MoeRunner for backend=MoeRunnerBackend."
            f"{launch.effective.moe_runner_backend.upper()}"
        ),
        cuda_only=True,
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
    Rule(
        id="ep.divides_experts",
        stage=Stage.MODEL,
        source="layers/moe/fused_moe_triton/layer.py:414",
        broken=lambda launch: (launch.model.num_experts + _num_redundant(launch)) % launch.effective.ep_size != 0,
        message=lambda launch: (
            "ep_size must divide the number of experts with the redundant ones, but "
            f"{launch.effective.ep_size} does not divide {launch.model.num_experts} + "
            f"{_num_redundant(launch)}"
        ),
        exception="AssertionError",
        needs=_SIZED,
    ),
    Rule(
        id="moe_tp.divides_width",
        stage=Stage.MODEL,
        source="layers/moe/fused_moe_triton/layer.py:427",
        broken=lambda launch: launch.model.moe_intermediate_size % launch.effective.moe_tp_size != 0,
        message=lambda launch: (
            f"moe_tp_size must divide the experts' width, but {launch.effective.moe_tp_size} does not divide "
            f"{launch.model.moe_intermediate_size}"
        ),
        exception="AssertionError",
        needs=_WITH_EXPERTS,
        cuda_only=True,
    ),
    Rule(
        id="quant.fp8_block.experts",
        stage=Stage.MODEL,
        source="layers/quantization/fp8.py:1589",
        broken=lambda launch: (
            _scheme(launch) is Scheme.FP8_BLOCK
            and not _pads_experts(launch)
            and launch.model.moe_intermediate_size % launch.effective.moe_tp_size == 0
            and _expert_width(launch) % launch.model.quantization.group_size != 0
        ),
        message=lambda launch: (
            f"an expert's part on one rank must be a multiple of the {launch.model.quantization.group_size}-wide "
            f"FP8 block, but {launch.model.moe_intermediate_size} / {launch.effective.moe_tp_size} = "
            f"{_expert_width(launch)} (moe_tp_size = tp_size / ep_size / moe_dp_size)"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            f"The output_size of gate's and up's weight = {_expert_width(launch)} is not divisible by weight "
            f"quantization block_n = {launch.model.quantization.group_size}."
        ),
        needs=_WITH_EXPERTS,
        cuda_only=True,
    ),
    _mlp_rule("shared.divides", _shared),
    _block_rule("quant.fp8_block.shared", _late_parts),
    Rule(
        id="runner.a2a_pair",
        stage=Stage.MODEL,
        source="layers/moe/moe_runner/runner.py:178",
        broken=_pair_is_missing,
        message=lambda launch: (
            f"--moe-runner-backend {_experts_runner(launch)} has no kernel for --moe-a2a-backend "
            f"{launch.effective.moe_a2a_backend} ({_kind(launch)} experts)"
        ),
        exception="NotImplementedError",
        engine_text=lambda launch: (
            f"Runner backend MoeRunnerBackend.{_experts_runner(launch).upper()} requires a fused func for a2a "
            f"backend {launch.effective.moe_a2a_backend}, but none is registered."
        ),
        cuda_only=True,
    ),
    Rule(
        id="deepep.deep_gemm",
        stage=Stage.MODEL,
        source="layers/moe/ep_moe/layer.py:175",
        broken=lambda launch: (
            launch.effective.moe_a2a_backend in _DEEPEP_CLASS
            and launch.effective.deepep_mode != "normal"
            and _scheme(launch) is not Scheme.NONE
            and launch.cluster.gpu.sm < 90
            and launch.effective.moe_runner_backend != "humming"
        ),
        message=lambda launch: (
            f"--moe-a2a-backend {launch.effective.moe_a2a_backend} needs DeepGEMM for quantised experts, which "
            f"{launch.cluster.gpu.key} is too old for"
        ),
        exception="AssertionError",
        engine_text=lambda launch: f"DeepEP {launch.effective.deepep_mode} mode requires deep_gemm",
        cuda_only=True,
    ),
    Rule(
        id="deepep.limit",
        stage=Stage.MODEL,
        source="layers/moe/token_dispatcher/deepep.py:409",
        broken=lambda launch: (
            launch.effective.moe_a2a_backend == "deepep" and launch.limit(_DEEPEP_CAPACITY, 128) > 1024
        ),
        message=lambda launch: f"{_DEEPEP_CAPACITY} must not exceed 1024, but is {launch.limit(_DEEPEP_CAPACITY, 128)}",
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
    Rule(
        id="attn_cp.moe_dp_with_attn_dp",
        stage=Stage.MODEL,
        source="layers/layer_boundary/factories.py:86",
        broken=_cp_meets_attention_dp,
        message=lambda launch: (
            "moe_dp_size must be 1 where attention is laid out as both DP and CP "
            f"(moe_dp_size={launch.effective.moe_dp_size}, attn_dp_size={launch.effective.attn_dp_size}, "
            f"attn_cp_size={launch.effective.attn_cp_size})"
        ),
        exception="NotImplementedError",
        engine_text=says("a MoE on the TP group with moe_dp_size == attn_cp_size under attention DP and attention CP"),
    ),
    Rule(
        id="quant.group",
        stage=Stage.WEIGHTS,
        source="layers/quantization/marlin_utils.py:161",
        broken=lambda launch: (
            _scheme(launch) in (Scheme.INT4_GROUP, Scheme.NVFP4)
            and not _pads_experts(launch)
            and launch.model.moe_intermediate_size % launch.effective.moe_tp_size == 0
            and _expert_width(launch) % launch.model.quantization.group_size != 0
        ),
        message=lambda launch: (
            "an expert's part on one rank must hold whole groups of "
            f"{launch.model.quantization.group_size} weights, but is {_expert_width(launch)} wide "
            f"(moe_tp_size={launch.effective.moe_tp_size})"
        ),
        needs=_WITH_EXPERTS,
        cuda_only=True,
    ),
)


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
            launch.effective.moe_a2a_backend in _DEEPEP_CLASS
            and launch.effective.deepep_mode != "normal"
            and _low_latency_tokens(launch) > launch.limit(_DEEPEP_CAPACITY, 128)
        ),
        message=lambda launch: (
            f"--moe-a2a-backend {launch.effective.moe_a2a_backend} takes at most "
            f"{launch.limit(_DEEPEP_CAPACITY, 128)} decode tokens a rank, but graphs of "
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
    match _scheme(launch):
        case Scheme.FP8_BLOCK:
            return runner in ("auto", "deep_gemm")
        case Scheme.NONE | Scheme.MXFP4:
            return runner == "deep_gemm"
        case Scheme.NVFP4:
            return runner == "flashinfer_cutedsl"
        case _:
            return False


def falls_back_from_megamoe(launch: Launch) -> bool:
    """Whether `megamoe` is asked for and the experts are none of those it has kernels for.

    DeepSeek's class then runs its plain path (layers/moe/mega_moe.py:163).
    """
    suited = (launch.target.is_sm90 and _scheme(launch) is Scheme.FP8_BLOCK) or (
        launch.target.is_sm100 and _scheme(launch) in (Scheme.NVFP4, Scheme.MXFP4)
    )
    return launch.effective.moe_a2a_backend == "megamoe" and not suited


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
        broken=lambda launch: launch.effective.moe_a2a_backend in _DEEPEP_CLASS and not _deepep_can_run(launch),
        message=lambda launch: (
            f"--moe-a2a-backend {launch.effective.moe_a2a_backend} has no kernel for {_kind(launch)} experts "
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
            and _scheme(launch) not in (Scheme.NONE, Scheme.FP8_BLOCK)
        ),
        message=lambda launch: (
            f"--moe-a2a-backend {launch.effective.moe_a2a_backend} runs block FP8 and unquantised experts only, "
            f"not {_kind(launch)}"
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
            f"capability 10.x, not {_kind(launch)} on {launch.cluster.gpu.key}"
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
            and _experts_runner(launch) != "marlin"
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
            and _scheme(launch) is Scheme.FP8_BLOCK
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
