"""Options that keep weights off the GPU, store them otherwise, or add some, none of which the memory model counts.

Paths are under `sglang/srt/` of 0.5.23. A release that lacks an option has no words for it, and so none is found there.
"""

from __future__ import annotations

from search_spaces.sglang.uncounted import ALL, GRAPHS, LAYERS, POOL, ROUTED, Effect, Part, UncountedOption
from search_spaces.sglang.uncounted_conditions import (
    group_share,
    has_expert_pack,
    is_llama4,
    is_moe,
    is_split,
    offloads_groups,
    paged_share,
    pages_experts,
    replicates_queries,
    sees,
    serves_encoder_alone,
    wraps_layers,
)
from search_spaces.sglang.uncounted_values import among, positive
from search_spaces.verdict import Stage

_ANOTHER_CONFIGURATION = "changes the model's configuration"

OFFLOADING = (
    UncountedOption(
        name="cpu_offload_gb",
        does="keeps up to {} GiB of each GPU's weights in CPU memory",
        effect=Effect.FREES,
        source="utils/offloader.py:153",
        changes_times=True,
        counts=positive,
        concerns=wraps_layers,
        components=LAYERS,
        gpu_only=True,
    ),
    UncountedOption(
        name="offload_group_size",
        does="keeps experts of some layers off the GPU",
        effect=Effect.FREES,
        source="utils/offloader.py:213",
        changes_times=True,
        counts=positive,
        concerns=offloads_groups,
        components=ROUTED,
        most_share=group_share,
        gpu_only=True,
    ),
    UncountedOption(
        name="kt_weight_path",
        does="leaves experts to the CPU, whose weights stay off the GPU",
        effect=Effect.FREES,
        source="layers/moe/kt_ep_wrapper.py:78",
        changes_times=True,
        concerns=is_moe,
        components=ROUTED,
        gpu_only=True,
        shows_value=False,
    ),
    UncountedOption(
        name="enable_paged_experts",
        does="keeps only some experts on the GPU",
        effect=Effect.FREES,
        source="layers/moe/fused_moe_triton/layer.py:507",
        changes_times=True,
        concerns=pages_experts,
        components=ROUTED,
        most_share=paged_share,
        gpu_only=True,
    ),
    UncountedOption(
        name="weight_cache_mode",
        does="has weights loaded by another process",
        effect=Effect.EITHER,
        source="weight_cache/ipc_loader.py:79",
        stages=POOL,
        counts=among("daemon", "client"),
    ),
)

STORED_OTHERWISE = (
    UncountedOption(
        name="torchao_config",
        does="quantises weights once all of them are loaded as they are stored",
        effect=Effect.FREES,
        source="model_executor/model_runner.py:717 of 0.5.17",
        changes_times=True,
        stages=POOL,
        components=LAYERS - ROUTED,
        most_share=lambda _: 3 / 4,
    ),
    UncountedOption(
        name="modelopt_quant",
        does="quantises weights with ModelOpt",
        effect=Effect.FREES,
        source="model_loader/loader.py:977",
        changes_times=True,
        components=LAYERS,
        most_share=lambda _: 3 / 4,
    ),
    UncountedOption(
        name="load_format",
        does="loads weights of another format",
        effect=Effect.FREES,
        source="model_loader/loader.py:4238",
        changes_times=True,
        counts=among("gguf", "bitsandbytes"),
        most_share=lambda _: 7 / 8,
    ),
    UncountedOption(
        name="load_format",
        does="loads experts from packed files",
        effect=Effect.FREES,
        source="model_loader/expert_pack_loader.py:142",
        changes_times=True,
        counts=among("expert_pack"),
        concerns=has_expert_pack,
        components=ROUTED,
    ),
    UncountedOption(
        name="load_format",
        does="quantises weights once all of them are loaded as they are stored",
        effect=Effect.FREES,
        source="model_loader/loader.py:4252",
        changes_times=True,
        stages=POOL,
        counts=among("flash_rl"),
        components=LAYERS,
        most_share=lambda _: 1 / 2,
    ),
    UncountedOption(
        name="load_format",
        does="holds whole files of the checkpoint on the GPU while it loads",
        effect=Effect.ADDS,
        source="model_loader/weight_utils.py:1314",
        stages=frozenset({Stage.WEIGHTS}),
        counts=among("fastsafetensors", "instanttensor"),
    ),
)

ANOTHER_SERVER = (
    UncountedOption(
        name="device",
        does="loads the model into CPU memory",
        effect=Effect.EITHER,
        source="model_executor/model_runner_components/load_model_utils.py:331",
        changes_times=True,
        part=Part.SERVER,
        stages=ALL,
        counts=among("cpu"),
        decides=True,
        gpu_only=True,
    ),
    UncountedOption(
        name="encoder_only",
        does="loads the vision tower alone",
        effect=Effect.EITHER,
        source="models/qwen3_vl.py:1356",
        changes_times=True,
        part=Part.SERVER,
        stages=ALL,
        concerns=serves_encoder_alone,
        decides=True,
    ),
    UncountedOption(
        name="json_model_override_args",
        does=_ANOTHER_CONFIGURATION,
        effect=Effect.EITHER,
        source="configs/model_config.py:962",
        changes_times=True,
        part=Part.SERVER,
        stages=ALL,
        counts=lambda value: value not in (None, "", "{}", {}),
        decides=True,
        shows_value=False,
    ),
    UncountedOption(
        name="decrypted_config_file",
        does=_ANOTHER_CONFIGURATION,
        effect=Effect.EITHER,
        source="configs/model_config.py:952",
        changes_times=True,
        part=Part.SERVER,
        stages=ALL,
        decides=True,
        shows_value=False,
    ),
    UncountedOption(
        name="config",
        does="names a file of settings",
        effect=Effect.EITHER,
        source="server_args.py:688",
        changes_times=True,
        part=Part.SERVER,
        stages=ALL,
        decides=True,
        shows_value=False,
    ),
    UncountedOption(
        name="model_impl",
        does="builds the model with another library's code",
        effect=Effect.ADDS,
        source="model_loader/utils.py:230",
        changes_times=True,
        part=Part.SERVER,
        stages=ALL,
        counts=among("transformers", "mindspore"),
        decides=True,
    ),
)

MORE_WEIGHTS = (
    *(
        UncountedOption(
            name=name,
            does="loads adapters",
            effect=Effect.ADDS,
            source="model_executor/model_runner.py:839",
            changes_times=True,
            shows_value=False,
        )
        for name in ("enable_lora", "lora_paths")
    ),
    UncountedOption(
        name="uno_lora_path",
        does="loads an adapter",
        effect=Effect.ADDS,
        source="speculative/uno_lora.py:28",
        changes_times=True,
        shows_value=False,
    ),
    UncountedOption(
        name="mm_enable_dp_encoder",
        does="puts the whole vision tower on every GPU",
        effect=Effect.ADDS,
        source="models/qwen3_vl.py:1326",
        concerns=lambda launch: sees(launch) and is_split(launch),
    ),
    UncountedOption(
        name="enable_multimodal",
        does="builds a vision tower",
        effect=Effect.ADDS,
        source="models/mllama4.py:468",
        concerns=is_llama4,
    ),
    UncountedOption(
        name="dcp_replicate_q_proj",
        does="puts whole query projections on every GPU",
        effect=Effect.ADDS,
        source="models/deepseek_common/attention_forward_methods/forward_mla.py:136",
        concerns=replicates_queries,
    ),
    UncountedOption(
        name="enable_fp32_lm_head",
        does="makes an FP32 copy of the language model head",
        effect=Effect.ADDS,
        source="layers/logits_processor.py:1181",
        stages=GRAPHS,
    ),
)

WEIGHT_OPTIONS: tuple[UncountedOption, ...] = (*OFFLOADING, *STORED_OTHERWISE, *ANOTHER_SERVER, *MORE_WEIGHTS)
