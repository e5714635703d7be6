"""What the engine silently makes of a layout (sglang 0.5.23, arg_groups/pipeline.py)."""

from __future__ import annotations

from dataclasses import replace

from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.sglang.memory_defaults import (
    default_chunked_prefill_size,
    default_decode_graph_max_bs,
    default_mem_fraction_static,
)
from search_spaces.sglang.target import Target
from search_spaces.sglang.versions import NEWEST, EngineVersion
from search_spaces.verdict import Adjustment

EP_SPANNING_BACKENDS = frozenset(
    {
        "ascend_fuseep",
        "deepep",
        "deepep_v2",
        "flashinfer",
        "flashinfer_megamoe",
        "megamoe",
        "mooncake",
        "mori",
        "nixl",
        "pplx",
    }
)
"""All-to-all backends whose expert group is the whole TP group (arg_groups/overrides.py:1579)."""

_GRAPH_READY_BACKENDS = frozenset({"none", "deepep", "megamoe", "flashinfer"})
_UNFUSING_RUNNERS = frozenset(
    {"experimental_sgl_trtllm", "flashinfer_cutedsl", "flashinfer_trtllm", "flashinfer_trtllm_routed"}
)
_UNFUSING_BACKENDS = frozenset({"deepep_v2", "flashinfer", "flashinfer_megamoe"})

_SOURCES = {
    "attn_dp_size": "arg_groups/parallel_hook.py:53",
    "chunked_prefill_size": "arg_groups/parallel_hook.py:328",
    "cuda_graph_max_bs_decode": "arg_groups/memory_hook.py:206",
    "deepep_mode": "arg_groups/moe_hook.py:362",
    "enable_dp_lm_head": "arg_groups/overrides.py:1367",
    "ep_size": "arg_groups/overrides.py:1611",
    "moe_a2a_backend": "arg_groups/moe_hook.py:463",
    "moe_runner_backend": "arg_groups/model_overrides/",
    "page_size": "arg_groups/overrides.py:1144",
}


def resolve(
    layout: Layout, model: Model, cluster: Cluster, version: EngineVersion = NEWEST
) -> tuple[Layout, tuple[Adjustment, ...]]:
    """The layout with every automatic value filled in, and what was changed without being asked.

    Filling in a value that was left open (chunk, graph limit, memory fraction) is no change; overriding
    one, or choosing another than the documented default, is. `version` does not matter so far: every
    rule here holds for all versions that are known.
    """
    del version
    target = Target(model=model, gpu=cluster.gpu)
    effective = effective_layout(layout, target)
    return effective, _adjustments(layout, effective, target)


def effective_layout(layout: Layout, target: Target) -> Layout:
    """The layout that runs; where it is illegal, as far as the engine gets."""
    a2a, runner = _unaliased(layout)
    chunk = layout.chunked_prefill_size
    if chunk is None:
        chunk = default_chunked_prefill_size(target)
    graph_bs = layout.cuda_graph_max_bs_decode
    if graph_bs is None or target.gpu.is_cpu:
        graph_bs = default_decode_graph_max_bs(target, layout)
    fraction = layout.mem_fraction_static
    if fraction is None:
        sized = replace(layout, moe_a2a_backend=a2a, chunked_prefill_size=chunk, cuda_graph_max_bs_decode=graph_bs)
        fraction = default_mem_fraction_static(
            target, sized, has_prefill_graph=_starts_with_prefill_graph(layout, target)
        )
    runner = target.moe_runner_backend(runner, a2a)
    mode = layout.deepep_mode
    match a2a:
        case "deepep" if runner == "flashinfer_cutedsl" and mode == "auto":
            mode = "low_latency"
        case "deepep_v2" if runner == "auto":
            runner = "deep_gemm"
        case "flashinfer_megamoe" if runner == "auto":
            runner = "flashinfer_megamoe"
        case "mori" if mode == "auto":
            mode = "normal"
        case "pplx":
            mode = "low_latency" if mode == "auto" else mode
            runner = "deep_gemm" if runner == "auto" else runner
        case "ascend_tp":
            a2a = "none"
        case _:
            pass
    return replace(
        layout,
        ep_size=layout.tp_size if a2a in EP_SPANNING_BACKENDS else layout.ep_size,
        moe_a2a_backend=a2a,
        moe_runner_backend=runner,
        deepep_mode=mode,
        mem_fraction_static=fraction,
        chunked_prefill_size=chunk // layout.attn_dp_size if layout.attn_dp_size > 1 else chunk,
        page_size=target.page_size(layout.page_size),
        cuda_graph_max_bs_decode=graph_bs,
        enable_dp_lm_head=layout.enable_dp_lm_head and layout.attn_dp_size > 1,
    )


def _unaliased(layout: Layout) -> tuple[str, str]:
    """All-to-all backend and runner, the runner `megamoe` read as the backend (mega_moe_hook.py:260)."""
    if layout.moe_runner_backend == "megamoe":
        return "megamoe", "auto"
    return layout.moe_a2a_backend, layout.moe_runner_backend


def _starts_with_prefill_graph(layout: Layout, target: Target) -> bool:
    """Whether memory is reserved for a prefill graph (arg_groups/cuda_graph_hook.py:170-256)."""
    return (
        not target.gpu.is_cpu
        and layout.pp_size <= 1
        and layout.attn_cp_size <= 1
        and _unaliased(layout)[0] in _GRAPH_READY_BACKENDS
    )


def _adjustments(layout: Layout, effective: Layout, target: Target) -> tuple[Adjustment, ...]:
    default = Layout()
    found: list[Adjustment] = []
    for name in ("moe_a2a_backend", "ep_size", "moe_runner_backend", "deepep_mode", "enable_dp_lm_head"):
        before, after = getattr(layout, name), getattr(effective, name)
        if before != after:
            shown = f"default {before}" if before == getattr(default, name) else str(before)
            found.append(_adjustment(name, shown, after))
    if effective.page_size != (layout.page_size or 1):
        shown = "default 1" if layout.page_size is None else str(layout.page_size)
        found.append(_adjustment("page_size", shown, effective.page_size))
    asked_graph = layout.cuda_graph_max_bs_decode
    if asked_graph is not None and asked_graph != effective.cuda_graph_max_bs_decode:
        found.append(_adjustment("cuda_graph_max_bs_decode", str(asked_graph), effective.cuda_graph_max_bs_decode))
    if layout.attn_dp_size > 1:
        chunk = layout.chunked_prefill_size
        if chunk is None:
            chunk = default_chunked_prefill_size(target)
        found.append(_adjustment("chunked_prefill_size", str(chunk), effective.chunked_prefill_size))
        found.append(
            Adjustment(
                name="schedule_conservativeness",
                before="default 1.0",
                after="0.3",
                source="arg_groups/parallel_hook.py:315",
            )
        )
    return (*found, *_side_effects(layout, effective, target))


def _side_effects(layout: Layout, effective: Layout, target: Target) -> tuple[Adjustment, ...]:
    """Changes to settings that are no part of a layout."""
    a2a, runner = effective.moe_a2a_backend, effective.moe_runner_backend
    found: list[Adjustment] = []
    if layout.pp_size > 1:
        found.append(
            Adjustment(
                name="disable_overlap_schedule",
                before="default False",
                after="True",
                source="arg_groups/overrides.py:1624",
            )
        )
    if runner in _UNFUSING_RUNNERS or a2a in _UNFUSING_BACKENDS:
        found.append(
            Adjustment(
                name="disable_shared_experts_fusion",
                before="default False",
                after="True",
                source="arg_groups/overrides.py:1529",
            )
        )
    if target.gpu.is_cpu:
        return tuple(found)
    deepep_without_graphs = a2a == "deepep" and effective.deepep_mode == "normal"
    refused_by_attention = (
        target.attention_backend == "trtllm_mla" and target.model.architecture == "DeepseekV3ForCausalLM"
    )
    starts = _starts_with_prefill_graph(layout, target)
    if not starts or deepep_without_graphs or refused_by_attention:
        found.append(
            Adjustment(
                name="prefill_cuda_graph",
                before="breakable",
                after="disabled",
                source="arg_groups/cuda_graph_hook.py:170",
            )
        )
    if deepep_without_graphs:
        found.append(
            Adjustment(
                name="decode_cuda_graph",
                before="full",
                after="disabled",
                source="arg_groups/moe_hook.py:384",
            )
        )
    return tuple(found)


def _adjustment(name: str, before: str, after: object) -> Adjustment:
    return Adjustment(name=name, before=before, after=str(after), source=_SOURCES[name])
