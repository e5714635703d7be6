"""Names that public benchmarks use, and the precisions they served at."""

from __future__ import annotations

import pytest

from search_spaces.catalogue.lookup import aliases, gpu_keys, load_gpu, load_model, model_names
from search_spaces.errors import MalformedError, UnknownNameError
from search_spaces.parts import Component, Scheme
from tuner.served_names import precision_of, served_gpu, served_model

STORED = {
    "bf16": {Scheme.NONE},
    "fp8": {Scheme.FP8_BLOCK, Scheme.FP8_CHANNEL, Scheme.FP8_TENSOR, Scheme.MXFP8},
    "fp4": {Scheme.NVFP4, Scheme.MXFP4},
    "nvfp4": {Scheme.NVFP4},
    "mxfp4": {Scheme.MXFP4},
    "int4": {Scheme.INT4_GROUP},
}


@pytest.mark.parametrize(
    ("name", "precision", "key"),
    [
        ("deepseek-ai/DeepSeek-R1", "", "deepseek-r1"),
        ("deepseek-ai/DeepSeek-R1-0528", "fp8", "deepseek-r1"),
        ("deepseek-ai/DeepSeek-R1", "fp4", "deepseek-v3.1-nvfp4"),
        ("nvidia/DeepSeek-R1-0528-NVFP4-v2", "fp4", "deepseek-v3.1-nvfp4"),
        ("nvidia/DeepSeek-R1-NVFP4", "", "deepseek-v3.1-nvfp4"),
        ("nvidia/DeepSeek-R1-FP4", "", "deepseek-v3.1-nvfp4"),
        ("deepseek-ai/DeepSeek-V3.1-Terminus", "", "deepseek-v3"),
        ("moonshotai/Kimi-K2.5", "fp4", "kimi-k2.5-nvfp4"),
        ("moonshotai/Kimi-K2.5", "int4", "kimi-k2.5"),
        ("moonshotai/Kimi-K2-Base", "", "kimi-k2"),
        ("openai/gpt-oss-120b", "fp4", "gpt-oss-120b"),
        ("openai/gpt-oss-120b", "fp8", "gpt-oss-120b"),
        ("Qwen/Qwen3-235B-A22B", "fp8", "qwen3-235b-a22b-fp8"),
        ("QWEN/QWEN3-235B-A22B-FP8", "FP8", "qwen3-235b-a22b-fp8"),
        ("Qwen/Qwen3-235B-A22B-FP8", "nvfp4", "qwen3-235b-a22b-nvfp4"),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507", "", "qwen3-235b-a22b-2507"),
        ("Qwen/Qwen3.5-397B-A17B-FP8", "", "qwen3.5-397b-a17b-fp8"),
        ("zai-org/GLM-5-FP8", "fp8", "glm-5-fp8"),
        ("zai-org/GLM-5", "fp8", "glm-5-fp8"),
        ("zai-org/GLM-4.6", "fp8", "glm-4.6-fp8"),
        ("MiniMaxAI/MiniMax-M2", "fp8", "minimax-m2"),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16", "", "nemotron-3-super-bf16"),
    ],
)
def test_a_served_name_is_the_checkpoint_that_ran(name, precision, key):
    assert served_model(name, precision).name == key


@pytest.mark.parametrize("name", model_names())
@pytest.mark.parametrize("precision", STORED)
def test_every_catalogue_model_can_be_served_at_every_precision(name, precision):
    own, served = load_model(name), served_model(name, precision)
    shape = (own.architecture, own.num_layers, own.hidden_size, own.num_experts, own.vocab_size)
    assert (served.architecture, served.num_layers, served.hidden_size, served.num_experts, served.vocab_size) == shape
    keeps_four_bits = precision == "fp8" and own.quantization.scheme in STORED["fp4"] | STORED["int4"]
    if not (keeps_four_bits and served is own):
        assert served.quantization.scheme in STORED[precision]
    if served.is_moe and served.quantization.scheme is not Scheme.NONE:
        assert Component.ROUTED in served.quantization.components


@pytest.mark.parametrize("name", model_names())
def test_a_model_without_a_precision_is_as_the_catalogue_has_it_under_each_of_its_names(name):
    for each in (name, name.upper(), *aliases(name)):
        assert served_model(each) is load_model(each)


@pytest.mark.parametrize("name", model_names())
def test_fewer_bits_weigh_less(name):
    sizes = [served_model(name, precision).weight_bytes for precision in ("bf16", "fp8", "nvfp4")]
    assert sizes[0] > sizes[1] * 1.5
    assert sizes[0] > sizes[2] * 1.7


def test_what_is_built_says_what_it_is_built_like():
    assert served_model("GLM-4.6", "fp8").source.endswith("stored at fp8 as glm-4.5-air-fp8 is")


@pytest.mark.parametrize("name", ["DeepSeek-R1-Distill-Llama-70B", "Qwen/Qwen3-Next-80B-A3B-Instruct", "", "-", "FP8"])
def test_another_model_is_not_taken_for_one_that_is_known(name):
    with pytest.raises(UnknownNameError, match="unknown model"):
        served_model(name)


def test_an_unknown_precision_is_refused_with_those_that_are_known():
    with pytest.raises(UnknownNameError, match="Known: bf16, fp4, fp8, int4, mxfp4, nvfp4"):
        served_model("kimi-k2", "int8")


@pytest.mark.parametrize(("word", "precision"), [("", None), ("FP8", "fp8"), ("W4A16", "int4"), ("bfloat16", "bf16")])
def test_precisions_have_several_spellings(word, precision):
    assert precision_of(word) == precision


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("H200 SXM 141GB", "h200"),
        ("H100 SXM 80GB", "h100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("H100 PCIe 80GB", "h100-pcie"),
        ("B200", "b200"),
        ("B200 SXM 192GB", "b200"),
        ("B300", "b300"),
        ("GB200", "gb200"),
        ("GB200 NVL72", "gb200"),
        ("A100 80GB SXM", "a100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-PCIE-40GB", "a100-40-pcie"),
        ("L40S", "l40s"),
        ("RTX PRO 6000", "rtx-pro-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000-ws"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
    ],
)
def test_a_gpu_is_found_under_its_trade_name(name, key):
    assert served_gpu(name).key == key


@pytest.mark.parametrize("key", gpu_keys())
def test_a_gpu_is_found_under_its_key_and_its_full_name(key):
    assert served_gpu(key) is not None
    assert served_gpu(key) == load_gpu(key)


@pytest.mark.parametrize("name", ["A100 40GB SXM", "H100 SXM 94GB", "B200 80GB"])
def test_a_gpu_with_another_memory_or_form_is_not_taken_for_one_that_is_known(name):
    with pytest.raises(MalformedError, match="not known here"):
        served_gpu(name)


@pytest.mark.parametrize("name", ["H100 NVL", "", "SXM 80GB", "TPU v5"])
def test_an_unknown_gpu_is_refused(name):
    with pytest.raises(UnknownNameError):
        served_gpu(name)
