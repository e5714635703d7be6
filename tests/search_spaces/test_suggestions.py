from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.layout import Layout
from search_spaces.sglang.rules import judge
from search_spaces.sglang.suggestions import nearest_legal

FIELDS = ("tp_size", "pp_size", "dp_size", "attn_dp_size", "attn_cp_size", "ep_size", "moe_dp_size")


def suggestions(layout, model="kimi-k2.6", cluster="8xrtx-pro-6000"):
    return judge(layout, load_model(model), parse_cluster(cluster)).suggestions


def test_a_legal_layout_needs_no_suggestion():
    assert suggestions(Layout(tp_size=8)) == ()


def test_the_same_number_of_gpus_comes_first_then_the_smallest_step():
    assert suggestions(Layout(tp_size=2, ep_size=4)) == (
        Layout(tp_size=2, ep_size=2),
        Layout(tp_size=2, ep_size=1),
        Layout(tp_size=4, ep_size=4),
    )


def test_fp8_blocks_that_do_not_divide_lead_to_expert_parallelism():
    found = suggestions(Layout(tp_size=8), "qwen3-30b-a3b-fp8", "8xh100")
    assert found[:2] == (Layout(tp_size=8, ep_size=4), Layout(tp_size=8, ep_size=8))


def test_what_is_too_large_shrinks_to_the_cluster():
    assert suggestions(Layout(tp_size=16))[0] == Layout(tp_size=8)


def test_a_layout_that_is_all_wrong_leads_back_to_plain_tensor_parallelism():
    nonsense = Layout(tp_size=3, pp_size=0, dp_size=-1, attn_dp_size=5, ep_size=7, moe_dp_size=3)
    assert suggestions(nonsense) == (Layout(tp_size=8),)


SIZE = st.sampled_from([0, 1, 2, 3, 4, 8, 16])


@settings(max_examples=25)
@given(
    st.builds(Layout, tp_size=SIZE, pp_size=SIZE, attn_dp_size=SIZE, ep_size=SIZE, attn_cp_size=SIZE),
    st.sampled_from(["kimi-k2.6", "qwen3-30b-a3b-fp8"]),
)
def test_every_suggestion_is_legal_and_there_is_always_one(layout, model):
    cluster = parse_cluster("8xh200")
    verdict = judge(layout, load_model(model), cluster)
    if verdict.is_legal:
        return
    assert 1 <= len(verdict.suggestions) <= 3
    for near in verdict.suggestions:
        assert judge(near, load_model(model), cluster, suggest=False).is_legal


@pytest.mark.parametrize("backend", ["deepep", "flashinfer", "pplx", "nixl"])
def test_a_backend_that_cannot_run_is_dropped(backend):
    assert all(near.moe_a2a_backend == "none" for near in suggestions(Layout(tp_size=8, moe_a2a_backend=backend)))


def test_what_was_named_is_kept_where_another_flag_cures_it():
    found = suggestions(Layout(tp_size=32, nnodes=4), "deepseek-v3", "4x8xh100")
    assert Layout(tp_size=32, nnodes=4, moe_a2a_backend="deepep", moe_dense_tp_size=1) in found


def test_a_backend_is_kept_where_its_own_rule_can_be_met():
    layout = Layout(tp_size=8, moe_a2a_backend="flashinfer", moe_runner_backend="flashinfer_cutlass")
    found = suggestions(layout, "deepseek-v3-nvfp4", "8xb200")
    assert layout.changed(attn_dp_size=8) in found


def test_one_flag_is_offered_with_one_value_and_sizes_with_several():
    fractions = suggestions(Layout(tp_size=8, mem_fraction_static=1.5))
    assert len(fractions) == len({near.changed(mem_fraction_static=None) for near in fractions})
    sizes = suggestions(Layout(tp_size=8), "qwen3-30b-a3b-fp8", "8xh100")
    assert {near.ep_size for near in sizes} >= {4, 8}


@settings(max_examples=25, deadline=None)
@given(
    st.builds(Layout, tp_size=SIZE, ep_size=SIZE, attn_dp_size=SIZE, moe_a2a_backend=st.sampled_from(["none", "mori"]))
)
def test_no_other_makers_backend_is_ever_offered(layout):
    for near in suggestions(layout, "deepseek-v3", "8xh200"):
        assert near.moe_a2a_backend in {"none", "deepep", layout.moe_a2a_backend}
        assert near.moe_a2a_backend not in {"ascend_fuseep", "ascend_tp"}


def test_few_layouts_are_judged_for_a_suggestion():
    judged = []

    def nothing_is_legal(layout):
        judged.append(layout)
        return float(len(judged))

    assert nearest_legal(Layout(tp_size=8, ep_size=3), parse_cluster("8x8xh200"), nothing_is_legal) == ()
    assert len(judged) < 600
