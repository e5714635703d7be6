"""Weight placement, against the engine's own model classes and against what a model holds in all."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.weights import leaves_draft_out, stage_layers, stage_weights, weight_bytes_at_construction
from search_spaces.catalogue import load_gpu, load_model
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.parts import Component
from search_spaces.sglang.resolution import resolve

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = json.loads((GOLDEN / "weight_bytes.json").read_text(encoding="utf-8"))["cases"]
BUILT = [
    case for case in json.loads((GOLDEN / "architectures.json").read_text(encoding="utf-8"))["cases"] if "bytes" in case
]


def relative_error(case) -> float:
    model = load_model(case["model"])
    measured = sum(case["bytes"].values())
    return weight_bytes_at_construction(model, load_gpu(case["gpu"]), Layout(**case["layout"])) / measured - 1


def test_every_executed_case_is_within_a_tenth_of_a_percent():
    errors = [abs(relative_error(case)) for case in CASES]
    sys.stdout.write(
        f"\nweights, {len(errors)} executed cases: median {statistics.median(errors):.4%}, worst {max(errors):.4%}, "
        f"within 1 %: {sum(e < 0.01 for e in errors) / len(errors):.0%}\n"
    )
    assert len(errors) == 102
    assert max(errors) < 1e-3


def effective(case) -> Layout:
    layout = Layout(**case["layout"])
    cluster = Cluster(gpu=load_gpu(case["gpu"]), gpus_per_node=layout.num_gpus)
    return resolve(layout, load_model(case["model"]), cluster)[0]


def built_bytes(case) -> int:
    return weight_bytes_at_construction(
        load_model(case["model"]), load_gpu(case["gpu"]), effective(case), case.get("stage", 0)
    )


def test_every_architecture_weighs_what_its_class_allocates():
    errors = [built_bytes(case) / sum(case["bytes"].values()) - 1 for case in BUILT]
    sys.stdout.write(
        f"\nweights of {len({load_model(case['model']).architecture for case in BUILT})} architectures, {len(errors)} "
        f"executed cases: worst {max(map(abs, errors)):.4%}\n"
    )
    assert max(map(abs, errors)) < 5e-4


@pytest.mark.parametrize("case", BUILT, ids=lambda case: f"{case['id']}-{case['model']}")
def test_each_part_of_every_architecture_lies_where_its_class_puts_it(case):
    placed = stage_weights(load_model(case["model"]), effective(case), case.get("stage", 0))
    for component, size in placed.items():
        measured = case["bytes"].get(component.value, 0)
        # Marlin's index tensors are emptied after loading, and DeepSeek-V4's scales are narrowed to a byte.
        routed = 0.16 if case["model"].startswith("deepseek-v4") else 0.04
        tolerance = routed if component is Component.ROUTED else 0.002
        assert size == pytest.approx(measured, rel=tolerance, abs=4 * 2**20), component


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_each_component_lies_where_the_engine_puts_it(case):
    layout = Layout(**case["layout"])
    placed = stage_weights(load_model(case["model"]), layout, 0)
    for component, size in placed.items():
        measured = case["bytes"].get(component.value, 0)
        # Marlin's index tensors are emptied after loading; Mixtral's small gate is counted under `other`.
        tolerance = 0.04 if (component.value, case["model"]) == ("routed", "kimi-k2-thinking-int4") else 0.002
        assert size == pytest.approx(measured, rel=tolerance, abs=3 * 2**20), component


DRAFTS = [
    ("deepseek-v3", "h200", {"tp_size": 8}, 1_661_047_984),
    ("deepseek-v3.2-nvfp4", "b200", {"tp_size": 8, "ep_size": 8}, 3_140_038_656),
    ("glm-4.5-air", "h200", {"tp_size": 4}, 1_239_727_616),
    ("glm-5-fp8", "h200", {"tp_size": 8, "attn_dp_size": 8}, 1_542_600_272),
]
"""What 0.5.23 builds of the class of a draft layer (model_config.py:1020), without embedding and head, which are the
model's."""


@pytest.mark.parametrize(("name", "gpu", "sizes", "built"), DRAFTS, ids=[name for name, *_ in DRAFTS])
def test_a_models_own_draft_layer_weighs_what_its_class_allocates(name, gpu, sizes, built):
    layout = Layout(**sizes, speculative_algorithm="EAGLE")
    cluster = Cluster(gpu=load_gpu(gpu), gpus_per_node=layout.num_gpus)
    run = resolve(layout, load_model(name), cluster)[0]
    assert stage_weights(load_model(name), run, 0)[Component.DRAFT] == pytest.approx(built, rel=1e-3)
    without = run.changed(speculative_algorithm=None)
    assert stage_weights(load_model(name), without, 0)[Component.DRAFT] == 0
    assert weight_bytes_at_construction(load_model(name), load_gpu(gpu), run) == weight_bytes_at_construction(
        load_model(name), load_gpu(gpu), without
    )


def test_a_draft_of_which_nothing_is_known_is_told_from_one_that_is_counted():
    model = load_model("deepseek-v3")
    eagle = Layout(tp_size=8, speculative_algorithm="EAGLE")
    assert not leaves_draft_out(model, eagle)
    assert leaves_draft_out(model, eagle.changed(speculative_draft_model_path="/draft"))
    assert leaves_draft_out(model, eagle.changed(speculative_algorithm="DFLASH"))
    assert leaves_draft_out(load_model("qwen3.5-35b-a3b"), eagle)
    assert not leaves_draft_out(model, eagle.changed(speculative_algorithm="NGRAM"))
    assert not leaves_draft_out(model, Layout(tp_size=8))


def test_mxfp4_experts_are_padded_after_loading_on_an_rtx_pro_6000():
    # 0.5.23 builds 8,135,589,888 bytes of experts, and keeps slices of 1440 columns in 1536 (mxfp4.py:490, 1356).
    model, layout = load_model("gpt-oss-120b"), Layout(tp_size=8, ep_size=4, moe_runner_backend="flashinfer_mxfp4")
    built = weight_bytes_at_construction(model, load_gpu("rtx-pro-6000"), layout)
    assert built == pytest.approx(8_691_261_120, rel=1e-3)
    assert sum(stage_weights(model, layout, 0).values()) - built == pytest.approx(541.9e6, rel=1e-2)


def test_nvfp4_experts_keep_a_second_scale_unless_their_runner_is_trtllm():
    # 0.5.23 on an RTX PRO 6000, where the runner stays `auto`, and on a B200 with flashinfer_trtllm.
    model, layout = load_model("deepseek-v3-nvfp4"), Layout(tp_size=8, ep_size=4)
    assert stage_weights(model, layout, 0)[Component.ROUTED] == pytest.approx(51_086_845_440, rel=1e-4)
    trtllm = Layout(tp_size=8, moe_runner_backend="flashinfer_trtllm")
    assert stage_weights(model, trtllm, 0)[Component.ROUTED] == pytest.approx(45_978_316_800, rel=1e-4)


def test_remainder_layers_go_to_the_last_stages():
    # distributed/utils.py:110 of sglang 0.5.23; 61 layers are DeepSeek-V3's
    assert [len(layers) for layers in stage_layers(61, 2)] == [30, 31]
    assert [len(layers) for layers in stage_layers(61, 8)] == [7, 7, 7, 8, 8, 8, 8, 8]


@given(num_layers=st.integers(1, 200), pp_size=st.integers(1, 16))
def test_stages_hold_every_layer_once_and_in_order(num_layers, pp_size):
    layers = [layer for stage in stage_layers(num_layers, pp_size) for layer in stage]
    assert layers == list(range(num_layers))


@given(
    name=st.sampled_from(["deepseek-v3", "qwen3-235b-a22b-fp8", "glm-4.5", "kimi-k2.6", "qwen3-30b-a3b"]),
    tp_size=st.sampled_from([1, 2, 4, 8]),
    pp_size=st.sampled_from([1, 2, 4]),
    data=st.data(),
)
def test_all_ranks_together_hold_at_least_the_whole_model(name, tp_size, pp_size, data):
    model = load_model(name)
    ep_size = data.draw(st.sampled_from([size for size in (1, 2, 4, 8) if tp_size % size == 0]))
    attn_dp_size = data.draw(st.sampled_from([size for size in (1, 2, 4, 8) if tp_size % size == 0]))
    layout = Layout(tp_size=tp_size, pp_size=pp_size, ep_size=ep_size, attn_dp_size=attn_dp_size)
    held = tp_size * sum(sum(stage_weights(model, layout, stage).values()) for stage in range(layout.pp_size))
    assert held >= 0.999 * model.weight_bytes


@given(tp_size=st.sampled_from([2, 4, 8]), data=st.data())
def test_expert_parallelism_moves_experts_but_adds_none(tp_size, data):
    ep_size = data.draw(st.sampled_from([size for size in (2, 4, 8) if tp_size % size == 0]))
    model = load_model("qwen3-30b-a3b")
    plain = stage_weights(model, Layout(tp_size=tp_size), 0)
    assert stage_weights(model, Layout(tp_size=tp_size, ep_size=ep_size), 0) == plain
