from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.layout import Layout
from search_spaces.sglang.rules import judge

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
