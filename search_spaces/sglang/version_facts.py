"""What argument resolution does otherwise in older releases, as data (every release from 0.5.9 was read and asked)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from search_spaces.sglang.versions import EngineVersion, release_0_5

MIB_PER_GIB = 1024


class SmallCard(NamedTuple):
    """Defaults of cards from 20 to 35 GiB: prefill chunk, and decode-graph limit for tp_size < 4 and above."""

    chunk: int
    narrow_graph: int
    wide_graph: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFacts:
    """prefill_graph: how prefill graphs are captured unless something speaks against it.
    draft_reserve_mib: memory set aside for a draft model; `standalone_reserve_mib` for a separate one.
    sizes_by_role: whether prefill and decode servers of a disaggregated pair get memory fractions of their own.
    limits_graph_to_chunk: whether prefill graphs follow the chunk that attention data parallelism divides.
    limits_graph_to_context: whether prefill graphs are held below `--context-length`.
    overlaps_eagle, overlaps_drafts: whether the scheduler still overlaps with EAGLE's drafts, and with all others'.
    mixes_drafts: whether some drafts may be mixed with prefill chunks.
    tells_modelopt_apart: whether a checkpoint of ModelOpt is known by its precision, or only as `modelopt`.
    takes_deepseek_for_fp8: whether DeepSeek V3's class stands for FP8 where the config names no quantisation.
    """

    version: EngineVersion
    small_card: SmallCard
    cpu_mem_fraction: float
    prefill_graph: str
    largest_mla_prefill_graph: int
    draft_reserve_mib: int
    standalone_reserve_mib: int
    sizes_by_role: bool
    limits_graph_to_chunk: bool
    limits_graph_to_context: bool
    limits_pipeline_graphs: bool
    limits_graph_to_requests: bool
    expands_vision_graphs: bool
    drops_prefill_graphs_on_decode: bool
    keeps_vision_memory_on_decode: bool
    aligns_deepep_prefill: bool
    prefers_low_latency: bool
    mori_is_always_normal: bool
    spares_trtllm_mla_prefill: bool
    online_mxfp8_runner: str
    prefers_cutlass_on_sm120: bool
    gpt_oss_runner_on_sm120: str
    trtllm_mha_pages: tuple[int, ...]
    fuses_cutedsl_experts: bool
    stops_prefill_graphs_for_trtllm: bool
    dsa_backend: str
    overlaps_eagle: bool
    overlaps_drafts: bool
    mixes_drafts: bool
    tells_modelopt_apart: bool
    takes_deepseek_for_fp8: bool


@cache
def facts_of(version: EngineVersion) -> VersionFacts:
    def since(patch: int) -> bool:
        return version >= release_0_5(patch)

    return VersionFacts(
        version=version,
        small_card=SmallCard(4096, 48, 160) if since(20) else SmallCard(2048, 24, 80),
        cpu_mem_fraction=0.95 if since(20) else 0.88,
        prefill_graph="breakable" if since(15) else "tc_piecewise" if since(10) else "disabled",
        largest_mla_prefill_graph=8192 if since(23) else 2048,
        draft_reserve_mib=0 if since(14) else (4 if since(10) else 2) * MIB_PER_GIB,
        standalone_reserve_mib=0 if since(14) else 6 * MIB_PER_GIB,
        sizes_by_role=since(15),
        limits_graph_to_chunk=since(16),
        limits_graph_to_context=since(13) and not since(17),
        limits_pipeline_graphs=since(19),
        limits_graph_to_requests=since(22),
        expands_vision_graphs=since(20),
        drops_prefill_graphs_on_decode=since(16),
        keeps_vision_memory_on_decode=since(17),
        aligns_deepep_prefill=since(17),
        prefers_low_latency=since(17),
        mori_is_always_normal=not since(10),
        spares_trtllm_mla_prefill=since(15),
        online_mxfp8_runner="flashinfer_trtllm" if since(10) else "cutlass",
        prefers_cutlass_on_sm120=since(13),
        trtllm_mha_pages=(16, 32, 64, 128) if since(17) else (16, 32, 64),
        gpt_oss_runner_on_sm120=(
            "flashinfer_mxfp4" if since(17) or not since(10) else "marlin" if since(14) else "triton_kernel"
        ),
        fuses_cutedsl_experts=not since(11),
        stops_prefill_graphs_for_trtllm=since(10) and not since(13),
        dsa_backend="dsa" if since(13) else "nsa",
        overlaps_eagle=since(11),
        overlaps_drafts=since(14),
        mixes_drafts=since(19),
        tells_modelopt_apart=since(10),
        takes_deepseek_for_fp8=not since(12),
    )
