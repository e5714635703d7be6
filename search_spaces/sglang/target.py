"""What the engine makes of a checkpoint on a GPU before it looks at the layout."""

from __future__ import annotations

from dataclasses import dataclass

from search_spaces.hardware import Gpu
from search_spaces.model import Model, Scheme

DEEPSEEK_FAMILY = frozenset(
    {
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "GlmMoeDsaForCausalLM",
        "KimiK25ForConditionalGeneration",
    }
)
"""The architectures read here that share DeepSeek's defaults (0.5.23 arg_groups/overrides.py:745)."""

_QUANTIZATION_NAMES = {
    Scheme.FP8_BLOCK: "fp8",
    Scheme.FP8_CHANNEL: "compressed-tensors",
    Scheme.INT4_GROUP: "compressed-tensors",
    Scheme.NVFP4: "modelopt_fp4",
    Scheme.MXFP4: "mxfp4",
}

_TRTLLM_PAGE_SIZES = {"trtllm_mla": (32, 64), "trtllm_mha": (16, 32, 64, 128)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A model on a kind of GPU. All rules are those of sglang 0.5.23."""

    model: Model
    gpu: Gpu

    @property
    def is_sm90(self) -> bool:
        return self.gpu.sm // 10 == 9

    @property
    def is_sm100(self) -> bool:
        """B200, B300 and their GB siblings: compute capability 10.x."""
        return self.gpu.sm // 10 == 10

    @property
    def is_sm120(self) -> bool:
        return self.gpu.sm // 10 == 12

    @property
    def is_multimodal(self) -> bool:
        return self.model.architecture == "KimiK25ForConditionalGeneration"

    @property
    def capacity_mib(self) -> int | None:
        """Card memory as the engine reads it; None on CPUs whose cores are bound by hand."""
        return None if self.gpu.is_cpu else self.gpu.memory_mib

    @property
    def quantization(self) -> str | None:
        """The scheme's name during argument resolution.

        Only on SM100, and only for some architectures, does the engine read it from the checkpoint that
        early; elsewhere rules on quantisation see None (overrides.py:786, qwen3_moe.py:49, glm4_moe.py:25).
        """
        knows = {*DEEPSEEK_FAMILY, "Qwen3MoeForCausalLM", "Glm4MoeForCausalLM"}
        if not self.is_sm100 or self.model.architecture not in knows:
            return None
        return _QUANTIZATION_NAMES.get(self.model.quantization.scheme)

    @property
    def attention_backend(self) -> str:
        """The automatic choice (arg_groups/model_override_base.py:277 and the models' own overrides)."""
        if self.gpu.is_cpu:
            return "intel_amx"
        if self.model.indexer is not None:
            return "dsa"
        if self.is_sm90:
            return "fa3"
        if self.is_sm100:
            return "trtllm_mla" if self.model.mla else "trtllm_mha"
        has_sinks = self.model.architecture == "GptOssForCausalLM"
        return "triton" if self.model.mla or has_sinks else "flashinfer"

    def page_size(self, asked: int | None) -> int:
        """What the attention backend makes of `--page-size` (overrides.py:1144, deepseek_v2.py:166)."""
        backend = self.attention_backend
        if backend == "dsa":
            return 64
        allowed = _TRTLLM_PAGE_SIZES.get(backend)
        if allowed is not None and asked not in allowed:
            return 64
        return 1 if asked is None else asked

    def moe_runner_backend(self, asked: str, moe_a2a_backend: str) -> str:
        """The runner after the model's own defaults."""
        if asked != "auto" or self.gpu.is_cpu:
            return asked
        architecture = self.model.architecture
        scheme = self.model.quantization.scheme
        if architecture == "GptOssForCausalLM":
            # arg_groups/model_overrides/gpt_oss.py:68
            blackwell = self.is_sm100 or self.is_sm120
            return "flashinfer_mxfp4" if blackwell and scheme is Scheme.MXFP4 else asked
        if not self.is_sm100 or moe_a2a_backend != "none":
            return asked
        suited = {
            "Qwen3MoeForCausalLM": {Scheme.NONE, Scheme.FP8_BLOCK, Scheme.NVFP4},
            "Glm4MoeForCausalLM": {Scheme.NONE, Scheme.NVFP4},
        }
        if architecture in DEEPSEEK_FAMILY:
            # overrides.py:810: INT4 counts in the recipe of Kimi K2 Thinking, groups of 32.
            fits = scheme in {Scheme.NONE, Scheme.FP8_BLOCK, Scheme.NVFP4} or (
                scheme is Scheme.INT4_GROUP and self.model.quantization.group_size == 32
            )
        else:
            fits = scheme in suited.get(architecture, set())
        return "flashinfer_trtllm" if fits else asked
