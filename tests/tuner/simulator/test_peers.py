"""Which ranks a node of several has."""

from __future__ import annotations

import pytest

from search_spaces.layout import Layout
from tuner.simulator.peers import first_rank_of
from tuner.simulator.startup import first_rank_name


@pytest.mark.parametrize(
    ("layout", "node", "first", "name"),
    [
        (Layout(tp_size=16, nnodes=2), 0, (0, 0), "TP0"),
        (Layout(tp_size=16, nnodes=2), 1, (0, 8), "TP8"),
        (Layout(tp_size=16, ep_size=16, nnodes=2), 1, (0, 8), "TP8 EP8"),
        (Layout(tp_size=16, attn_dp_size=16, ep_size=16, nnodes=2), 1, (0, 8), "DP8 TP8 EP8"),
        (Layout(tp_size=8, pp_size=2, nnodes=2), 1, (1, 0), "PP1 TP0"),
        (Layout(tp_size=8, pp_size=2, nnodes=4), 3, (1, 4), "PP1 TP4"),
        (Layout(tp_size=4, pp_size=4, nnodes=2), 1, (2, 0), "PP2 TP0"),
    ],
)
def test_ranks_are_dealt_out_node_by_node(layout: Layout, node: int, first: tuple[int, int], name: str) -> None:
    """`_calculate_rank_ranges`, srt/entrypoints/engine.py:2045 of SGLang 0.5.23."""
    assert first_rank_of(layout, node) == first
    assert first_rank_name(layout, node) == name
