"""The difference between a layout as asked for and as it runs, told as the engine's silent changes."""

from __future__ import annotations

from search_spaces.layout import Layout
from search_spaces.sglang.memory_defaults import default_chunked_prefill_size
from search_spaces.sglang.target import Target
from search_spaces.sglang.version_facts import VersionFacts
from search_spaces.verdict import Adjustment

_ALWAYS = {
    "moe_a2a_backend": "arg_groups/mega_moe_hook.py:260, arg_groups/moe_hook.py:463",
    "attn_dp_size": "arg_groups/parallel_hook.py:470",
    "dp_size": "arg_groups/model_override_base.py:227",
    "attn_cp_size": "arg_groups/model_overrides/deepseek_v2.py:131",
    "ep_size": "arg_groups/overrides.py:1611",
    "moe_dp_size": "arg_groups/parallel_hook.py:497",
    "moe_dense_tp_size": "arg_groups/model_overrides/deepseek_v2.py:197",
    "moe_runner_backend": "arg_groups/model_overrides/",
    "deepep_mode": "arg_groups/moe_hook.py:362",
    "enable_dp_lm_head": "arg_groups/overrides.py:1367",
    "ep_dispatch_algorithm": "arg_groups/parallel_hook.py:762",
    "max_running_requests": "arg_groups/speculative_hook.py:1104",
    "disable_shared_experts_fusion": "arg_groups/overrides.py:1529",
    "disable_overlap_schedule": "arg_groups/overrides.py:1624",
    "disable_radix_cache": "arg_groups/pd_disaggregation_hook.py:131",
    "enable_mixed_chunk": "arg_groups/speculative_hook.py:1126",
    "enable_symm_mem": "arg_groups/model_overrides/kimi_k3.py:56",
}
"""Changes that are told whether or not the field was set, with where the engine makes them."""

_WHERE_SET = {
    "attention_backend": "arg_groups/overrides.py:1130",
    "prefill_attention_backend": "arg_groups/model_overrides/",
    "decode_attention_backend": "arg_groups/model_overrides/",
    "cuda_graph_max_bs_decode": "arg_groups/memory_hook.py:206",
    "cuda_graph_max_bs_prefill": "arg_groups/cuda_graph_hook.py:315",
    "cuda_graph_bs_prefill": "arg_groups/cuda_graph_hook.py:315",
    "speculative_num_steps": "arg_groups/speculative_hook.py:362",
    "speculative_eagle_topk": "arg_groups/speculative_hook.py:378",
    "speculative_num_draft_tokens": "arg_groups/speculative_hook.py:1253",
    "flashinfer_allreduce_fusion_backend": "arg_groups/overrides.py:1004",
}
"""Changes that are told only where the field was set: left open, it was for the engine to fill in."""

_DEFAULT = Layout()


def adjustments_of(asked: Layout, effective: Layout, target: Target, facts: VersionFacts) -> tuple[Adjustment, ...]:
    """Every change that was not asked for."""
    found = [
        _adjustment(name, getattr(asked, name), getattr(effective, name), source)
        for name, source in _ALWAYS.items()
        if getattr(asked, name) != getattr(effective, name)
    ]
    found += [
        Adjustment(name=name, before=str(getattr(asked, name)), after=str(getattr(effective, name)), source=source)
        for name, source in _WHERE_SET.items()
        if getattr(asked, name) not in (getattr(_DEFAULT, name), getattr(effective, name))
    ]
    if effective.page_size != (asked.page_size or 1):
        before = "default 1" if asked.page_size is None else str(asked.page_size)
        found.append(
            Adjustment(
                name="page_size", before=before, after=str(effective.page_size), source="arg_groups/overrides.py:1144"
            )
        )
    if effective.attn_dp_size > 1:
        found += _of_attention_data_parallelism(asked, effective, target, facts)
    return (*found, *_of_graphs(asked, effective, target, facts))


def _adjustment(name: str, before: object, after: object, source: str) -> Adjustment:
    is_default = before == getattr(_DEFAULT, name)
    return Adjustment(
        name=name, before=f"default {before}" if is_default else str(before), after=str(after), source=source
    )


def _of_attention_data_parallelism(
    asked: Layout, effective: Layout, target: Target, facts: VersionFacts
) -> tuple[Adjustment, Adjustment]:
    chunk = asked.chunked_prefill_size
    if chunk is None:
        chunk = default_chunked_prefill_size(target, facts)
    after = effective.schedule_conservativeness
    return (
        Adjustment(
            name="chunked_prefill_size",
            before=str(chunk),
            after=str(effective.chunked_prefill_size),
            source="arg_groups/parallel_hook.py:328",
        ),
        _adjustment(
            "schedule_conservativeness",
            asked.schedule_conservativeness,
            f"{after:g}",
            "arg_groups/parallel_hook.py:315",
        ),
    )


def _of_graphs(asked: Layout, effective: Layout, target: Target, facts: VersionFacts) -> list[Adjustment]:
    """Graphs that do not run, or otherwise than they were asked for."""
    if target.is_cpu:
        return []
    found = []
    is_off = asked.disable_prefill_cuda_graph
    before = asked.cuda_graph_backend_prefill or ("disabled" if is_off else facts.prefill_graph)
    if effective.cuda_graph_backend_prefill not in (before, None):
        found.append(
            Adjustment(
                name="prefill_cuda_graph",
                before=before,
                after=effective.cuda_graph_backend_prefill or "",
                source="arg_groups/cuda_graph_hook.py:170",
            )
        )
    before = asked.cuda_graph_backend_decode or ("disabled" if asked.disable_decode_cuda_graph else "full")
    if effective.cuda_graph_backend_decode not in (before, None):
        found.append(
            Adjustment(
                name="decode_cuda_graph",
                before=before,
                after=effective.cuda_graph_backend_decode or "",
                source="arg_groups/moe_hook.py:384",
            )
        )
    return found
