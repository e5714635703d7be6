"""Which attention backend runs, and the page size that it insists on (arg_groups/overrides.py:1130-1350 of 0.5.23)."""

from __future__ import annotations

from typing import Any

from search_spaces.layout import Layout
from search_spaces.sglang.target import Target
from search_spaces.sglang.version_facts import VersionFacts

_DEPRECATED = {"compressed": "dsv4", "tokenspeed_mla": "cutedsl_mla"}
FP4_PREFILL_BACKENDS = ("flashinfer", "trtllm_mha")
"""What reads an NVFP4 cache in prefill: by way of FP8, and natively (arg_groups/kv_cache_hook.py:24)."""


def renamed_backends(layout: Layout) -> dict[str, Any]:
    """Deprecated names by their new ones, with what the old ones implied (arg_groups/serving_hook.py:304)."""
    main, prefill, decode = (
        layout.attention_backend,
        layout.prefill_attention_backend,
        layout.decode_attention_backend,
    )
    changes: dict[str, Any] = {}
    if main in _DEPRECATED:
        changes["attention_backend"] = _DEPRECATED[main]
    if decode in _DEPRECATED:
        changes["decode_attention_backend"] = _DEPRECATED[decode]
    if prefill in _DEPRECATED:
        changes["prefill_attention_backend"] = "trtllm_mla" if prefill == "tokenspeed_mla" else _DEPRECATED[prefill]
    if "tokenspeed_mla" in (main, decode):
        changes["kv_cache_dtype"] = "fp8_e4m3"
    return changes


def fp4_cache_backends(layout: Layout, target: Target) -> dict[str, Any]:
    """The backends that read an NVFP4 cache (arg_groups/kv_cache_hook.py:34)."""
    if layout.kv_cache_dtype != "nvfp4":
        return {}
    asked = layout.prefill_attention_backend or layout.attention_backend
    prefill = "trtllm_mha" if target.is_sm100 else "flashinfer"
    return {"prefill_attention_backend": prefill if asked is None else asked, "decode_attention_backend": "trtllm_mha"}


def names_attention_backend(layout: Layout) -> bool:
    """Whether the flags name a backend for any phase."""
    return not (
        layout.attention_backend is None
        and layout.prefill_attention_backend is None
        and layout.decode_attention_backend is None
    )


def backends_by_phase(layout: Layout) -> tuple[str | None, str | None]:
    """The backends of prefill and decode."""
    return (
        layout.prefill_attention_backend or layout.attention_backend,
        layout.decode_attention_backend or layout.attention_backend,
    )


def default_attention_backend(layout: Layout, target: Target) -> str:
    """The automatic choice (arg_groups/model_override_base.py:277)."""
    topk = layout.speculative_eagle_topk
    if target.is_mla:
        return "fa3" if target.is_sm90 else "flashinfer" if target.is_sm100 else "triton"
    drafts_in_line = topk is None or (topk == 1 and layout.page_size in (1, None))
    if target.is_sm90 and drafts_in_line:
        return "fa3"
    algorithm = layout.speculative_algorithm
    is_settled = algorithm is None or topk is not None or algorithm.upper() == "DFLASH"
    if target.is_sm100 and drafts_in_line and is_settled:
        return "fa4" if target.has_asymmetric_kv else "trtllm_mha"
    return "triton" if target.has_attention_sinks else "flashinfer"


def attention_backends(layout: Layout, target: Target, facts: VersionFacts) -> dict[str, Any]:
    """Backend and page size, after the architecture has declared its own; both graphs off where they cannot be."""
    changes: dict[str, Any] = {}
    backend = layout.attention_backend
    prefill, decode = layout.prefill_attention_backend, layout.decode_attention_backend
    if prefill is not None and prefill == decode:
        backend = prefill
    elif backend is None:
        backend = "intel_amx" if target.is_cpu else default_attention_backend(layout, target)
    if backend in ("torch_native", "flex_attention"):
        changes |= {"cuda_graph_backend_decode": "disabled", "cuda_graph_backend_prefill": "disabled"}
    named = {backend, prefill, decode}
    page = _page_size(layout.page_size, backend, named, decode, facts)
    if "cutedsl_mla" in named and prefill is None:
        changes["prefill_attention_backend"] = "trtllm_mla"
    if backend == "fa3" and layout.kv_cache_dtype == "fp8_e5m2":
        backend = "triton"
        named = {backend, prefill, decode}
    if "fa4" in named and target.is_sm100 and not target.is_mla and (layout.speculative_eagle_topk or 0) <= 1:
        page = 128
    return changes | {"attention_backend": backend, "page_size": 1 if page is None else page}


def _page_size(
    page: int | None, backend: str, named: set[str | None], decode: str | None, facts: VersionFacts
) -> int | None:
    """The page sizes that kernels take, in the order in which they are imposed (overrides.py:1144)."""
    if "flashmla" in (backend, decode):
        page = 64
    if "trtllm_mla" in (backend, decode) and page not in (32, 64):
        page = 64
    if "cutedsl_mla" in named and page not in (32, 64):
        page = 64
    if "trtllm_mha" in named and page not in facts.trtllm_mha_pages:
        page = 64
    return 64 if "hpc_ops" in named else page


def kv_cache_dtype(layout: Layout, target: Target) -> dict[str, Any]:
    """The KV-cache type that sparse attention chooses (overrides.py:497, :888); `auto` elsewhere stays open."""
    asked = layout.kv_cache_dtype
    if target.is_dsa and not target.is_cpu:
        if asked == "auto":
            return {"kv_cache_dtype": "fp8_e4m3" if target.gpu.sm >= 100 else "bfloat16"}
        return {"kv_cache_dtype": "bfloat16"} if asked == "bf16" else {}
    if target.model.architecture == "DeepseekV4ForCausalLM" and asked == "auto":
        return {"kv_cache_dtype": "fp8_e4m3"}
    return {}
