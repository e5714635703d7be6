"""The table of rules as a whole: nothing that spares questions or labels answers may change a verdict."""

from __future__ import annotations

import typing
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.catalogue import load_model, model_names, parse_cluster
from search_spaces.layout import Layout
from search_spaces.sglang.options import choices_of
from search_spaces.sglang.rules import RULES, first_violation, judge, launch_of
from search_spaces.sglang.rules_arguments import CHOSEN
from search_spaces.sglang.target import Target
from search_spaces.sglang.versions import NEWEST, OLDEST, EngineVersion
from search_spaces.verdict import Evidence

_HINTS = typing.get_type_hints(Layout)


def _values(name):
    words = choices_of(name, NEWEST)
    if words:
        return st.sampled_from(sorted(words))
    hint = str(_HINTS[name])
    if "bool" in hint:
        return st.just(True)
    if "tuple" in hint:
        return st.sampled_from([(1, 2, 4), (8, 100)])
    if "int" in hint:
        return st.sampled_from([0, 1, 2, 4, 8, 16, 4096])
    if "float" in hint:
        return st.sampled_from([0.1, 0.5, 1.5])
    return st.sampled_from(["EAGLE", "DFLASH", "lpm", "fp8", "trivial", "nsa"])


_WIDTHS = st.fixed_dictionaries({"tp_size": st.sampled_from([1, 2, 4, 8])})
_OTHERS = st.sampled_from([f.name for f in fields(Layout) if f.name != "tp_size"])
LAYOUTS = st.lists(_OTHERS, max_size=4, unique=True).flatmap(
    lambda names: st.builds(
        lambda widths, more: Layout(**widths, **more),
        _WIDTHS,
        st.fixed_dictionaries({name: _values(name) for name in names}),
    )
)
MODELS = st.sampled_from(model_names())
CLUSTERS = st.sampled_from(["8xh200", "8xb200", "8xrtx-pro-6000", "8xl40s", "4xcpu"])
VERSIONS = st.builds(EngineVersion, st.just(0), st.just(5), st.integers(OLDEST.patch, NEWEST.patch))


@given(LAYOUTS, MODELS, CLUSTERS, VERSIONS)
def test_no_rule_is_spared_that_would_be_broken(layout, model, cluster, version):
    place = parse_cluster(cluster)
    launch = launch_of(layout, Target(model=load_model(model), gpu=place.gpu), place, version)
    asked = [rule for rule in RULES if rule.holds_for(version, is_cpu=place.gpu.is_cpu) and rule.needs <= launch.sound]
    broken = [rule.id for rule in asked if rule.broken(launch)]
    verdict = judge(layout, load_model(model), place, version, suggest=False)
    assert [violation.rule for violation in verdict.violations] == broken
    first = first_violation(launch)
    assert (first and first.id) == (broken[0] if broken else None)


def test_words_are_checked_wherever_the_engine_has_a_closed_list():
    closed = {f.name for f in fields(Layout) if choices_of(f.name, NEWEST)}
    assert set(CHOSEN) == closed | {"speculative_algorithm"}  # its names are looked up in capitals, later


def evidence(**sizes):
    verdict = judge(Layout(**sizes), load_model("qwen3-235b-a22b-fp8"), parse_cluster("8xh200"), suggest=False)
    return verdict.violations[0].evidence


def test_a_verdict_tells_what_it_rests_on():
    # Argument stages and construction were executed, what happens after them on GPUs was read.
    assert evidence(tp_size=8, attn_dp_size=3) is Evidence.EXECUTED
    assert evidence(tp_size=8, moe_a2a_backend="deepep", moe_runner_backend="triton") is Evidence.READ


@pytest.mark.parametrize(
    ("sizes", "rule"),
    [
        ({"max_running_requests": 0}, "max_running_requests.positive"),
        ({"cuda_graph_max_bs_decode": 0}, "cuda_graph_max_bs_decode.positive"),
        ({"page_size": 0}, "page.positive"),
        ({"dtype": "float32"}, "dtype.quantization"),
        ({"context_length": 10_000_000}, "context.length"),
        ({"schedule_policy": "shortest-prefill-first", "disable_radix_cache": True}, "schedule.policy_needs_cache"),
    ],
)
def test_what_only_bites_later_is_refused_too(sizes, rule):
    verdict = judge(Layout(tp_size=8, **sizes), load_model("qwen3-30b-a3b-fp8"), parse_cluster("8xh200"), suggest=False)
    assert rule in [violation.rule for violation in verdict.violations]


def test_neighbouring_engines_may_not_share_a_gpu():
    verdict = judge(
        Layout(tp_size=2, pp_size=2, gpu_id_step=2, base_gpu_id=7),
        load_model("qwen3-30b-a3b"),
        parse_cluster("8xh200"),
        suggest=False,
    )
    assert not verdict.is_legal
