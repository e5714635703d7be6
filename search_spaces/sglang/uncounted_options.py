"""Options and environment variables, outside of a layout, that move weights, KV cache or buffers on or off the GPU.

The memory model counts none of them. Paths are under `sglang/srt/` of 0.5.23. A release that lacks an option has no
words for it, and so none is found there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from search_spaces.model import Model
from search_spaces.verdict import Stage


class Effect(StrEnum):
    FREES = "frees"
    """Less GPU memory is needed than is counted."""
    ADDS = "adds"
    EITHER = "either"


POOL = frozenset({Stage.KV_POOL})
GRAPHS = frozenset({Stage.GRAPHS})
STATIC = frozenset({Stage.WEIGHTS, Stage.KV_POOL})
ALL = STATIC | GRAPHS


@dataclass(frozen=True, slots=True, kw_only=True)
class UncountedOption:
    """One option or variable.

    name: of an option the engine's own (its parser's `dest`). does: told after it; `{}` stands for the value.
    stages: where memory runs out sooner or later for it. counts: the values that do so; of an environment variable,
        `bool` stands for a switch. concerns: the models that it does so to.
    """

    name: str
    does: str
    effect: Effect
    source: str
    stages: frozenset[Stage] = STATIC
    counts: Callable[[Any], bool] = bool
    concerns: Callable[[Model], bool] = lambda _: True
    gpu_only: bool = False
    shows_value: bool = True


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and value > 0


def _among(*words: str) -> Callable[[Any], bool]:
    return lambda value: value in words


def _said(value: Any) -> bool:
    return value is not None


def _sees(model: Model) -> bool:
    return model.vision is not None


def _slides(model: Model) -> bool:
    return model.num_sliding_layers > 0


def _has_states(model: Model) -> bool:
    return model.linear_attention is not None


_ANOTHER_CONFIGURATION = "changes the model's configuration"

OPTIONS: tuple[UncountedOption, ...] = (
    UncountedOption(
        name="cpu_offload_gb",
        does="keeps up to {} GiB of each GPU's weights in CPU memory",
        effect=Effect.FREES,
        source="utils/offloader.py:153",
        counts=_positive,
        gpu_only=True,
    ),
    UncountedOption(
        name="offload_group_size",
        does="keeps weights of some layers off the GPU",
        effect=Effect.FREES,
        source="utils/offloader.py:251",
        counts=_positive,
        gpu_only=True,
    ),
    UncountedOption(
        name="kt_weight_path",
        does="leaves experts to the CPU, whose weights stay off the GPU",
        effect=Effect.FREES,
        source="layers/moe/kt_ep_wrapper.py:78",
        gpu_only=True,
        shows_value=False,
    ),
    UncountedOption(
        name="enable_paged_experts",
        does="keeps only some experts on the GPU",
        effect=Effect.FREES,
        source="layers/moe/fused_moe_triton/layer.py:507",
        gpu_only=True,
    ),
    UncountedOption(
        name="device",
        does="loads the model into CPU memory",
        effect=Effect.FREES,
        source="model_executor/model_runner_components/load_model_utils.py:331",
        stages=ALL,
        counts=_among("cpu"),
        gpu_only=True,
    ),
    UncountedOption(
        name="torchao_config",
        does="quantises weights once all of them are loaded as they are stored",
        effect=Effect.FREES,
        source="model_executor/model_runner.py:717 of 0.5.17",
        stages=POOL,
    ),
    UncountedOption(
        name="modelopt_quant",
        does="quantises weights with ModelOpt",
        effect=Effect.FREES,
        source="model_loader/loader.py:977",
    ),
    UncountedOption(
        name="load_format",
        does="loads weights in another format or order",
        effect=Effect.FREES,
        source="model_loader/loader.py:4162",
        counts=_among("gguf", "bitsandbytes", "expert_pack", "layered", "flash_rl", "private"),
    ),
    UncountedOption(
        name="load_format",
        does="holds whole files of the checkpoint on the GPU while it loads",
        effect=Effect.ADDS,
        source="model_loader/weight_utils.py:1314",
        stages=frozenset({Stage.WEIGHTS}),
        counts=_among("fastsafetensors", "instanttensor"),
    ),
    UncountedOption(
        name="language_only",
        does="leaves the vision tower out",
        effect=Effect.FREES,
        source="models/qwen3_vl.py:1348",
        concerns=_sees,
    ),
    UncountedOption(
        name="language_model_only",
        does="leaves the vision tower out",
        effect=Effect.FREES,
        source="models/qwen3_vl.py:1394",
        concerns=_sees,
    ),
    UncountedOption(
        name="encoder_only",
        does="loads the vision tower alone",
        effect=Effect.FREES,
        source="models/qwen3_vl.py:1356",
        stages=ALL,
    ),
    UncountedOption(
        name="prefill_only_disable_kv_cache",
        does="keeps no KV cache",
        effect=Effect.FREES,
        source="mem_cache/kv_cache_configurator.py:2750",
        stages=POOL,
    ),
    UncountedOption(
        name="enable_hisparse",
        does="keeps most of the KV cache in CPU memory",
        effect=Effect.FREES,
        source="model_executor/pool_configurator.py:1150",
        stages=POOL,
    ),
    UncountedOption(
        name="enable_kv_cache_sharding",
        does="divides the KV cache over ranks that else hold the same",
        effect=Effect.FREES,
        source="mem_cache/page_interleave.py:171",
        stages=POOL,
    ),
    UncountedOption(
        name="enable_dsa_cache_layer_split",
        does="divides the layers of the KV cache over context-parallel ranks",
        effect=Effect.FREES,
        source="layers/cp/utils.py:55",
        stages=POOL,
    ),
    UncountedOption(
        name="enable_deepseek_v4_fp4_indexer",
        does="stores the indexer's keys in FP4",
        effect=Effect.FREES,
        source="model_executor/pool_configurator.py:1113",
        stages=POOL,
    ),
    UncountedOption(
        name="json_model_override_args",
        does=_ANOTHER_CONFIGURATION,
        effect=Effect.EITHER,
        source="configs/model_config.py:962",
        stages=ALL,
        counts=lambda value: value not in (None, "", "{}", {}),
        shows_value=False,
    ),
    UncountedOption(
        name="decrypted_config_file",
        does=_ANOTHER_CONFIGURATION,
        effect=Effect.EITHER,
        source="configs/model_config.py:952",
        stages=ALL,
        shows_value=False,
    ),
    UncountedOption(
        name="config",
        does="names a file of settings",
        effect=Effect.EITHER,
        source="server_args.py:688",
        stages=ALL,
        shows_value=False,
    ),
    UncountedOption(
        name="model_impl",
        does="builds the model with another library's code",
        effect=Effect.EITHER,
        source="model_loader/utils.py:230",
        stages=ALL,
        counts=_among("transformers", "mindspore"),
    ),
    UncountedOption(
        name="cuda_graph_config",
        does="says which CUDA graphs are captured",
        effect=Effect.EITHER,
        source="arg_groups/cuda_graph_hook.py:118",
        stages=GRAPHS | POOL,
        counts=_said,
        shows_value=False,
    ),
    UncountedOption(
        name="weight_cache_mode",
        does="has weights loaded by another process",
        effect=Effect.EITHER,
        source="weight_cache/ipc_loader.py:79",
        stages=POOL,
        counts=_among("daemon", "client"),
    ),
    UncountedOption(
        name="swa_full_tokens_ratio",
        does="divides the KV cache otherwise between full and sliding-window layers",
        effect=Effect.EITHER,
        source="model_executor/pool_configurator.py:672",
        stages=POOL,
        counts=_said,
        concerns=_slides,
    ),
    UncountedOption(
        name="disable_hybrid_swa_memory",
        does="gives sliding-window layers as much KV cache as full ones",
        effect=Effect.ADDS,
        source="configs/model_config.py:1217",
        stages=POOL,
        concerns=_slides,
    ),
    UncountedOption(
        name="max_mamba_cache_size",
        does="sets how many states of linear attention there are",
        effect=Effect.EITHER,
        source="mem_cache/kv_cache_configurator.py:3303",
        stages=POOL,
        counts=_said,
        concerns=_has_states,
    ),
    UncountedOption(
        name="mamba_full_memory_ratio",
        does="sets the share of the states of linear attention",
        effect=Effect.EITHER,
        source="mem_cache/kv_cache_configurator.py:3354",
        stages=POOL,
        counts=_said,
        concerns=_has_states,
    ),
    UncountedOption(
        name="mamba_ssm_dtype",
        does="sets the type of the states of linear attention",
        effect=Effect.EITHER,
        source="configs/mamba_utils.py:80",
        stages=POOL,
        counts=_said,
        concerns=_has_states,
    ),
    UncountedOption(
        name="enable_int8_mamba_checkpoint",
        does="keeps more states of linear attention, in INT8",
        effect=Effect.ADDS,
        source="mem_cache/mamba_checkpoint_pool.py:325",
        stages=POOL,
        concerns=_has_states,
    ),
    UncountedOption(
        name="enable_lora",
        does="loads adapters",
        effect=Effect.ADDS,
        source="model_executor/model_runner.py:839",
        shows_value=False,
    ),
    UncountedOption(
        name="lora_paths",
        does="loads adapters",
        effect=Effect.ADDS,
        source="model_executor/model_runner.py:839",
        shows_value=False,
    ),
    UncountedOption(
        name="uno_lora_path",
        does="loads an adapter",
        effect=Effect.ADDS,
        source="speculative/uno_lora.py:28",
        shows_value=False,
    ),
    UncountedOption(
        name="mm_enable_dp_encoder",
        does="puts the whole vision tower on every GPU",
        effect=Effect.ADDS,
        source="models/qwen3_vl.py:1326",
        concerns=_sees,
    ),
    UncountedOption(
        name="enable_multimodal",
        does="builds a vision tower",
        effect=Effect.ADDS,
        source="models/mllama4.py:468",
        concerns=lambda model: model.architecture == "Llama4ForConditionalGeneration",
    ),
    UncountedOption(
        name="mm_feature_transport",
        does="keeps features of images on the GPU",
        effect=Effect.ADDS,
        source="mem_cache/kv_cache_configurator.py:212",
        stages=POOL,
        counts=_among("cuda_ipc"),
        concerns=_sees,
    ),
    UncountedOption(
        name="dcp_replicate_q_proj",
        does="puts whole query projections on every GPU",
        effect=Effect.ADDS,
        source="models/deepseek_common/attention_forward_methods/forward_mla.py:136",
    ),
    UncountedOption(
        name="enable_return_routed_experts",
        does="keeps the experts of every token",
        effect=Effect.ADDS,
        source="state_capturer/routed_experts.py:50",
        stages=GRAPHS,
    ),
    UncountedOption(
        name="enable_return_indexer_topk",
        does="keeps the indexer's choices for every token",
        effect=Effect.ADDS,
        source="state_capturer/indexer_topk.py:99",
        stages=GRAPHS,
    ),
    UncountedOption(
        name="expert_distribution_recorder_mode",
        does="records which experts are chosen",
        effect=Effect.ADDS,
        source="eplb/expert_distribution.py:959",
        stages=GRAPHS,
    ),
    UncountedOption(
        name="enable_fp32_lm_head",
        does="makes an FP32 copy of the language model head",
        effect=Effect.ADDS,
        source="layers/logits_processor.py:1181",
        stages=GRAPHS,
    ),
    UncountedOption(
        name="enable_pdmux",
        does="captures graphs for several divisions of the GPU",
        effect=Effect.ADDS,
        source="model_executor/runner/decode_cuda_graph_runner.py:1192",
        stages=GRAPHS,
    ),
    UncountedOption(
        name="kv_canary",
        does="keeps checks beside the KV cache",
        effect=Effect.ADDS,
        source="kv_canary/config.py:65",
        stages=POOL,
        counts=_among("log", "raise"),
    ),
    UncountedOption(
        name="enable_double_sparsity",
        does="keeps labels beside the KV cache",
        effect=Effect.ADDS,
        source="model_executor/model_runner_kv_cache_mixin.py:604 of 0.5.10",
        stages=POOL,
    ),
)

ENVIRONMENT: tuple[UncountedOption, ...] = (
    UncountedOption(
        name="SGLANG_ENABLE_EMBED_REPLICATION",
        does="puts the whole embedding on every GPU",
        effect=Effect.ADDS,
        source="layers/vocab_parallel_embedding.py:178",
    ),
    UncountedOption(
        name="SGLANG_DSV4_FP4_DEQUANT",
        does="turns FP4 experts into FP8 ones",
        effect=Effect.ADDS,
        source="model_loader/loader.py:228",
        concerns=lambda model: model.architecture == "DeepseekV4ForCausalLM",
    ),
    UncountedOption(
        name="SGLANG_HUMMING_ONLINE_QUANT_CONFIG",
        does="quantises weights otherwise than the checkpoint says",
        effect=Effect.EITHER,
        source="layers/quantization/humming.py:616",
        shows_value=False,
    ),
    UncountedOption(
        name="SGLANG_ENABLE_POST_CAPTURE_KV_SIZING",
        does="sizes the KV cache after CUDA graphs are captured",
        effect=Effect.EITHER,
        source="arg_groups/overrides.py:1803",
        stages=POOL | GRAPHS,
    ),
    UncountedOption(
        name="SGLANG_DISAGG_STAGING_BUFFER",
        does="keeps a buffer for KV cache that is received",
        effect=Effect.ADDS,
        source="disaggregation/common/staging_handler.py:781",
        stages=GRAPHS,
    ),
    UncountedOption(
        name="SGLANG_VLM_CACHE_SIZE_MB",
        does="sets the size of the cache of images' embeddings",
        effect=Effect.EITHER,
        source="mem_cache/kv_cache_configurator.py:210",
        stages=POOL,
        counts=_said,
        concerns=_sees,
    ),
)
