"""Which class of SGLang 0.5.23 builds which layers (`models/`), by the name in `config.json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from search_spaces.architectures.deepseek import deepseek, deepseek_v4
from search_spaces.architectures.hybrid import kimi_k3, nemotron_h, qwen_hybrid
from search_spaces.architectures.layered import gemma4, llama4, mimo_v2, minimax_m2, minimax_m3, step3p5
from search_spaces.architectures.reading import Checkpoint
from search_spaces.architectures.transformer import dense, glm4_moe, gpt_oss, mixtral, qwen_moe
from search_spaces.parts import Block


class Embedding(StrEnum):
    """SPLIT: over all ranks, or attention ranks under attention data parallelism. WHOLE_UNDER_DP: whole on every
    rank there. WHOLE: always.
    """

    SPLIT = "split"
    WHOLE_UNDER_DP = "whole under attention data parallelism"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """block: the parts of one decoder layer.
    compares_experts_with: the number of ranks that the class wants at least as many experts as.
    embedding: how the embedding table lies on ranks.
    ignores_attention_dp: whether attention and embeddings are split over all ranks whatever attention data
        parallelism says.
    has_pipeline: whether the class runs as one of several pipeline stages.
    keeps_expert_books: whether redundant experts count (`get_model_config_for_expert_location`).
    inputs_on_first_stage_only: whether later stages have neither vision tower nor, for a tied head, embeddings.
    drafts: whether the class has a layer that drafts for it (multi-token prediction): `counted` where the config says
        how many and one is built like the last of the decoder (models/deepseek_nextn.py, glm4_moe_nextn.py), `own`
        where it is built otherwise or said nowhere (configs/model_config.py:1020).
    updates_at_exit: when a layer's result is added when its stage ends, which attention CP does not allow.
    head_on_every_stage: whether other stages than the last build a language model head too.
    """

    block: Callable[[Checkpoint, int], Block]
    compares_experts_with: Literal["tp", "moe_tp", "nothing"] = "tp"
    embedding: Embedding = Embedding.SPLIT
    ignores_attention_dp: bool = False
    has_pipeline: bool = True
    keeps_expert_books: bool = True
    head_on_every_stage: bool = False
    inputs_on_first_stage_only: bool = False
    drafts: Literal["counted", "own", "no"] = "no"
    updates_at_exit: Literal["never", "always", "without attention DP"] = "never"


ARCHITECTURES: Mapping[str, Architecture] = {
    "DeepseekV2ForCausalLM": Architecture(block=deepseek),
    "DeepseekV32ForCausalLM": Architecture(block=deepseek, drafts="counted"),
    "DeepseekV3ForCausalLM": Architecture(block=deepseek, drafts="counted"),
    "DeepseekV4ForCausalLM": Architecture(block=deepseek_v4, embedding=Embedding.WHOLE_UNDER_DP, drafts="own"),
    "Gemma4ForConditionalGeneration": Architecture(
        block=gemma4,
        updates_at_exit="always",
        inputs_on_first_stage_only=True,
        compares_experts_with="nothing",
        keeps_expert_books=False,
        embedding=Embedding.WHOLE,
        ignores_attention_dp=True,
    ),
    "Glm4MoeForCausalLM": Architecture(block=glm4_moe, head_on_every_stage=True, drafts="counted"),
    "GlmMoeDsaForCausalLM": Architecture(block=deepseek, drafts="counted"),
    "GptOssForCausalLM": Architecture(block=gpt_oss, compares_experts_with="nothing", head_on_every_stage=True),
    "KimiK25ForConditionalGeneration": Architecture(block=deepseek),
    "KimiK3ForConditionalGeneration": Architecture(
        block=kimi_k3, keeps_expert_books=False, updates_at_exit="without attention DP"
    ),
    "Llama4ForConditionalGeneration": Architecture(
        block=llama4, compares_experts_with="nothing", has_pipeline=False, keeps_expert_books=False
    ),
    "LlamaForCausalLM": Architecture(block=dense, head_on_every_stage=True, ignores_attention_dp=True),
    "MiMoV2FlashForCausalLM": Architecture(block=mimo_v2, drafts="own"),
    "MiniMaxM2ForCausalLM": Architecture(block=minimax_m2),
    "MiniMaxM3SparseForCausalLM": Architecture(block=minimax_m3),
    "MiniMaxM3SparseForConditionalGeneration": Architecture(block=minimax_m3),
    "MixtralForCausalLM": Architecture(
        block=mixtral,
        compares_experts_with="nothing",
        keeps_expert_books=False,
        ignores_attention_dp=True,
        head_on_every_stage=True,
    ),
    "NemotronHForCausalLM": Architecture(block=nemotron_h, compares_experts_with="nothing", drafts="own"),
    "Qwen2MoeForCausalLM": Architecture(block=qwen_moe, head_on_every_stage=True),
    "Qwen3ForCausalLM": Architecture(block=dense),
    "Qwen3MoeForCausalLM": Architecture(block=qwen_moe, compares_experts_with="moe_tp", head_on_every_stage=True),
    "Qwen3NextForCausalLM": Architecture(block=qwen_hybrid, has_pipeline=False, drafts="own"),
    "Qwen3VLForConditionalGeneration": Architecture(block=dense),
    "Qwen3VLMoeForConditionalGeneration": Architecture(block=qwen_moe, compares_experts_with="moe_tp"),
    "Qwen3_5ForConditionalGeneration": Architecture(
        block=qwen_hybrid, embedding=Embedding.WHOLE_UNDER_DP, drafts="own"
    ),
    "Qwen3_5MoeForConditionalGeneration": Architecture(
        block=qwen_hybrid, embedding=Embedding.WHOLE_UNDER_DP, drafts="own"
    ),
    "Step3p5ForCausalLM": Architecture(block=step3p5, embedding=Embedding.WHOLE_UNDER_DP, drafts="own"),
    "Step3p7ForConditionalGeneration": Architecture(
        block=step3p5, has_pipeline=False, embedding=Embedding.WHOLE_UNDER_DP, drafts="own"
    ),
}
