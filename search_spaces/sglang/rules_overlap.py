"""Rules on overlapping batches with each other, and layers with their communication."""

from __future__ import annotations

from search_spaces.sglang.rule import Launch, Rule, says, worded
from search_spaces.sglang.versions import release_0_5
from search_spaces.verdict import Stage

_TWO_BATCHES = "When enabling two batch overlap without an EP a2a backend (moe_a2a_backend='none')"
_WITHOUT_EXPERT_FIELDS = frozenset({"LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3VLForConditionalGeneration"})
"""Classes whose configs count no experts per token, not even as absent: their schedulers set nothing up for experts
(managers/scheduler.py:1007)."""
_SEQUENCE_PARALLEL_ARCHITECTURES = frozenset({"MuseSparkForConditionalGeneration", "Qwen3ForCausalLM"})


def _overlaps(launch: Launch) -> bool:
    return launch.asked.enable_two_batch_overlap or launch.asked.enable_single_batch_overlap


MEGAMOE = (
    Rule(
        id="megamoe.overlap",
        stage=Stage.RESOLVE,
        source="arg_groups/mega_moe_hook.py:33",
        concerns=frozenset({"enable_two_batch_overlap", "enable_single_batch_overlap"}),
        broken=lambda launch: launch.asks_megamoe and _overlaps(launch),
        message=says("--moe-a2a-backend megamoe cannot overlap batches (enable_two_batch_overlap, single)"),
        exception="ValueError",
        engine_text=says(
            "--moe-a2a-backend megamoe has no two-batch / single-batch overlap decomposition; disable "
            "--enable-two-batch-overlap and --enable-single-batch-overlap."
        ),
        since=release_0_5(21),
    ),
)

SPARSE = (
    Rule(
        id="overlap.shared_indices",
        stage=Stage.RESOLVE,
        source="arg_groups/model_hook.py:53",
        concerns=frozenset({"enable_two_batch_overlap"}),
        broken=lambda launch: launch.asked.enable_two_batch_overlap and launch.target.shares_sparse_indices,
        message=lambda launch: (
            f"{launch.model.name} shares sparse-attention indices between layers, which enable_two_batch_overlap loses"
        ),
        exception="ValueError",
        engine_text=says("--enable-two-batch-overlap is not supported with DSA index-topk sharing:"),
        since=release_0_5(20),
    ),
)

DEEPEP_V2 = (
    Rule(
        id="deepep_v2.overlap",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:421",
        concerns=frozenset({"enable_two_batch_overlap", "enable_single_batch_overlap"}),
        broken=lambda launch: launch.effective.moe_a2a_backend == "deepep_v2" and _overlaps(launch),
        message=says("--moe-a2a-backend deepep_v2 cannot overlap batches (enable_two_batch_overlap, single)"),
        exception="ValueError",
        engine_text=says(
            "DeepEP v2 MoE has not implemented the TBO/SBO overlap hooks yet. Disable --enable-two-batch-overlap and "
            "--enable-single-batch-overlap when using --moe-a2a-backend deepep_v2."
        ),
    ),
    Rule(
        id="deepep_v2.shared_experts",
        stage=Stage.RESOLVE,
        source="arg_groups/moe_hook.py:427",
        concerns=frozenset({"enforce_shared_experts_fusion"}),
        broken=lambda launch: (
            launch.effective.moe_a2a_backend == "deepep_v2" and launch.asked.enforce_shared_experts_fusion
        ),
        message=says("--moe-a2a-backend deepep_v2 cannot fuse shared experts (enforce_shared_experts_fusion)"),
        exception="ValueError",
        engine_text=says("DeepEP v2 MoE has not validated fused shared experts yet."),
    ),
)

SEQUENCE = (
    Rule(
        id="layernorm_sp.architecture",
        stage=Stage.RESOLVE,
        source="arg_groups/layernorm_sp_hook.py:131",
        concerns=frozenset({"enable_layernorm_sp"}),
        broken=lambda launch: (
            launch.asked.enable_layernorm_sp and launch.model.architecture not in _SEQUENCE_PARALLEL_ARCHITECTURES
        ),
        message=lambda launch: f"enable_layernorm_sp is for Qwen3 dense models, not {launch.model.architecture}",
        exception="ValueError",
        engine_text=lambda launch: (
            "--enable-layernorm-sp is only supported for ['MuseSparkForConditionalGeneration', 'Qwen3ForCausalLM']; "
            f"got {launch.model.architecture}."
        ),
    ),
    Rule(
        id="layernorm_sp.tp",
        stage=Stage.RESOLVE,
        source="arg_groups/layernorm_sp_hook.py:136",
        concerns=frozenset({"enable_layernorm_sp"}),
        broken=lambda launch: launch.asked.enable_layernorm_sp and launch.asked.tp_size <= 1,
        message=lambda launch: f"enable_layernorm_sp needs tp_size above 1, but it is {launch.asked.tp_size}",
        exception="ValueError",
        engine_text=says("--enable-layernorm-sp requires tp_size > 1:"),
    ),
    Rule(
        id="layernorm_sp.attn_dp",
        stage=Stage.RESOLVE,
        source="arg_groups/layernorm_sp_hook.py:176",
        concerns=frozenset({"enable_layernorm_sp"}),
        broken=lambda launch: launch.asked.enable_layernorm_sp and launch.effective.attn_dp_size > 1,
        message=lambda launch: (
            "enable_layernorm_sp cannot be combined with attention data parallelism "
            f"(attn_dp_size={launch.effective.attn_dp_size})"
        ),
        exception="ValueError",
        engine_text=says("--enable-layernorm-sp is not compatible with attention DP:"),
        since=release_0_5(22),
    ),
    Rule(
        id="layernorm_sp.speculation",
        stage=Stage.RESOLVE,
        source="arg_groups/layernorm_sp_hook.py:182",
        concerns=frozenset({"enable_layernorm_sp"}),
        broken=lambda launch: launch.asked.enable_layernorm_sp and launch.asked.speculative_algorithm is not None,
        message=says("enable_layernorm_sp cannot be combined with speculative decoding"),
        exception="ValueError",
        engine_text=says("--enable-layernorm-sp supports speculative decoding only with Muse Spark DFLASH:"),
        since=release_0_5(23),
    ),
    Rule(
        id="layernorm_sp.pp",
        stage=Stage.RESOLVE,
        source="arg_groups/layernorm_sp_hook.py:190",
        concerns=frozenset({"enable_layernorm_sp"}),
        broken=lambda launch: launch.asked.enable_layernorm_sp and launch.asked.pp_size > 1,
        message=lambda launch: (
            f"enable_layernorm_sp cannot be combined with pipeline parallelism (pp_size={launch.asked.pp_size})"
        ),
        exception="ValueError",
        engine_text=says("--enable-layernorm-sp is not compatible with pipeline parallelism:"),
        since=release_0_5(22),
    ),
)

CHECKS = (
    Rule(
        id="overlap.two_batches",
        stage=Stage.CHECK,
        source="0.5.14 server_args.py:6678",
        broken=lambda launch: launch.asked.enable_two_batch_overlap and launch.effective.moe_a2a_backend == "none",
        message=says("enable_two_batch_overlap needs an all-to-all backend"),
        exception="ValueError",
        engine_text=says("When enabling two batch overlap, moe_a2a_backend cannot be 'none'."),
        until=release_0_5(14),
    ),
    Rule(
        id="overlap.two_batches",
        stage=Stage.CHECK,
        source="arg_groups/validation_hook.py:768",
        concerns=frozenset({"enable_two_batch_overlap"}),
        broken=lambda launch: (
            launch.asked.enable_two_batch_overlap
            and launch.effective.moe_a2a_backend == "none"
            and launch.effective.attn_dp_size <= 1
        ),
        message=says("enable_two_batch_overlap needs an all-to-all backend or attention data parallelism"),
        exception="ValueError",
        engine_text=worded(
            (release_0_5(15), f"{_TWO_BATCHES}, --enable-dp-attention is required (DeepSeek-V4 non-EP DP TBO path)."),
            (
                release_0_5(22),
                f"{_TWO_BATCHES}, attention DP (--attn-dp-size) is required (DeepSeek-V4 non-EP DP TBO path).",
            ),
        ),
        since=release_0_5(15),
    ),
)

START = (
    Rule(
        id="overlap.single_batch_gpu",
        stage=Stage.INIT,
        source="layers/moe/utils.py:509",
        concerns=frozenset({"enable_single_batch_overlap"}),
        broken=lambda launch: (
            launch.asked.enable_single_batch_overlap
            and launch.target.is_sm90
            and launch.model.architecture not in _WITHOUT_EXPERT_FIELDS
        ),
        message=lambda launch: (
            f"enable_single_batch_overlap is not for compute capability 9.x, which {launch.cluster.gpu.key} has"
        ),
        exception="ValueError",
        engine_text=says(
            "SBO (single batch overlap) is not supported on SM90 GPUs with latest sgl-deep-gemm wheel. Please try "
            "removing --enable-single-batch-overlap argument."
        ),
        since=release_0_5(13),
    ),
)

FORWARD = (
    Rule(
        id="overlap.stages",
        stage=Stage.FORWARD,
        source="models/deepseek_v2.py:3172",
        concerns=frozenset({"enable_two_batch_overlap"}),
        broken=lambda launch: launch.asked.enable_two_batch_overlap and launch.asked.pp_size > 1,
        message=lambda launch: (
            "enable_two_batch_overlap starts at the model's first layer, which later pipeline stages lack "
            f"(pp_size={launch.asked.pp_size})"
        ),
        exception="NotImplementedError",
    ),
)
