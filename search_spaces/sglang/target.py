"""A model on a kind of GPU: what the engine knows of both before it looks at the layout.

All rules are those of sglang 0.5.23; paths are under `sglang/srt/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from search_spaces.hardware import Gpu
from search_spaces.model import Model

DEEPSEEK_FAMILY = frozenset(
    {
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "GlmMoeDsaForCausalLM",
        "KimiK25ForConditionalGeneration",
    }
)
"""The architectures read here that share DeepSeek's defaults (arg_groups/overrides.py:745)."""

_TEXT_ONLY_BY_DEFAULT = frozenset({"Llama4ForConditionalGeneration"})
"""Architectures whose vision tower is off unless it is asked for (configs/model_config.py)."""

_UNREAD_TOWERS = frozenset(
    {
        "MiniMaxM3SparseForCausalLM",
        "MiniMaxM3SparseForConditionalGeneration",
        "Step3p7ForConditionalGeneration",
        "Step3p7FlashForCausalLM",
    }
)
"""Vision towers whose sizes the engine's memory rule does not find, so that its own 24 layers of 1024 stand."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """It keeps a `__dict__`, unlike other values here, so that what is derived is derived once for many layouts."""

    model: Model
    gpu: Gpu

    @cached_property
    def is_cpu(self) -> bool:
        return self.gpu.is_cpu

    @cached_property
    def is_sm90(self) -> bool:
        return self.gpu.sm // 10 == 9

    @cached_property
    def is_sm100(self) -> bool:
        """B200, B300 and their GB siblings: compute capability 10.x."""
        return self.gpu.sm // 10 == 10

    @cached_property
    def is_sm120(self) -> bool:
        return self.gpu.sm // 10 == 12

    @cached_property
    def is_blackwell(self) -> bool:
        return self.is_sm100 or self.is_sm120

    @cached_property
    def is_mla(self) -> bool:
        """Whether the engine runs multi-head latent attention; DeepSeek-V4 counts as MHA (model_config.py:1430)."""
        return self.model.mla is not None and self.model.architecture != "DeepseekV4ForCausalLM"

    @cached_property
    def is_dsa(self) -> bool:
        """DeepSeek sparse attention (configs/model_config.py:191)."""
        return self.model.indexer is not None and self.model.architecture in DEEPSEEK_FAMILY

    @cached_property
    def shares_sparse_indices(self) -> bool:
        """Whether layers reuse each other's sparse-attention indices (arg_groups/model_hook.py:53)."""
        return self.model.indexer is not None and self.model.indexer.shares_topk

    @cached_property
    def is_multimodal(self) -> bool:
        """Whether the engine builds a vision tower where nothing is said about it."""
        architecture = self.model.architecture
        has_tower = self.model.vision is not None or architecture.startswith("Step3p7")
        return has_tower and architecture not in _TEXT_ONLY_BY_DEFAULT

    @cached_property
    def vision_factor(self) -> float:
        """What a vision tower leaves of the memory fraction (`adjust_mem_fraction_for_vlm`, memory_hook.py:405)."""
        if not self.is_multimodal:
            return 1.0
        tower = None if self.model.architecture in _UNREAD_TOWERS else self.model.vision
        complexity = 1.0 if tower is None else tower.num_layers * tower.hidden_size**2 / (24 * 1024**2)
        return 0.95 * max(0.8, min(1.05, 1.0 - 0.1 * (complexity - 1.0)))

    @cached_property
    def capacity_mib(self) -> int | None:
        """Card memory as the engine reads it; None on CPUs whose cores are bound by hand."""
        return None if self.gpu.is_cpu else self.gpu.memory_mib

    @cached_property
    def checkpoint_quantization(self) -> str | None:
        """The checkpoint's scheme by the engine's name, as model configuration finds it; None: unquantised."""
        return self.model.quantization.method or None

    @cached_property
    def config_quantization(self) -> str | None:
        """The scheme that `config.json` itself names, which is all that argument resolution reads."""
        return self.checkpoint_quantization if self.model.quantization.is_in_config else None

    @cached_property
    def has_attention_sinks(self) -> bool:
        """Learned sinks in the softmax, which FlashInfer does not support (configs/model_config.py:1273)."""
        return self.model.has_attention_sinks

    @cached_property
    def has_asymmetric_kv(self) -> bool:
        """K and V rows of different width (configs/model_config.py:1263)."""
        return not self.is_mla and self.model.v_head_dim != self.model.head_dim
