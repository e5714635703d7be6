"""Rules on the type of the KV cache."""

from __future__ import annotations

from search_spaces.sglang.attention_backends import FP4_PREFILL_BACKENDS, backends_by_phase
from search_spaces.sglang.rule import Launch, Rule, says
from search_spaces.sglang.versions import release_0_5
from search_spaces.verdict import Stage

_FP4_TYPES = frozenset({"nvfp4", "fp4_mx_block16"})
_FP4_ALGORITHMS = frozenset({"EAGLE", "EAGLE3", "NEXTN", "NGRAM"})


def _phases(launch: Launch) -> tuple[str | None, str | None]:
    return backends_by_phase(launch.effective)


def _declared_phases(launch: Launch) -> tuple[str | None, str | None]:
    """Before what is open is filled in."""
    return backends_by_phase(launch.declared)


SPARSE = (
    Rule(
        id="kv_dtype.sparse",
        stage=Stage.RESOLVE,
        source="arg_groups/overrides.py:545",
        concerns=frozenset({"kv_cache_dtype", "attention_backend", "decode_attention_backend"}),
        broken=lambda launch: (
            launch.target.is_dsa and launch.declared.kv_cache_dtype not in ("auto", "bfloat16", "fp8_e4m3")
        ),
        message=lambda launch: (
            f"sparse attention keeps its cache in bf16 or fp8_e4m3, not {launch.declared.kv_cache_dtype}"
        ),
        exception="AssertionError",
        engine_text=says("DeepSeek DSA only supports bf16/bfloat16 or fp8_e4m3 kv_cache_dtype"),
    ),
    Rule(
        id="kv_dtype.deepseek_v4",
        stage=Stage.RESOLVE,
        source="arg_groups/overrides.py:907",
        architectures=frozenset({"DeepseekV4ForCausalLM"}),
        broken=lambda launch: (
            launch.model.architecture == "DeepseekV4ForCausalLM"
            and launch.declared.kv_cache_dtype not in ("bfloat16", "fp8_e4m3")
        ),
        message=lambda launch: (
            f"DeepSeek-V4 keeps its cache in bfloat16 or fp8_e4m3, not {launch.declared.kv_cache_dtype}"
        ),
        exception="AssertionError",
        engine_text=lambda launch: f"{launch.declared.kv_cache_dtype} is not supported for {launch.model.architecture}",
    ),
)

FP4_CACHE = (
    Rule(
        id="kv_dtype.fp4_prefill",
        stage=Stage.RESOLVE,
        source="arg_groups/kv_cache_hook.py:52",
        concerns=frozenset({"kv_cache_dtype"}),
        broken=lambda launch: (
            launch.asked.kv_cache_dtype == "nvfp4" and _declared_phases(launch)[0] not in (*FP4_PREFILL_BACKENDS, None)
        ),
        message=lambda launch: (
            f"an NVFP4 cache is read in prefill by {' or '.join(FP4_PREFILL_BACKENDS)}, not by "
            f"{_declared_phases(launch)[0]}"
        ),
        exception="ValueError",
        engine_text=says("NVFP4 prefill supports an FP8 E4M3 workspace or native NVFP4, but backend"),
        since=release_0_5(21),
    ),
    Rule(
        id="kv_dtype.fp4_native",
        stage=Stage.RESOLVE,
        source="arg_groups/kv_cache_hook.py:60",
        concerns=frozenset({"kv_cache_dtype"}),
        broken=lambda launch: (
            launch.asked.kv_cache_dtype == "nvfp4"
            and _declared_phases(launch)[0] == "trtllm_mha"
            and not launch.target.is_sm100
        ),
        message=lambda launch: (
            f"native NVFP4 prefill needs compute capability 10.x, {launch.cluster.gpu.key} has "
            f"{launch.cluster.gpu.sm / 10:g}"
        ),
        exception="ValueError",
        engine_text=says("Native NVFP4 prefill currently requires SM100;"),
        since=release_0_5(21),
    ),
    Rule(
        id="kv_dtype.fp4_decode",
        stage=Stage.RESOLVE,
        source="arg_groups/kv_cache_hook.py:80",
        concerns=frozenset({"kv_cache_dtype"}),
        broken=lambda launch: (
            launch.asked.kv_cache_dtype == "nvfp4"
            and launch.declared.decode_attention_backend not in (None, "trtllm_mha")
        ),
        message=lambda launch: (
            f"an NVFP4 cache is read in decode by trtllm_mha, not by {launch.declared.decode_attention_backend}"
        ),
        exception="ValueError",
        engine_text=says("NVFP4 decode requires --decode-attention-backend=trtllm_mha;"),
        since=release_0_5(21),
    ),
)


def _keeps_native_fp4(launch: Launch) -> bool:
    """TensorRT-LLM's own FP4 cache (kv_cache_hook.py:143)."""
    return launch.asked.kv_cache_dtype == "nvfp4" and launch.target.is_sm100 and "trtllm_mha" in _phases(launch)


def _fp4_readers(launch: Launch) -> tuple[str, ...]:
    """The backends that read an FP4 cache, for what the rule looks at (kv_cache_hook.py:271)."""
    if _phases(launch)[0] == "fa4":
        return ("flashinfer", "trtllm_mla") if launch.target.is_mla else ("triton", "torch_native", "flex_attention")
    if launch.target.is_mla:
        return "flashinfer", "trtllm_mla"
    return "triton", "torch_native", "flex_attention", "trtllm_mha"


def _fp4_reader(launch: Launch) -> str | None:
    prefill, decode = _phases(launch)
    return decode if prefill == "fa4" else launch.effective.attention_backend


def _cannot_read_fp4(launch: Launch) -> bool:
    prefill, decode = _phases(launch)
    if launch.asked.kv_cache_dtype not in _FP4_TYPES or prefill not in (decode, "fa4"):
        return False
    return _fp4_reader(launch) not in _fp4_readers(launch)


def _fp4_text(launch: Launch) -> str:
    kind = "MLA" if launch.target.is_mla else "MHA"
    is_fa4 = _phases(launch)[0] == "fa4"
    asked = f"FA4 {kind} expects decode_attention_backend" if is_fa4 else f"{kind} expects attention_backend"
    return f"KV4 {asked} to be one of {list(_fp4_readers(launch))}, but got {_fp4_reader(launch)}"


KV_CACHE = (
    Rule(
        id="kv_dtype.fp4_gpu",
        stage=Stage.RESOLVE,
        source="arg_groups/kv_cache_hook.py:128",
        concerns=frozenset({"kv_cache_dtype"}),
        broken=lambda launch: launch.asked.kv_cache_dtype == "nvfp4" and not launch.target.is_blackwell,
        message=lambda launch: (
            f"--kv-cache-dtype nvfp4 needs compute capability 10.x or 12.x, {launch.cluster.gpu.key} has "
            f"{launch.cluster.gpu.sm / 10:g}"
        ),
        exception="RuntimeError",
        engine_text=says(
            "--kv-cache-dtype=nvfp4 requires Blackwell SM100 or SM120. Use --kv-cache-dtype=fp4_mx_block16 for the "
            "block-size-16 FP4 recipe."
        ),
        since=release_0_5(16),
    ),
    Rule(
        id="kv_dtype.fp4_block_drafts",
        stage=Stage.RESOLVE,
        source="arg_groups/kv_cache_hook.py:172",
        concerns=frozenset({"kv_cache_dtype"}),
        broken=lambda launch: (
            _keeps_native_fp4(launch) and (launch.asked.speculative_algorithm or "").upper() in ("DFLASH", "DSPARK")
        ),
        message=lambda launch: (
            f"a native NVFP4 cache takes no drafts of {launch.asked.speculative_algorithm}; EAGLE and NGRAM work"
        ),
        exception="ValueError",
        engine_text=says("SM100 native NVFP4 speculative decoding does not yet support"),
        since=release_0_5(21),
    ),
    Rule(
        id="kv_dtype.fp4_drafts",
        stage=Stage.RESOLVE,
        source="arg_groups/kv_cache_hook.py:184",
        concerns=frozenset({"kv_cache_dtype"}),
        broken=lambda launch: (
            _keeps_native_fp4(launch)
            and launch.asked.speculative_algorithm is not None
            and launch.asked.speculative_algorithm.upper() not in {*_FP4_ALGORITHMS, "DFLASH", "DSPARK"}
        ),
        message=lambda launch: (
            f"a native NVFP4 cache takes no drafts of {launch.asked.speculative_algorithm}; EAGLE and NGRAM work"
        ),
        exception="ValueError",
        engine_text=says("SM100 native NVFP4 speculative decoding supports EAGLE, EAGLE3, NEXTN, and breadth-1 NGRAM;"),
        since=release_0_5(21),
    ),
    Rule(
        id="kv_dtype.fp4_ngram",
        stage=Stage.RESOLVE,
        source="arg_groups/kv_cache_hook.py:198",
        concerns=frozenset({"kv_cache_dtype"}),
        broken=lambda launch: (
            _keeps_native_fp4(launch) and (launch.asked.speculative_algorithm or "").upper() == "NGRAM"
        ),
        message=says("a native NVFP4 cache takes NGRAM drafts of breadth 1 only (--speculative-ngram-max-bfs-breadth)"),
        exception="ValueError",
        engine_text=says(
            "SM100 native NVFP4 NGRAM speculative decoding requires --speculative-ngram-max-bfs-breadth=1"
        ),
        since=release_0_5(21),
    ),
    Rule(
        id="kv_dtype.fp4_disaggregation",
        stage=Stage.RESOLVE,
        source="arg_groups/kv_cache_hook.py:252",
        concerns=frozenset({"kv_cache_dtype"}),
        broken=lambda launch: _keeps_native_fp4(launch) and launch.asked.disaggregation_mode != "null",
        message=says("a native NVFP4 cache cannot be transferred between prefill and decode servers"),
        exception="ValueError",
        engine_text=says("SM100 native NVFP4 with trtllm_mha does not yet support PD disaggregation"),
        since=release_0_5(21),
    ),
    Rule(
        id="kv_dtype.fp4_readers",
        stage=Stage.RESOLVE,
        source="arg_groups/kv_cache_hook.py:271",
        concerns=frozenset({"kv_cache_dtype"}),
        broken=_cannot_read_fp4,
        message=lambda launch: (
            f"an FP4 cache is read by {', '.join(_fp4_readers(launch))}, not by {_fp4_reader(launch)}"
        ),
        exception="AssertionError",
        engine_text=_fp4_text,
    ),
    Rule(
        id="kv_dtype.mxfp8_gpu",
        stage=Stage.RESOLVE,
        source="arg_groups/kv_cache_hook.py:105",
        concerns=frozenset({"kv_cache_dtype"}),
        broken=lambda launch: launch.asked.kv_cache_dtype == "mxfp8" and not launch.target.is_blackwell,
        message=lambda launch: (
            f"--kv-cache-dtype mxfp8 needs compute capability 10.x or 12.x, {launch.cluster.gpu.key} has "
            f"{launch.cluster.gpu.sm / 10:g}"
        ),
        exception="ValueError",
        engine_text=says("--kv-cache-dtype mxfp8 requires an SM100+ (Blackwell) GPU"),
    ),
)
