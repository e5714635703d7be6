from __future__ import annotations

import pytest

from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.errors import CannotRunError, MalformedError, UnknownNameError, UserError
from search_spaces.layout import Layout
from search_spaces.sglang.flags import to_argv
from search_spaces.sglang.rules import judge
from search_spaces.sglang.versions import EngineVersion, release_0_5
from search_spaces.space import MEM_FRACTIONS, enumerate_space

PAIRS = [
    ("kimi-k2.6", "8xrtx-pro-6000"),
    ("kimi-k2.6", "2x8xh200"),
    ("deepseek-v3", "8xh200"),
    ("deepseek-v3-nvfp4", "8xb200"),
    ("qwen3-30b-a3b-fp8", "8xh100"),
    ("gpt-oss-120b", "4xb200"),
    ("mixtral-8x7b", "6xh100"),
    ("qwen3-30b-a3b", "4xcpu"),
]


@pytest.fixture(params=PAIRS, ids=" on ".join, scope="module")
def spanned(request):
    model, cluster = load_model(request.param[0]), parse_cluster(request.param[1])
    return model, cluster, enumerate_space(model, cluster)


def test_every_candidate_is_judged_legal(spanned):
    model, cluster, space = spanned
    for candidate in space.candidates:
        verdict = judge(candidate.requested, model, cluster, suggest=False)
        assert verdict.is_legal
        assert verdict.effective == candidate.effective


def test_every_candidate_uses_all_gpus(spanned):
    _, cluster, space = spanned
    assert {candidate.effective.num_gpus for candidate in space.candidates} == {cluster.num_gpus}


def test_no_two_candidates_run_the_same(spanned):
    _, _, space = spanned
    assert len({candidate.effective for candidate in space.candidates}) == len(space.candidates)


def test_every_candidate_fills_its_groups(spanned):
    _, _, space = spanned
    for run in (candidate.effective for candidate in space.candidates):
        assert run.tp_size == run.attn_dp_size * run.attn_cp_size * run.attn_tp_size
        assert run.tp_size == run.ep_size * run.moe_dp_size * run.moe_tp_size


def test_the_baseline_is_legal_and_a_candidate(spanned):
    _, _, space = spanned
    assert space.baseline in space.candidates


def test_all_that_is_considered_is_accepted_or_refused(spanned):
    _, _, space = spanned
    kept = {
        (c.requested.tp_size, c.requested.pp_size, c.requested.dp_size, c.requested.attn_dp_size,
         c.requested.attn_cp_size, c.requested.ep_size, c.requested.moe_dp_size, c.requested.moe_a2a_backend)
        for c in space.candidates
    }  # fmt: skip
    duplicates = space.considered - sum(space.refused.values()) - len(kept)
    assert duplicates >= 0
    if all(c.effective.moe_a2a_backend == "none" for c in space.candidates):
        assert duplicates == 0


def test_a_space_is_the_same_every_time(spanned):
    model, cluster, space = spanned
    assert enumerate_space(model, cluster) == space


def kimi_space(**options):
    return enumerate_space(load_model("kimi-k2.6"), parse_cluster("8xrtx-pro-6000"), **options)


def test_the_storys_layouts_are_in_the_storys_space():
    shapes = {(c.effective.tp_size, c.effective.pp_size, c.effective.ep_size) for c in kimi_space().candidates}
    assert {(8, 1, 1), (1, 8, 1), (8, 1, 8)} <= shapes


def test_plain_tensor_parallelism_is_the_baseline_at_the_usual_fraction():
    assert kimi_space().baseline.requested == Layout(tp_size=8, mem_fraction_static=0.90)
    assert kimi_space(mem_fractions=(0.7, 0.8)).baseline.requested.mem_fraction_static == 0.8


def test_where_plain_tensor_parallelism_is_illegal_the_nearest_layout_is_the_baseline():
    space = enumerate_space(load_model("qwen3-30b-a3b-fp8"), parse_cluster("8xh100"))
    assert space.baseline.requested == Layout(tp_size=8, ep_size=4, mem_fraction_static=0.90)


def test_memory_fractions_multiply_the_candidates_but_not_what_is_refused():
    one, four = kimi_space(mem_fractions=(0.9,)), kimi_space()
    assert len(four.candidates) == len(MEM_FRACTIONS) * len(one.candidates)
    assert (one.refused, one.considered) == (four.refused, four.considered)


def test_cpu_servers_take_no_memory_fraction():
    space = enumerate_space(load_model("qwen3-30b-a3b"), parse_cluster("2xcpu"))
    assert {c.requested.mem_fraction_static for c in space.candidates} == {None}
    assert {c.effective.moe_a2a_backend for c in space.candidates} == {"none"}


def test_pins_fix_what_they_name():
    space = kimi_space(pins={"tp_size": 8, "ep_size": 8, "cuda_graph_max_bs_decode": 64})
    sought = [c for c in space.candidates if c != space.baseline]
    assert {(c.effective.tp_size, c.effective.ep_size) for c in sought} == {(8, 8)}
    assert {c.effective.cuda_graph_max_bs_decode for c in space.candidates} == {64}
    assert {c.requested.mem_fraction_static for c in kimi_space(pins={"mem_fraction_static": 0.7}).candidates} == {0.7}


def test_the_baseline_outlives_a_pin_that_excludes_it():
    space = kimi_space(pins={"ep_size": 8})
    assert space.baseline.requested == Layout(tp_size=8, mem_fraction_static=0.90)
    assert [c for c in space.candidates if c.requested.ep_size != 8] == [space.baseline]


def test_the_baseline_keeps_what_is_pinned_besides_sizes():
    space = kimi_space(pins={"page_size": 64, "tp_size": 4})
    assert space.baseline.requested == Layout(tp_size=8, mem_fraction_static=0.90, page_size=64)
    assert space.baseline in space.candidates


def test_ones_own_layouts_come_first_where_they_are_legal():
    own = Layout(tp_size=4, ep_size=2, mem_fraction_static=0.88)
    space = kimi_space(extra=[own, Layout(tp_size=2, ep_size=4)])
    assert space.candidates[0].requested == own
    assert Layout(tp_size=2, ep_size=4) not in {c.requested for c in space.candidates}


@pytest.mark.parametrize(
    ("pins", "error", "text"),
    [
        ({"tp": 8}, UnknownNameError, "tp_size"),
        ({"tp_size": "8"}, MalformedError, "must be of type int"),
        ({"tp_size": 8.0}, MalformedError, "must be of type int"),
        ({"tp_size": True}, MalformedError, "must be of type int"),
        ({"mem_fraction_static": "high"}, MalformedError, "must be of type float"),
        ({"tp_size": 3}, UserError, "uses all 8 GPUs"),
        ({"ep_size": 3}, CannotRunError, "most are refused by"),
        ({"moe_a2a_backend": "pplx"}, CannotRunError, r"all are refused by pplx\.budget"),
        ({"mem_fraction_static": 1.5}, CannotRunError, r"all are refused by mem_fraction\."),
    ],
)
def test_a_pin_that_leaves_nothing_says_why(pins, error, text):
    with pytest.raises(error, match=text):
        kimi_space(pins=pins)


def test_older_versions_know_fewer_backends():
    model, cluster = load_model("deepseek-v3"), parse_cluster("8xh200")
    old = enumerate_space(model, cluster, EngineVersion(0, 5, 9))
    assert old.considered < enumerate_space(model, cluster).considered
    assert {c.effective.moe_a2a_backend for c in old.candidates} <= {"none", "deepep", "mooncake", "flashinfer"}


def test_megamoe_is_left_out_where_the_model_would_fall_back_from_it():
    space = enumerate_space(load_model("deepseek-v3"), parse_cluster("8xb200"))
    assert space.refused["megamoe.falls_back"] > 0
    assert "megamoe" not in {c.effective.moe_a2a_backend for c in space.candidates}


def test_what_refuses_every_combination_is_named_before_what_refuses_most():
    with pytest.raises(CannotRunError, match=r"all are refused by mem_fraction\.\w+: mem_fraction_static must lie"):
        enumerate_space(load_model("qwen3-30b-a3b"), parse_cluster("4xh100"), pins={"mem_fraction_static": 5})


def test_every_combination_is_a_candidate_refused_or_another_one_renamed():
    space = enumerate_space(load_model("deepseek-v3"), parse_cluster("2x8xh200"), mem_fractions=(None,))
    assert space.renamed > 0
    assert space.considered == len(space.candidates) + sum(space.refused.values()) + space.renamed


def test_a_release_offers_only_layouts_that_it_has_flags_for():
    # Until 0.5.21 --enable-dp-attention makes of --dp-size the groups of attention: replicas have no flag left.
    version = release_0_5(12)
    space = enumerate_space(load_model("qwen3-30b-a3b"), parse_cluster("8xh200"), version, mem_fractions=(None,))
    assert "flag.absent" in space.refused
    for candidate in space.candidates:
        to_argv(candidate.requested, version)
