"""Which launches an option that the memory model does not count does anything to.

Each says no where the engine refuses the launch for the option, or has nothing to apply it to. Paths are under
`sglang/srt/` of 0.5.23.
"""

from __future__ import annotations

from search_spaces.sglang.target import DEEPSEEK_FAMILY
from search_spaces.sglang.uncounted import Situation

DEEPSEEK_V4 = "DeepseekV4ForCausalLM"
_MINIMAX_SPARSE = frozenset({"MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration"})
_ENCODERS_APART = frozenset(
    {
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
        "KimiK25ForConditionalGeneration",
        "KimiK3ForConditionalGeneration",
        "MiniMaxM3SparseForConditionalGeneration",
    }
)
"""The architectures read here whose vision tower may be served apart (arg_groups/pd_disaggregation_hook.py:352)."""

_WITHOUT_LAYER_WRAPPING = frozenset({"NemotronHForCausalLM"})
"""Architectures that do not make their layers with `make_layers`, which is what offloading hooks into."""

_FLASH_ATTENTION = frozenset({"fa3", "fa4"})
_NO_GRAPHS = frozenset({None, "disabled"})


def sees(launch: Situation) -> bool:
    return launch.model.vision is not None


def builds_tower(launch: Situation) -> bool:
    return launch.target.is_multimodal


def slides(launch: Situation) -> bool:
    return launch.model.num_sliding_layers > 0 or launch.model.architecture == DEEPSEEK_V4


def divides_windows(launch: Situation) -> bool:
    """Whether sliding-window layers have a KV cache of their own (configs/model_config.py:1217)."""
    return slides(launch) and not launch.others.get("disable_hybrid_swa_memory")


def has_states(launch: Situation) -> bool:
    return launch.model.linear_attention is not None


def is_moe(launch: Situation) -> bool:
    return launch.model.is_moe


def is_split(launch: Situation) -> bool:
    return launch.run.tp_size > 1


def is_llama4(launch: Situation) -> bool:
    return launch.model.architecture == "Llama4ForConditionalGeneration"


def is_deepseek_v4(launch: Situation) -> bool:
    return launch.model.architecture == DEEPSEEK_V4


def wraps_layers(launch: Situation) -> bool:
    return launch.model.architecture not in _WITHOUT_LAYER_WRAPPING


def offloads_groups(launch: Situation) -> bool:
    """Only DeepSeek's layers say which of their parts may go (models/deepseek_v2.py:2973); --cpu-offload-gb comes
    first (utils/offloader.py:69).
    """
    return launch.model.architecture in DEEPSEEK_FAMILY and not launch.others.get("cpu_offload_gb")


def group_share(launch: Situation) -> float:
    """Of the layers, those whose experts go (utils/offloader.py:213)."""
    size = launch.others.get("offload_group_size") or 1
    return float(min(1.0, (launch.others.get("offload_num_in_group") or 1) / size))


def pages_experts(launch: Situation) -> bool:
    """What layers/moe/paged_experts/method.py:301 asks for."""
    asked, run, resident = launch.asked, launch.run, launch.others.get("paged_experts_num_resident")
    is_single = run.tp_size == run.ep_size == run.pp_size == run.dp_size == 1
    is_plain = not run.enable_eplb and asked.speculative_algorithm is None
    is_held = resident is not None and resident >= launch.model.experts_per_token
    return launch.model.is_moe and is_single and is_plain and is_held and launch.others.get("load_format") != "dummy"


def paged_share(launch: Situation) -> float:
    resident = launch.others.get("paged_experts_num_resident") or launch.model.num_experts
    return max(0.0, 1 - resident / max(launch.model.num_experts, 1))


def has_expert_pack(launch: Situation) -> bool:
    """model_loader/expert_pack_config.py:25; Kimi-K3 only without its vision tower."""
    return launch.model.architecture == DEEPSEEK_V4


def serves_language_alone(launch: Situation) -> bool:
    """--language-only: every tower is built nevertheless, and only its weights are not loaded
    (models/kimi_k25.py:680, :869; models/qwen3_vl.py:1328; models/minimax_m3_vl.py:114).
    """
    return launch.model.architecture in _ENCODERS_APART and launch.asked.mem_fraction_static is None


def fraction_without_images(launch: Situation) -> float:
    """Without what the engine takes off for reading images (arg_groups/memory_hook.py:281)."""
    return (launch.run.mem_fraction_static or 1.0) / launch.target.vision_factor


def serves_encoder_alone(launch: Situation) -> bool:
    return launch.model.architecture in _ENCODERS_APART


def keeps_no_cache(launch: Situation) -> bool:
    """What arg_groups/kv_cache_hook.py:344 and :866 ask for, and the pools that can be left out
    (mem_cache/kv_cache_configurator.py:1530).
    """
    asked, run = launch.asked, launch.run
    backend = run.prefill_attention_backend or run.attention_backend
    is_plain = not launch.target.is_mla and not slides(launch) and not has_states(launch)
    return (
        bool(launch.others.get("is_embedding"))
        and asked.chunked_prefill_size == -1
        and asked.disable_radix_cache
        and backend in _FLASH_ATTENTION
        and is_plain
    )


def is_sparse(launch: Situation) -> bool:
    """What arg_groups/hisparse_hook.py:80 asks for."""
    asked, architecture = launch.asked, launch.model.architecture
    may_swap = launch.target.is_dsa or architecture == DEEPSEEK_V4 or architecture in _MINIMAX_SPARSE
    return may_swap and asked.disable_radix_cache and not asked.enable_mixed_chunk


def shards_cache(launch: Situation) -> bool:
    """What arg_groups/kv_shard_hook.py:31 and :85 ask for."""
    run, backend = launch.run, launch.run.prefill_attention_backend or launch.run.attention_backend
    if launch.asked.disaggregation_mode != "prefill" or run.dcp_size > 1:
        return False
    if launch.target.is_dsa:
        return run.enable_prefill_cp and run.attn_cp_size > 1 and run.cp_strategy == "interleave" and run.pp_size == 1
    return backend == "fa3" or (backend == "trtllm_mla" and launch.target.is_mla and run.attn_cp_size == 1)


def splits_cache_layers(launch: Situation) -> bool:
    """What arg_groups/model_hook.py:187 and :366 ask for."""
    asked = launch.asked
    return (
        launch.target.is_dsa
        and asked.disaggregation_mode == "prefill"
        and asked.enable_prefill_cp
        and launch.run.cp_strategy == "interleave"
        and asked.pp_size == 1
        and launch.others.get("disaggregation_transfer_backend", "mooncake") in ("mooncake", "mooncake_tcp")
    )


def chooses_fraction(launch: Situation) -> bool:
    """Whether the engine chooses the static fraction."""
    return launch.asked.mem_fraction_static is None


def sizes_after_capture(launch: Situation) -> bool:
    """What arg_groups/overrides.py:1791 asks for."""
    run, architecture = launch.run, launch.model.architecture
    return (
        not launch.target.is_cpu
        and launch.others.get("device") in (None, "cuda")
        and not launch.target.is_mla
        and architecture != DEEPSEEK_V4
        and architecture not in _MINIMAX_SPARSE
        and run.dcp_size == 1
        and not launch.others.get("enable_memory_saver")
        and not launch.others.get("prefill_only_disable_kv_cache")
        and not launch.others.get("enable_kv_cache_sharding")
        and (run.disaggregation_mode == "prefill" or run.cuda_graph_backend_decode not in _NO_GRAPHS)
        and (run.disaggregation_mode == "decode" or run.cuda_graph_backend_prefill not in _NO_GRAPHS)
    )


def replicates_queries(launch: Situation) -> bool:
    """What arg_groups/parallel_hook.py:265 asks for."""
    run = launch.run
    return launch.target.is_mla and run.dcp_size > 1 and run.dcp_comm_backend in ("a2a", "fi_a2a")


def has_indexer(launch: Situation) -> bool:
    return launch.model.indexer is not None


def receives_cache(launch: Situation) -> bool:
    """disaggregation/prefill.py:218."""
    return launch.asked.disaggregation_mode != "null" and not launch.target.is_mla


def quantises_with_humming(launch: Situation) -> bool:
    return "humming" in (launch.asked.quantization, launch.run.quantization)
