from __future__ import annotations

import pytest

from search_spaces.catalogue import (
    aliases,
    gpu_keys,
    hub_id,
    load_gpu,
    load_model,
    model_files,
    model_names,
    parse_cluster,
)
from search_spaces.errors import MalformedError, UnknownNameError, UnsupportedError
from search_spaces.hardware import LinkKind
from search_spaces.model import Component, Scheme


@pytest.mark.parametrize("name", model_names())
def test_every_model_loads_under_its_own_name_and_says_where_it_is_from(name):
    model = load_model(name)
    assert model.name == name
    assert model.source
    assert len(model.blocks) == model.num_layers
    if model.is_moe:
        assert 0 < model.experts_per_token <= model.num_experts
    else:
        assert model.num_dense_layers == model.num_layers


@pytest.mark.parametrize(
    ("hub", "tokens"),
    [
        ("Qwen/Qwen3-235B-A22B-FP8", 40_960),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", 262_144),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507", 262_144),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", 262_144),
        ("Qwen/Qwen3-30B-A3B", 40_960),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", 262_144),
        ("moonshotai/Kimi-K2-Instruct", 131_072),
        ("moonshotai/Kimi-K2-Instruct-0905", 262_144),
    ],
)
def test_a_later_checkpoint_has_its_own_context_length(hub, tokens):
    # Each model's card on the Hugging Face hub.
    assert load_model(hub).context_length == tokens


@pytest.mark.parametrize("key", gpu_keys())
def test_every_gpu_loads_under_its_own_key_and_says_where_its_figures_are_from(key):
    gpu = load_gpu(key)
    assert gpu.key == key
    assert gpu.source
    assert gpu.memory_bytes_per_s > 1e9
    assert gpu.is_cpu == (gpu.sm == 0)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("Kimi-K2.6", "kimi-k2.6"),
        ("moonshotai/Kimi-K2.6", "kimi-k2.6"),
        ("KIMI_K2_6", "kimi-k2.6"),
        ("moonshotai/Kimi-K2-Thinking", "kimi-k2-thinking-int4"),
        ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-r1"),
        ("deepseek-ai/DeepSeek-V3.2", "deepseek-v32"),
        ("nvidia/Kimi-K2.6-NVFP4", "kimi-k2.6-nvfp4"),
        ("GLM-5-NVFP4", "glm-5-nvfp4"),
        ("Qwen3.5-397B", "qwen3.5-397b-a17b"),
        ("llama-3.1-70b-instruct", "llama-3.1-70b"),
        ("gpt-oss", "gpt-oss-120b"),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8", "nemotron-3-super-fp8"),
    ],
)
def test_models_are_found_under_the_names_people_use(name, key):
    assert load_model(name).name == key


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("H100_SXM", "h100"),
        ("H100", "h100"),
        ("RTX_PRO_6000_SERVER", "rtx-pro-6000"),
        ("rtx pro 6000", "rtx-pro-6000"),
        ("RTX_PRO_6000_WS", "rtx-pro-6000-ws"),
        ("RTX PRO 6000 Max-Q", "rtx-pro-6000-max-q"),
        ("A100_40", "a100-40-pcie"),
        ("A100_80_SXM", "a100"),
        ("B200", "b200"),
        ("CPU", "cpu"),
    ],
)
def test_gpus_are_found_under_the_names_people_use(name, key):
    assert load_gpu(name).key == key


def test_an_unknown_name_is_answered_with_the_known_ones_and_the_nearest():
    with pytest.raises(UnknownNameError, match=r"did you mean kimi-k2.6\? Near it: .*kimi-k2.5"):
        load_model("kimi-k26x")
    with pytest.raises(UnknownNameError, match=r"\d+ are known, of deepseek, .*kimi, .*qwen"):
        load_model("voodoo-7b")
    with pytest.raises(UnknownNameError, match=r"b200.*h100"):
        load_gpu("voodoo2")


def test_a_name_that_several_begin_with_is_answered_with_all_of_them():
    with pytest.raises(UnknownNameError, match=r"did you mean one of kimi-k2, .*kimi-k2.6, .*kimi-k3"):
        load_model("Kimi")


def test_no_list_of_names_fills_a_screen():
    with pytest.raises(UnknownNameError) as refused:
        load_model("qwen")
    assert len(str(refused.value)) < 400


def test_no_name_stands_for_two_models():
    claimed: dict[str, str] = {}
    for key in model_names():
        for name in {key, *aliases(key)}:
            word = "".join(letter for letter in name.rsplit("/", 1)[-1].casefold() if letter.isalnum())
            assert claimed.setdefault(word, key) == key, name


def test_a_gpu_with_other_rules_is_refused_with_the_reason():
    with pytest.raises(UnsupportedError, match="ROCm"):
        load_gpu("MI300X")


def test_the_three_editions_of_the_rtx_pro_6000_are_told_apart():
    editions = [load_gpu(key) for key in ("rtx-pro-6000", "rtx-pro-6000-ws", "rtx-pro-6000-max-q")]
    assert len({(gpu.memory_bytes_per_s, gpu.bf16_flop_per_s) for gpu in editions}) == 3
    assert {gpu.memory_mib for gpu in editions} == {97887}


def test_what_is_quantised_by_its_second_file_alone_is_read_from_it():
    # nvidia/GLM-5-NVFP4: config.json names no quantisation
    assert set(model_files("glm-5-nvfp4")) == {"config.json", "hf_quant_config.json"}
    quantization = load_model("glm-5-nvfp4").quantization
    assert quantization.scheme is Scheme.NVFP4
    assert quantization.method == "modelopt_fp4"
    assert not quantization.is_in_config


def test_memory_is_what_the_driver_reports():
    # nvidia-smi: H100 81559 MiB, RTX PRO 6000 97887 MiB
    assert load_gpu("h100").memory_mib == 81559
    assert load_gpu("rtx-pro-6000").memory_mib == 97887
    assert load_gpu("rtx-pro-6000").link is LinkKind.PCIE


@pytest.mark.parametrize(
    ("text", "num_nodes", "gpus_per_node", "key"),
    [
        ("8xrtx-pro-6000", 1, 8, "rtx-pro-6000"),
        ("2x8xh200", 2, 8, "h200"),
        ("2x8x4090", 2, 8, "rtx-4090"),
        ("8x4090", 1, 8, "rtx-4090"),
        ("4xcpu", 1, 4, "cpu"),
        (" 8XH100 ", 1, 8, "h100"),
        ("RTX PRO 6000 x8", 1, 8, "rtx-pro-6000"),
        ("rtx-pro-6000x8", 1, 8, "rtx-pro-6000"),
        ("h200:8", 1, 8, "h200"),
        ("8 x H200", 1, 8, "h200"),
        ("4 h100", 1, 4, "h100"),
    ],
)
def test_a_cluster_is_read_as_it_is_written(text, num_nodes, gpus_per_node, key):
    cluster = parse_cluster(text)
    assert (cluster.num_nodes, cluster.gpus_per_node, cluster.gpu.key) == (num_nodes, gpus_per_node, key)
    assert parse_cluster(cluster.name) == cluster


@pytest.mark.parametrize("text", ["8x", "0xh100", "x", "-1xh200", "8h200", "h200", "", "2x0xh200", "2x8x"])
def test_a_malformed_cluster_is_answered_with_an_example(text):
    with pytest.raises(MalformedError, match=r"e\.g\. 8xrtx-pro-6000 or 2x8xh200"):
        parse_cluster(text)


@pytest.mark.parametrize(("text", "meant"), [("h200", "8xh200 is eight"), ("8h200", "8xh200"), ("4090", "8xrtx-4090")])
def test_a_cluster_that_lacks_something_is_answered_with_what_it_may_be(text, meant):
    with pytest.raises(MalformedError, match=meant):
        parse_cluster(text)


def test_an_unknown_gpu_in_a_cluster_is_an_unknown_name():
    with pytest.raises(UnknownNameError):
        parse_cluster("8xvoodoo2")


def test_kimi_k2_6_is_what_its_config_says():
    kimi = load_model("kimi-k2.6")
    assert (kimi.num_experts, kimi.experts_per_token, kimi.num_layers, kimi.num_dense_layers) == (384, 8, 61, 1)
    assert (kimi.quantization.scheme, kimi.quantization.group_size) == (Scheme.INT4_GROUP, 32)
    assert kimi.quantization.components == {Component.ROUTED}


def test_a_catalogue_model_is_fetched_under_its_first_hub_id():
    assert hub_id("kimi-k2.6") == "moonshotai/Kimi-K2.6"
