from __future__ import annotations

import pytest

from search_spaces.catalogue import load_model, model_names
from search_spaces.config_json import ARCHITECTURES, model_from_config
from search_spaces.errors import MalformedError, UnsupportedError
from search_spaces.parts import Component, Experts, Scheme

QWEN = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "torch_dtype": "bfloat16",
}

DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 3,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "vocab_size": 129280,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "intermediate_size": 18432,
    "max_position_embeddings": 163840,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}


def read(config):
    return model_from_config(config, name="m", source="a test")


def quantised(quantization):
    return read({**DEEPSEEK, "quantization_config": quantization}).quantization


def test_qwen3_30b_weighs_what_the_engine_allocates():
    # SGLang 0.5.23 at TP1 in bfloat16: 61,064,245,248 bytes, of them 4,096 in the norm after the last layer.
    assert read(QWEN).weight_bytes == 61_064_245_248 - 4_096


def test_deepseek_v3_has_the_published_671_billion_parameters():
    model = read(DEEPSEEK)
    assert model.weight_bytes / model.dtype_bytes == pytest.approx(671e9, rel=2e-3)


def test_every_architecture_that_is_read_is_one_of_the_catalogue_or_its_sibling():
    known = {load_model(name).architecture for name in model_names()}
    siblings = {
        "DeepseekV2ForCausalLM",
        "MiniMaxM3SparseForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3VLForConditionalGeneration",
        "Step3p7ForConditionalGeneration",
    }
    assert known | siblings >= set(ARCHITECTURES)
    assert not known & siblings


@pytest.mark.parametrize("name", model_names())
def test_the_layers_of_every_model_hold_what_its_class_is_about(name):
    model = load_model(name)
    parts = [part for block in model.block_kinds for part in block.parts]
    assert any(part.component is Component.ATTENTION for part in parts)
    assert model.is_moe == any(isinstance(part, Experts) for part in parts)
    assert any(block.kv is not None for block in model.block_kinds)


def test_facts_under_text_config_win_over_the_wrapper():
    wrapper = {"architectures": ["KimiK25ForConditionalGeneration"], "hidden_size": 1, "text_config": DEEPSEEK}
    assert read(wrapper).hidden_size == 7168
    flat = {**DEEPSEEK, "architectures": ["KimiK25ForConditionalGeneration"]}
    assert read(flat) == read(wrapper)


@pytest.mark.parametrize("field", sorted(set(DEEPSEEK) - {"architectures", "first_k_dense_replace"}))
def test_a_missing_field_is_named_or_has_a_stated_default(field):
    config = {name: value for name, value in DEEPSEEK.items() if name != field}
    defaults = {"num_key_value_heads": "num_kv_heads", "n_shared_experts": "shared_intermediate_size"}
    if field == "n_routed_experts":
        assert not read(config).is_moe
    elif field == "q_lora_rank":
        assert read(config).mla.q_lora_rank == 0
    elif field in defaults:
        assert getattr(read(config), defaults[field]) in (0, 128)
    else:
        with pytest.raises(MalformedError, match=field):
            read(config)


@pytest.mark.parametrize("value", ["2048", -1, 0, 1.5, True, [2048], 10**30])
def test_a_field_that_is_no_positive_integer_is_refused(value):
    with pytest.raises(MalformedError, match="hidden_size must be an integer from 1 to"):
        read({**QWEN, "hidden_size": value})


@pytest.mark.parametrize("architectures", [None, [], "Qwen3MoeForCausalLM", [7]])
def test_a_config_must_name_its_class(architectures):
    with pytest.raises(MalformedError, match="architectures"):
        read({**QWEN, "architectures": architectures})


def test_an_unknown_class_is_answered_with_the_known_ones():
    with pytest.raises(UnsupportedError, match=r"PhiForCausalLM.*have to be described.*LlamaForCausalLM"):
        read({**QWEN, "architectures": ["PhiForCausalLM"]})


def test_qwen3_may_thin_its_experts_out():
    assert read({**QWEN, "decoder_sparse_step": 2}).num_dense_layers == 24
    assert read({**QWEN, "mlp_only_layers": [0, 5]}).num_dense_layers == 2


FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
LINEAR = {Component.ATTENTION, Component.DENSE, Component.ROUTED, Component.SHARED}


def compressed(weights, ignore=("lm_head",)):
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": list(ignore),
    }


@pytest.mark.parametrize(
    ("config", "scheme", "group_size", "components"),
    [
        (FP8, Scheme.FP8_BLOCK, 128, LINEAR),
        ({"quant_method": "fp8"}, Scheme.FP8_CHANNEL, 0, LINEAR),
        ({"quant_method": "mxfp4"}, Scheme.MXFP4, 32, {Component.ROUTED}),
        (
            # Kimi-K2-Thinking
            compressed(
                {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32},
                [
                    "lm_head",
                    "re:.*self_attn.*",
                    "re:.*shared_experts.*",
                    "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
                ],
            ),
            Scheme.INT4_GROUP,
            32,
            {Component.ROUTED},
        ),
        (
            # GLM-4.5-Air-FP8
            compressed({"num_bits": 8, "type": "float", "strategy": "channel"}, ["lm_head", "re:.*mlp.gate$"]),
            Scheme.FP8_CHANNEL,
            0,
            LINEAR,
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head"]},
            Scheme.NVFP4,
            16,
            LINEAR,
        ),
        (
            # nvidia/Kimi-K2.6-NVFP4 names its modules one by one and with a wildcard
            {
                "quant_method": "modelopt",
                "quant_algo": "NVFP4",
                "group_size": 16,
                "ignore": [
                    "language_model.lm_head",
                    "language_model.model.layers.0*",
                    *(f"language_model.model.layers.{n}.self_attn*" for n in range(61)),
                    *(f"language_model.model.layers.{n}.mlp.shared_experts*" for n in range(61)),
                ],
            },
            Scheme.NVFP4,
            16,
            {Component.DENSE, Component.ROUTED},
        ),
        (None, Scheme.NONE, 0, set()),
    ],
)
def test_quantisation_is_read_with_what_it_covers(config, scheme, group_size, components):
    found = quantised(config)
    assert (found.scheme, found.group_size, found.components) == (scheme, group_size, components)


@pytest.mark.parametrize(
    ("config", "error", "text"),
    [
        ({"quant_method": "awq"}, UnsupportedError, "'awq' is not known here. Known: compressed-tensors"),
        ({}, MalformedError, "lacks quant_method"),
        ("fp8", MalformedError, "must be an object"),
        ({"quant_method": "fp8", "weight_block_size": [1, 128]}, UnsupportedError, r"\[1, 128\]"),
        ({"quant_method": "compressed-tensors"}, MalformedError, "lacks config_groups"),
        (compressed({"num_bits": 3, "type": "int", "strategy": "group"}), UnsupportedError, "num_bits=3"),
        ({"quant_method": "modelopt", "quant_algo": "INT3"}, UnsupportedError, "'INT3'"),
    ],
)
def test_quantisation_that_cannot_be_read_is_named(config, error, text):
    with pytest.raises(error, match=text):
        quantised(config)


@pytest.mark.parametrize(
    "weights",
    [
        None,
        [],
        "w",
        {"num_bits": 4, "type": "int", "strategy": "group"},
        *(
            {"num_bits": 4, "type": "int", "strategy": "group", "group_size": size}
            for size in (0, -1, "32", [32], 0.5, None, True)
        ),
    ],
)
def test_a_quantization_config_that_makes_no_sense_is_one_clear_line(weights):
    raw = {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": weights}}}
    with pytest.raises((MalformedError, UnsupportedError)):
        read({**QWEN, "quantization_config": raw})


@pytest.mark.parametrize("change", [{"ignore": 5}, {"config_groups": {"g": 1}}, {"config_groups": [1]}])
def test_lists_and_objects_of_a_quantization_config_are_checked(change):
    good = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
    raw = {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": good}}, **change}
    with pytest.raises(MalformedError):
        read({**QWEN, "quantization_config": raw})


def test_the_number_of_experts_is_read_under_the_name_that_newer_transformers_write():
    """`Qwen3MoeConfig.save_pretrained` of transformers 5 writes num_local_experts."""
    renamed = {**QWEN, "num_local_experts": QWEN["num_experts"]}
    del renamed["num_experts"]
    assert read(renamed).num_experts == QWEN["num_experts"]
