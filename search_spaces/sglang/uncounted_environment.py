"""Environment variables that the memory model does not count. Paths are under `sglang/srt/` of 0.5.23."""

from __future__ import annotations

from search_spaces.sglang.uncounted import GRAPHS, LAYERS, POOL, ROUTED, Effect, Part, UncountedOption
from search_spaces.sglang.uncounted_conditions import (
    builds_tower,
    is_deepseek_v4,
    is_split,
    quantises_with_humming,
    receives_cache,
    sizes_after_capture,
)
from search_spaces.sglang.uncounted_values import said

ENVIRONMENT: tuple[UncountedOption, ...] = (
    UncountedOption(
        name="SGLANG_ENABLE_EMBED_REPLICATION",
        does="puts the whole embedding on every GPU",
        effect=Effect.ADDS,
        source="layers/vocab_parallel_embedding.py:178",
        concerns=is_split,
    ),
    UncountedOption(
        name="SGLANG_DSV4_FP4_DEQUANT",
        does="turns FP4 experts into FP8 ones",
        effect=Effect.ADDS,
        source="model_loader/loader.py:228",
        changes_times=True,
        concerns=is_deepseek_v4,
        components=ROUTED,
    ),
    UncountedOption(
        name="SGLANG_HUMMING_ONLINE_QUANT_CONFIG",
        does="quantises weights otherwise than the checkpoint says",
        effect=Effect.EITHER,
        source="layers/quantization/humming.py:616",
        changes_times=True,
        concerns=quantises_with_humming,
        components=LAYERS,
        most_share=lambda _: 7 / 8,
        decides=True,
        shows_value=False,
    ),
    UncountedOption(
        name="SGLANG_ENABLE_POST_CAPTURE_KV_SIZING",
        does="sizes the KV cache after CUDA graphs are captured",
        effect=Effect.EITHER,
        source="arg_groups/overrides.py:1803",
        part=Part.FRACTION,
        stages=POOL,
        concerns=sizes_after_capture,
    ),
    UncountedOption(
        name="SGLANG_ENABLE_POST_CAPTURE_KV_SIZING",
        does="sizes the KV cache after CUDA graphs are captured",
        effect=Effect.EITHER,
        source="arg_groups/overrides.py:1803",
        part=Part.CACHE,
        stages=GRAPHS,
        concerns=sizes_after_capture,
    ),
    UncountedOption(
        name="SGLANG_DISAGG_STAGING_BUFFER",
        does="keeps a buffer for KV cache that is received",
        effect=Effect.ADDS,
        source="disaggregation/common/staging_handler.py:781",
        part=Part.BUFFERS,
        stages=GRAPHS,
        concerns=receives_cache,
    ),
    UncountedOption(
        name="SGLANG_VLM_CACHE_SIZE_MB",
        does="sets the size of the cache of images' embeddings",
        effect=Effect.EITHER,
        source="mem_cache/kv_cache_configurator.py:210",
        part=Part.BUFFERS,
        stages=POOL,
        counts=said,
        concerns=builds_tower,
    ),
)
