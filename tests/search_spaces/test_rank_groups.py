"""The groups that SGLang 0.5.23's own initialize_model_parallel made of eight ranks, recorded."""

from __future__ import annotations

import pytest

from search_spaces.layout import Layout
from search_spaces.rank_groups import rank_groups

ALONE = "[0][1][2][3][4][5][6][7]"

EXECUTED = [
    (Layout(tp_size=8), {"attention TP": "[0-7]", "expert parallel": ALONE, "expert TP": "[0-7]"}),
    (
        Layout(tp_size=8, ep_size=2),
        {"attention TP": "[0-7]", "expert parallel": "[0,4][1,5][2,6][3,7]", "expert TP": "[0-3][4-7]"},
    ),
    (Layout(tp_size=8, ep_size=8), {"expert parallel": "[0-7]", "expert TP": ALONE}),
    (
        Layout(tp_size=8, attn_dp_size=2, ep_size=4),
        {
            "attention TP": "[0-3][4-7]",
            "expert parallel": "[0,2,4,6][1,3,5,7]",
            "expert TP": "[0,1][2,3][4,5][6,7]",
        },
    ),
    (Layout(tp_size=8, attn_dp_size=8, ep_size=8), {"attention TP": ALONE, "expert parallel": "[0-7]"}),
    (
        Layout(tp_size=4, pp_size=2, attn_dp_size=2, ep_size=2),
        {
            "pipeline stages": "[0-3][4-7]",
            "attention TP": "[0,1][2,3][4,5][6,7]",
            "expert parallel": "[0,2][1,3][4,6][5,7]",
            "expert TP": "[0,1][2,3][4,5][6,7]",
        },
    ),
    (
        Layout(tp_size=8, attn_cp_size=2, moe_dp_size=2, ep_size=4),
        {
            "attention TP": "[0-3][4-7]",
            "attention CP": "[0,4][1,5][2,6][3,7]",
            "expert parallel": "[0-3][4-7]",
            "expert DP": "[0,4][1,5][2,6][3,7]",
        },
    ),
    (
        Layout(tp_size=8, attn_dp_size=2, attn_cp_size=2, moe_dp_size=2, ep_size=4),
        {"attention TP": "[0,1][2,3][4,5][6,7]", "attention CP": "[0,2][1,3][4,6][5,7]"},
    ),
]


@pytest.mark.parametrize(("layout", "groups"), EXECUTED, ids=[layout.label for layout, _ in EXECUTED])
def test_groups_are_drawn_as_the_engine_makes_them(layout, groups):
    drawn = {group.name: group.drawing for group in rank_groups(layout)}
    assert {name: drawn[name] for name in groups} == groups


def test_every_gpu_is_in_exactly_one_group_of_each_kind():
    layout = Layout(tp_size=8, pp_size=2, attn_dp_size=2, attn_cp_size=2, ep_size=4)
    for kind in rank_groups(layout):
        assert sorted(rank for group in kind.groups for rank in group) == list(range(16))


@pytest.mark.parametrize("layout", [Layout(tp_size=8, ep_size=3), Layout(tp_size=0), Layout(tp_size=4, attn_dp_size=8)])
def test_sizes_that_do_not_divide_make_no_groups(layout):
    assert rank_groups(layout) == ()


def test_many_groups_are_cut_short():
    (expert_parallel,) = [g for g in rank_groups(Layout(tp_size=64, ep_size=2)) if g.name == "expert parallel"]
    assert expert_parallel.drawing == "[0,32][1,33][2,34]...[31,63] (32 groups)"
