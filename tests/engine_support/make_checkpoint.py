"""Writes a tiny random Qwen3-MoE checkpoint, and what transformers makes of it.

Run by the engine's Python, the only one that has torch and transformers:

    ENGINE_PYTHON make_checkpoint.py FOLDER

Beside the checkpoint, `greedy_reference.json` holds a prompt and the tokens that transformers' own
Qwen3-MoE adds to it greedily: `{"input_ids": [...], "output_ids": [...]}`. Weights and tokens are the same
on every run with the same torch.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

PROMPT = [5, 6, 7, 8, 9, 10, 11, 500, 1000, 42]
NUM_NEW_TOKENS = 16

# Every size divides by 4, so that worlds of 1, 2 and 4 ranks can hold it in any split.
CONFIG = {
    "vocab_size": 2048,
    "hidden_size": 128,
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def random_model() -> Qwen3MoeForCausalLM:
    """A model whose logits are far enough apart that rounding doesn't change the greedy choice.

    The initialisation that transformers gives (standard deviation 0.02) leaves the experts next to nothing
    to say, and a layout that loses some of them would answer the same.
    """
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**CONFIG)).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape)
            if parameter.dim() == 1:  # the scale of a norm
                parameter.copy_(1 + 0.1 * noise)
            else:
                parameter.copy_(1.3 * noise / parameter.shape[-1] ** 0.5)
    return model


def greedy_tokens(model: Qwen3MoeForCausalLM) -> list[int]:
    prompt = torch.tensor([PROMPT])
    answer = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=NUM_NEW_TOKENS,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return answer[0, len(PROMPT) :].tolist()


def main(folder: Path) -> None:
    model = random_model()
    model.save_pretrained(folder)
    reference = {"input_ids": PROMPT, "output_ids": greedy_tokens(model)}
    (folder / "greedy_reference.json").write_text(json.dumps(reference) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
