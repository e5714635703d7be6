"""Whatever a config.json says in one of its fields, it is a model or one clear error."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.catalogue import load_gpu, model_names
from search_spaces.catalogue.lookup import model_files
from search_spaces.config_json import model_from_config
from search_spaces.errors import MalformedError, UserError
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.sglang.rules import judge

CLUSTER = Cluster(gpu=load_gpu("h200"), gpus_per_node=8)
ABSENT = object()
ODD = (
    ABSENT, None, True, "x", "8", -1, 0, 1, 1.5, float("nan"), float("inf"), 2**24, 10**30, {}, {"a": 1}, [], ["x"], [{}],
)  # fmt: skip


def paths(value: Any, before: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every field, and of lists the first and the last entry."""
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list) and value:
        inner = list({0: value[0], len(value) - 1: value[-1]}.items())
    else:
        return []
    return [path for key, each in inner for path in ((*before, key), *paths(each, (*before, key)))]


def changed(config: dict[str, Any], path: tuple[str | int, ...], odd: Any) -> dict[str, Any]:
    config = copy.deepcopy(config)
    holder: Any = config
    for key in path[:-1]:
        holder = holder[key]
    if odd is ABSENT:
        del holder[path[-1]]
    else:
        holder[path[-1]] = odd
    return config


def read(files: dict[str, Any]):
    return model_from_config(
        files["config.json"], name="m", source="a test", hf_quant_config=files.get("hf_quant_config.json")
    )


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_one_odd_field_gives_a_model_that_can_be_judged_or_one_error(data):
    files = dict(model_files(data.draw(st.sampled_from(model_names()))))
    name = data.draw(st.sampled_from(sorted(files)))
    path = data.draw(st.sampled_from(paths(files[name])))
    files[name] = changed(files[name], path, data.draw(st.sampled_from(ODD)))
    try:
        model = read(files)
    except UserError:
        return
    judge(Layout(tp_size=8, ep_size=8), model, CLUSTER, suggest=False)


@pytest.mark.parametrize(
    ("name", "path", "odd", "said"),
    [
        ("qwen3.5-27b", ("vision_config", "num_heads"), ABSENT, "vision_config.num_heads"),
        ("qwen3-vl-30b-a3b", ("vision_config", "depth"), 1.5, "vision_config.depth"),
        ("qwen3-vl-30b-a3b", ("vision_config",), True, "vision_config must be an object"),
        ("qwen3.5-27b", ("vision_config", "deepstack_visual_indexes"), -1, "vision_config.deepstack_visual_indexes"),
        ("kimi-k3", ("linear_attn_config", "short_conv_kernel_size"), float("nan"), "short_conv_kernel_size"),
        ("mimo-v2-flash", ("moe_layer_freq",), [1], "moe_layer_freq must have an entry for each layer"),
        ("step-3.7-flash", ("moe_layers_enum",), [{}], "moe_layers_enum"),
        ("deepseek-v4", ("compress_ratios", 0), "x", "compress_ratios"),
        ("deepseek-v3", ("num_hidden_layers",), 10**7, "num_hidden_layers must be an integer from 1 to 4096"),
    ],
)
def test_an_odd_field_is_named(name, path, odd, said):
    if name not in model_names():
        name = next(each for each in model_names() if each.startswith(name))
    config = dict(model_files(name)["config.json"])
    at = path
    if path[0] not in config:
        at = ("text_config", *path)
    with pytest.raises(MalformedError, match=said):
        read({**model_files(name), "config.json": changed(config, at, odd)})
