"""Numbers of any size are judged in no time, or refused in one line."""

from __future__ import annotations

import time

import pytest

from search_spaces.catalogue import load_gpu, load_model
from search_spaces.errors import CannotRunError, MalformedError, UnsupportedError
from search_spaces.hardware import Cluster
from search_spaces.layout import LARGEST_NUMBER, MOST_GPUS, Layout
from search_spaces.rank_groups import rank_groups
from search_spaces.sglang.cuda_graphs import (
    LARGEST_LISTED,
    decode_graph_sizes,
    num_decode_graphs,
    num_prefill_graphs,
    prefill_graph_sizes,
)
from search_spaces.sglang.rules import judge
from search_spaces.sglang.versions import release_0_5
from search_spaces.space import enumerate_space

MODELS = [load_model(name) for name in ("qwen3-30b-a3b", "deepseek-v3")]
CLUSTER = Cluster(gpu=load_gpu("h200"), gpus_per_node=8)
COUNTS = [
    *sorted(name for name, value in vars(Layout()).items() if type(value) is int),
    "chunked_prefill_size",
    "page_size",
    "max_running_requests",
    "cuda_graph_max_bs_decode",
    "cuda_graph_max_bs_prefill",
    "max_total_tokens",
    "context_length",
    "moe_dense_tp_size",
    "speculative_num_draft_tokens",
]


def rules(layout, model=MODELS[0], version=None):
    verdict = judge(layout, model, CLUSTER, **({} if version is None else {"version": version}), suggest=False)
    return {broken.rule: broken for broken in verdict.violations}


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("number", [-LARGEST_NUMBER, 10**9, LARGEST_NUMBER])
def test_a_number_of_any_size_is_judged_at_once(name, number):
    started = time.monotonic()
    for model in MODELS:
        for backend in ("none", "deepep"):
            layout = Layout(tp_size=8, moe_a2a_backend=backend).changed(**{name: number})
            rank_groups(judge(layout, model, CLUSTER, suggest=False).effective)
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("name", COUNTS)
def test_a_number_beyond_64_bits_is_refused_by_its_name(name):
    with pytest.raises(MalformedError, match=name):
        rules(Layout().changed(**{name: 10**400}))


@pytest.mark.parametrize("nonsense", [float("nan"), float("inf"), -1.0])
def test_a_memory_fraction_that_is_none_is_refused(nonsense):
    assert any(rule.startswith("mem_fraction") for rule in rules(Layout(mem_fraction_static=nonsense)))


def test_a_conservativeness_of_nan_is_refused_as_the_engine_does():
    # `assert cfg.schedule_conservativeness >= 0` (arg_groups/validation_hook.py:314 of 0.5.23)
    broken = rules(Layout(schedule_conservativeness=float("nan")))["schedule.conservativeness"]
    assert broken.engine_text == "schedule_conservativeness must be non-negative"
    assert "schedule.conservativeness" not in rules(Layout(schedule_conservativeness=float("inf")))


def test_more_graph_sizes_than_the_host_can_list_are_refused():
    assert "graphs.sizes" in rules(Layout(chunked_prefill_size=10**14))
    assert "graphs.sizes" in rules(Layout(cuda_graph_max_bs_decode=10**14))
    assert "graphs.sizes" not in rules(Layout(chunked_prefill_size=10**9))


@pytest.mark.parametrize("most", [0, 3, 50, 512, 5000, LARGEST_LISTED, LARGEST_LISTED + 511, LARGEST_LISTED + 512])
def test_prefill_graphs_are_counted_as_they_are_listed(most):
    assert num_prefill_graphs(most) == len(prefill_graph_sizes(most))


def test_of_decode_graphs_beyond_the_list_the_largest_is_kept():
    layout = Layout(cuda_graph_max_bs_decode=10**9)
    assert decode_graph_sizes(layout)[-2:] == (LARGEST_LISTED, 10**9)
    assert num_decode_graphs(layout) == 10**9 // 32


def test_a_cluster_is_made_for_a_launch_up_to_any_size_there_is():
    assert Layout(tp_size=6, pp_size=2, nnodes=4).needed_nodes() == {"gpus_per_node": 3, "num_nodes": 4}
    assert Layout(dp_size=MOST_GPUS).needed_nodes()["gpus_per_node"] == MOST_GPUS
    with pytest.raises(UnsupportedError, match="5000 GPUs"):
        Layout(dp_size=5000).needed_nodes()


def test_a_pin_of_any_size_is_refused_at_once():
    with pytest.raises(CannotRunError, match=r"all are refused by graphs\.sizes"):
        enumerate_space(MODELS[0], CLUSTER, pins={"cuda_graph_max_bs_decode": 10**14})
    with pytest.raises(MalformedError, match="64 bits"):
        enumerate_space(MODELS[0], CLUSTER, pins={"chunked_prefill_size": 10**19})


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        # SGLang's own check of a rank's place, runtime_context.py:347 of 0.5.23, asked for rank 0
        (Layout(tp_size=-1), ("tp", "attn_tp")),
        (Layout(pp_size=-1), ("pp",)),
    ],
)
def test_a_negative_size_has_no_place_for_a_rank(layout, said):
    broken = rules(layout)["size.negative"]
    lines = [f"0 <= {name}_rank < {name}_size\n  0 is not a rank of -1" for name in said]
    assert broken.engine_text.partition("\n")[2] == "\n".join(lines)
    assert "size.positive" not in rules(layout)
    assert "size.positive" in rules(layout, version=release_0_5(20))


def test_no_pipeline_stage_at_all_is_a_division_by_zero():
    # entrypoints/engine.py:2063 of 0.5.23: nnodes // parallel.pp_size
    assert rules(Layout(pp_size=0))["pp.zero"].exception == "ZeroDivisionError"
    assert "size.positive" in rules(Layout(tp_size=0))
