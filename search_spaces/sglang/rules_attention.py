"""Rules on attention backends."""

from __future__ import annotations

from search_spaces.sglang.attention_backends import backends_by_phase
from search_spaces.sglang.rule import Launch, Rule, says
from search_spaces.sglang.versions import release_0_5
from search_spaces.verdict import Stage

_FLAGS = frozenset({"attention_backend", "prefill_attention_backend", "decode_attention_backend", "kv_cache_dtype"})
_GPT_OSS_BACKENDS = ("triton", "trtllm_mha", "fa3", "fa4", "ascend", "intel_amx", "intel_xpu", "aiter")
_GEMMA4_BACKENDS = ("trtllm_mha", "triton", "fa4", "ascend", "intel_xpu", "intel_amx", "aiter")
_LLAMA4_BACKENDS = ("fa3", "aiter", "triton", "ascend", "trtllm_mha", "intel_xpu")
_GEMMA4 = frozenset({"Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"})
_LLAMA4 = frozenset({"Llama4ForCausalLM", "Llama4ForConditionalGeneration"})


def _phases(launch: Launch) -> tuple[str | None, str | None]:
    return backends_by_phase(launch.effective)


def _declared_phases(launch: Launch) -> tuple[str | None, str | None]:
    """As the architecture's own checks see them, before what is open is filled in."""
    return backends_by_phase(launch.declared)


def _runs_none_of(launch: Launch, accepted: tuple[str, ...]) -> bool:
    return not all(backend in accepted for backend in _declared_phases(launch))


def _names(launch: Launch, backend: str) -> bool:
    """Whether `backend` is the main one or that of decode; what the engine asks where prefill is not concerned."""
    return backend in (launch.effective.attention_backend, launch.effective.decode_attention_backend)


def _names_anywhere(launch: Launch, backend: str) -> bool:
    return _names(launch, backend) or launch.effective.prefill_attention_backend == backend


def _is_mha_gpu(launch: Launch) -> bool:
    return launch.target.is_sm90 or launch.target.is_blackwell


MODEL_BACKENDS = (
    Rule(
        id="attention.gpt_oss",
        stage=Stage.RESOLVE,
        source="arg_groups/model_hook.py:540",
        architectures=frozenset({"GptOssForCausalLM"}),
        broken=lambda launch: (
            launch.model.architecture == "GptOssForCausalLM"
            and not launch.cluster.gpu.is_cpu
            and _runs_none_of(launch, _GPT_OSS_BACKENDS)
        ),
        message=lambda launch: (
            f"GptOssForCausalLM needs one of the attention backends {', '.join(_GPT_OSS_BACKENDS)}, but has "
            f"{' and '.join(map(str, _declared_phases(launch)))}"
        ),
        exception="AssertionError",
        engine_text=lambda launch: (
            f"GptOssForCausalLM requires one of {list(_GPT_OSS_BACKENDS)} attention backend, but got the following "
            f"backends\n- Prefill: {_declared_phases(launch)[0]}\n- Decode: {_declared_phases(launch)[1]}\n"
        ),
    ),
    Rule(
        id="attention.llama4",
        stage=Stage.RESOLVE,
        source="arg_groups/model_hook.py:625",
        architectures=frozenset({"Llama4ForCausalLM", "Llama4ForConditionalGeneration"}),
        broken=lambda launch: (
            launch.model.architecture in _LLAMA4
            and not launch.cluster.gpu.is_cpu
            and launch.declared.attention_backend not in _LLAMA4_BACKENDS
        ),
        message=lambda launch: (
            f"{launch.model.architecture} needs one of the attention backends {', '.join(_LLAMA4_BACKENDS)}, but has "
            f"{launch.declared.attention_backend}"
        ),
        exception="AssertionError",
        engine_text=lambda launch: (
            "fa3, aiter, triton, ascend, trtllm_mha or intel_xpu is required for Llama4 model but got "
            f"{launch.declared.attention_backend}"
        ),
        since=release_0_5(10),
    ),
    Rule(
        id="attention.gemma4",
        stage=Stage.RESOLVE,
        source="arg_groups/model_hook.py:660",
        architectures=frozenset({"Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"}),
        broken=lambda launch: (
            launch.model.architecture in _GEMMA4
            and not launch.cluster.gpu.is_cpu
            and _runs_none_of(launch, _GEMMA4_BACKENDS)
        ),
        message=lambda launch: (
            f"Gemma4 needs one of the attention backends {', '.join(_GEMMA4_BACKENDS)}, but has "
            f"{' and '.join(map(str, _declared_phases(launch)))}"
        ),
        exception="AssertionError",
        engine_text=lambda launch: (
            "Gemma4 only supports trtllm_mha, triton, fa4, ascend, intel_xpu, intel_amx, or aiter attention backend, "
            f"got prefill={_declared_phases(launch)[0]}, decode={_declared_phases(launch)[1]}"
        ),
        since=release_0_5(22),
    ),
)

BACKENDS = (
    Rule(
        id="attention.flex_speculation",
        stage=Stage.RESOLVE,
        source="arg_groups/attention_hook.py:166",
        concerns=_FLAGS,
        broken=lambda launch: (
            launch.effective.attention_backend == "flex_attention" and launch.asked.speculative_algorithm is not None
        ),
        message=says("--attention-backend flex_attention cannot be combined with speculative decoding"),
        exception="AssertionError",
        engine_text=says("Speculative decoding is currently not supported with Flex Attention backend"),
    ),
    Rule(
        id="attention.trtllm_mla.gpu",
        stage=Stage.RESOLVE,
        source="arg_groups/overrides.py:1211",
        concerns=_FLAGS,
        broken=lambda launch: _names(launch, "trtllm_mla") and not launch.target.is_blackwell,
        message=lambda launch: (
            f"--attention-backend trtllm_mla needs compute capability 10.x or 12.x, {launch.cluster.gpu.key} has "
            f"{launch.cluster.gpu.sm / 10:g}"
        ),
        exception="ValueError",
        engine_text=says(
            "TRTLLM MLA backend is only supported on Blackwell GPUs (SM100/SM12x). Please use a different backend."
        ),
    ),
    Rule(
        id="attention.trtllm_mla.kv_dtype",
        stage=Stage.RESOLVE,
        source="arg_groups/overrides.py:1215",
        concerns=_FLAGS,
        broken=lambda launch: (
            _names(launch, "trtllm_mla") and launch.effective.kv_cache_dtype not in ("fp8_e4m3", "bf16", "auto")
        ),
        message=lambda launch: (
            "--attention-backend trtllm_mla takes --kv-cache-dtype auto, bf16 or fp8_e4m3, not "
            f"{launch.effective.kv_cache_dtype}"
        ),
        exception="ValueError",
        engine_text=says("TensorRT-LLM MLA backend only supports kv-cache-dtype of fp8_e4m3, bf16, or auto."),
        since=release_0_5(21),
    ),
    Rule(
        id="attention.trtllm_mla.kv_dtype",
        stage=Stage.RESOLVE,
        source="0.5.20 arg_groups/overrides.py:1096",
        concerns=_FLAGS,
        broken=lambda launch: (
            _names(launch, "trtllm_mla")
            and launch.effective.kv_cache_dtype not in ("fp8_e4m3", "fp4_e2m1", "bf16", "bfloat16", "auto")
        ),
        message=lambda launch: f"trtllm_mla cannot read a {launch.effective.kv_cache_dtype} cache",
        exception="ValueError",
        engine_text=says("TensorRT-LLM MLA backend only supports kv-cache-dtype of fp8_e4m3, fp4_e2m1, bf16, or auto."),
        until=release_0_5(20),
    ),
    Rule(
        id="attention.cutedsl_mla.prefill",
        stage=Stage.RESOLVE,
        source="arg_groups/overrides.py:1242",
        broken=lambda launch: launch.declared.prefill_attention_backend == "cutedsl_mla",
        message=says("cutedsl_mla is for decode, not for prefill"),
        exception="AssertionError",
        engine_text=says("CuteDSL MLA only supports decoding for now"),
    ),
    Rule(
        id="attention.cutedsl_mla.gpu",
        stage=Stage.RESOLVE,
        source="arg_groups/overrides.py:1246",
        broken=lambda launch: _names_anywhere(launch, "cutedsl_mla") and not launch.target.is_sm100,
        message=lambda launch: (
            f"cutedsl_mla needs compute capability 10.x, {launch.cluster.gpu.key} has {launch.cluster.gpu.sm / 10:g}"
        ),
        exception="ValueError",
        engine_text=says(
            "CuteDSL MLA backend is only supported on Blackwell GPUs (SM100). Please use a different backend."
        ),
    ),
    Rule(
        id="attention.cutedsl_mla.kv_dtype",
        stage=Stage.RESOLVE,
        source="arg_groups/overrides.py:1250",
        broken=lambda launch: (
            _names_anywhere(launch, "cutedsl_mla")
            and launch.effective.kv_cache_dtype not in ("fp8_e4m3", "bf16", "bfloat16", "auto")
        ),
        message=lambda launch: (
            f"cutedsl_mla takes --kv-cache-dtype auto, bf16 or fp8_e4m3, not {launch.effective.kv_cache_dtype}"
        ),
        exception="ValueError",
        engine_text=says("CuteDSL MLA backend only supports kv-cache-dtype of fp8_e4m3, bf16, or auto."),
    ),
    Rule(
        id="attention.trtllm_mha.prefill_gpu",
        stage=Stage.RESOLVE,
        source="arg_groups/attention_hook.py:215",
        concerns=_FLAGS,
        broken=lambda launch: _phases(launch)[0] == "trtllm_mha" and not _is_mha_gpu(launch),
        message=lambda launch: (
            f"trtllm_mha needs compute capability 9.x, 10.x or 12.x, {launch.cluster.gpu.key} has "
            f"{launch.cluster.gpu.sm / 10:g}"
        ),
        exception="ValueError",
        engine_text=says("TRTLLM MHA backend for prefill requires Hopper (SM90), Blackwell (SM100), or SM120 GPUs."),
        since=release_0_5(19),
    ),
    Rule(
        id="attention.trtllm_mha.prefill_gpu",
        stage=Stage.RESOLVE,
        source="0.5.10 server_args.py:2394",
        concerns=_FLAGS,
        broken=lambda launch: _phases(launch)[0] == "trtllm_mha" and not launch.target.is_sm100,
        message=lambda launch: (
            f"trtllm_mha's prefill needs compute capability 10.x, {launch.cluster.gpu.key} has "
            f"{launch.cluster.gpu.sm / 10:g}"
        ),
        exception="ValueError",
        engine_text=says("TRTLLM MHA backend for prefill is only supported on Blackwell GPUs (SM100)."),
        since=release_0_5(10),
        until=release_0_5(18),
    ),
    Rule(
        id="attention.trtllm_mha.gpu",
        stage=Stage.RESOLVE,
        source="0.5.9 server_args.py:1936",
        concerns=_FLAGS,
        broken=lambda launch: "trtllm_mha" in _phases(launch) and not launch.target.is_sm100,
        message=lambda launch: (
            f"trtllm_mha needs compute capability 10.x, {launch.cluster.gpu.key} has {launch.cluster.gpu.sm / 10:g}"
        ),
        exception="ValueError",
        engine_text=says("TRTLLM MHA backend is only supported on Blackwell GPUs (SM100)."),
        until=release_0_5(9),
    ),
    Rule(
        id="attention.trtllm_mha.fp8",
        stage=Stage.RESOLVE,
        source="arg_groups/attention_hook.py:229",
        concerns=_FLAGS,
        broken=lambda launch: (
            _phases(launch)[0] == "trtllm_mha"
            and launch.target.is_sm120
            and launch.effective.kv_cache_dtype == "fp8_e4m3"
        ),
        message=says("trtllm_mha's prefill on compute capability 12.x reads no fp8_e4m3 cache"),
        exception="ValueError",
        engine_text=says("TRTLLM FMHAv2 prefill on SM120 does not support fp8_e4m3 KV cache or skip-softmax."),
        since=release_0_5(19),
    ),
    Rule(
        id="attention.trtllm_mha.decode_gpu",
        stage=Stage.RESOLVE,
        source="arg_groups/attention_hook.py:237",
        concerns=_FLAGS,
        broken=lambda launch: _phases(launch)[1] == "trtllm_mha" and not _is_mha_gpu(launch),
        message=lambda launch: (
            f"trtllm_mha needs compute capability 9.x, 10.x or 12.x, {launch.cluster.gpu.key} has "
            f"{launch.cluster.gpu.sm / 10:g}"
        ),
        exception="ValueError",
        engine_text=says(
            "TRTLLM MHA backend for decode is only supported on Hopper (SM90), Blackwell (SM100) and (SM120)"
        ),
        since=release_0_5(10),
    ),
    Rule(
        id="attention.trtllm_mha.attn_cp",
        stage=Stage.RESOLVE,
        source="arg_groups/attention_hook.py:246",
        broken=lambda launch: (
            _phases(launch)[0] == "trtllm_mha" and not launch.target.is_sm100 and launch.declared.attn_cp_size > 1
        ),
        message=lambda launch: (
            "trtllm_mha's prefill splits a context on compute capability 10.x only "
            f"(attn_cp_size={launch.declared.attn_cp_size})"
        ),
        exception="ValueError",
        engine_text=says("Prefill context parallelism with the TRTLLM MHA prefill backend requires SM100"),
        since=release_0_5(19),
    ),
)
