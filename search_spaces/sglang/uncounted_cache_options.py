"""Options that change what beside the weights stays on the GPU, none of which the memory model counts.

Paths are under `sglang/srt/` of 0.5.23. `--enable-deepseek-v4-fp4-indexer` is none of them: on NVIDIA GPUs the pool is
sized as without it (model_executor/pool_configurator.py:1113).
"""

from __future__ import annotations

from search_spaces.sglang.uncounted import GRAPHS, POOL, Effect, Part, UncountedOption
from search_spaces.sglang.uncounted_conditions import (
    builds_tower,
    divides_windows,
    fraction_without_images,
    has_indexer,
    has_states,
    is_moe,
    is_sparse,
    keeps_no_cache,
    serves_language_alone,
    shards_cache,
    slides,
    splits_cache_layers,
)
from search_spaces.sglang.uncounted_values import among, said

KV_CACHE = (
    UncountedOption(
        name="prefill_only_disable_kv_cache",
        does="keeps no KV cache",
        effect=Effect.FREES,
        source="mem_cache/kv_cache_configurator.py:2750",
        changes_times=True,
        part=Part.CACHE,
        stages=POOL | GRAPHS,
        concerns=keeps_no_cache,
    ),
    UncountedOption(
        name="enable_hisparse",
        does="keeps most of the KV cache in CPU memory",
        effect=Effect.FREES,
        source="model_executor/pool_configurator.py:1150",
        changes_times=True,
        part=Part.CACHE,
        stages=POOL,
        concerns=is_sparse,
    ),
    UncountedOption(
        name="enable_kv_cache_sharding",
        does="divides the KV cache over ranks that else hold the same",
        effect=Effect.FREES,
        source="mem_cache/page_interleave.py:171",
        part=Part.CACHE,
        stages=POOL,
        concerns=shards_cache,
    ),
    UncountedOption(
        name="enable_dsa_cache_layer_split",
        does="divides the layers of the KV cache over context-parallel ranks",
        effect=Effect.FREES,
        source="layers/cp/utils.py:55",
        part=Part.CACHE,
        stages=POOL,
        concerns=splits_cache_layers,
    ),
    UncountedOption(
        name="swa_full_tokens_ratio",
        does="divides the KV cache otherwise between full and sliding-window layers",
        effect=Effect.EITHER,
        source="model_executor/pool_configurator.py:672",
        part=Part.CACHE,
        stages=POOL,
        counts=said,
        concerns=divides_windows,
    ),
    UncountedOption(
        name="disable_hybrid_swa_memory",
        does="gives sliding-window layers as much KV cache as full ones",
        effect=Effect.ADDS,
        source="configs/model_config.py:1217",
        part=Part.CACHE,
        stages=POOL,
        concerns=slides,
    ),
    UncountedOption(
        name="kv_canary",
        does="keeps checks beside the KV cache",
        effect=Effect.ADDS,
        source="kv_canary/config.py:65",
        part=Part.CACHE,
        stages=POOL,
        counts=among("log", "raise"),
    ),
    UncountedOption(
        name="enable_double_sparsity",
        does="keeps labels beside the KV cache",
        effect=Effect.ADDS,
        source="model_executor/model_runner_kv_cache_mixin.py:604 of 0.5.10",
        part=Part.CACHE,
        stages=POOL,
    ),
)

STATES = (
    UncountedOption(
        name="max_mamba_cache_size",
        does="sets how many states of linear attention there are",
        effect=Effect.EITHER,
        source="mem_cache/kv_cache_configurator.py:3303",
        part=Part.CACHE,
        stages=POOL,
        counts=said,
        concerns=has_states,
    ),
    UncountedOption(
        name="mamba_full_memory_ratio",
        does="sets the share of the states of linear attention",
        effect=Effect.EITHER,
        source="mem_cache/kv_cache_configurator.py:3354",
        part=Part.CACHE,
        stages=POOL,
        counts=said,
        concerns=lambda launch: has_states(launch) and launch.others.get("max_mamba_cache_size") is None,
    ),
    UncountedOption(
        name="mamba_ssm_dtype",
        does="sets the type of the states of linear attention",
        effect=Effect.EITHER,
        source="configs/mamba_utils.py:80",
        part=Part.CACHE,
        stages=POOL,
        counts=said,
        concerns=has_states,
    ),
    UncountedOption(
        name="enable_int8_mamba_checkpoint",
        does="keeps more states of linear attention, in INT8",
        effect=Effect.ADDS,
        source="mem_cache/mamba_checkpoint_pool.py:325",
        part=Part.CACHE,
        stages=POOL,
        concerns=has_states,
    ),
)

OUTSIDE = (
    UncountedOption(
        name="language_only",
        does="leaves more of the GPU to the static fraction, since no images are read",
        effect=Effect.FREES,
        source="arg_groups/memory_hook.py:283",
        part=Part.FRACTION,
        stages=POOL,
        concerns=serves_language_alone,
        raises_fraction_to=fraction_without_images,
    ),
    UncountedOption(
        name="cuda_graph_config",
        does="says which CUDA graphs are captured",
        effect=Effect.EITHER,
        source="arg_groups/cuda_graph_hook.py:118",
        part=Part.FRACTION,
        stages=GRAPHS | POOL,
        counts=said,
        shows_value=False,
    ),
    UncountedOption(
        name="mm_feature_transport",
        does="keeps features of images on the GPU",
        effect=Effect.ADDS,
        source="mem_cache/kv_cache_configurator.py:212",
        part=Part.BUFFERS,
        stages=POOL,
        counts=among("cuda_ipc", "cuda_vmm"),
        concerns=builds_tower,
    ),
    UncountedOption(
        name="enable_return_routed_experts",
        does="keeps the experts of every token",
        effect=Effect.ADDS,
        source="state_capturer/routed_experts.py:50",
        part=Part.BUFFERS,
        stages=GRAPHS,
        concerns=is_moe,
    ),
    UncountedOption(
        name="enable_return_indexer_topk",
        does="keeps the indexer's choices for every token",
        effect=Effect.ADDS,
        source="state_capturer/indexer_topk.py:99",
        part=Part.BUFFERS,
        stages=GRAPHS,
        concerns=has_indexer,
    ),
    UncountedOption(
        name="expert_distribution_recorder_mode",
        does="records which experts are chosen",
        effect=Effect.ADDS,
        source="eplb/expert_distribution.py:959",
        part=Part.BUFFERS,
        stages=GRAPHS,
        concerns=is_moe,
    ),
    UncountedOption(
        name="enable_pdmux",
        does="captures graphs for several divisions of the GPU",
        effect=Effect.ADDS,
        source="model_executor/runner/decode_cuda_graph_runner.py:1192",
        part=Part.FRACTION,
        stages=GRAPHS,
    ),
)

CACHE_OPTIONS: tuple[UncountedOption, ...] = (*KV_CACHE, *STATES, *OUTSIDE)
