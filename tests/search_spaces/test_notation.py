from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.errors import MalformedError
from search_spaces.layout import Layout
from search_spaces.notation import names_in, read_notation, readings
from search_spaces.sglang.choices import moe_a2a_backends
from search_spaces.sglang.versions import NEWEST


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("TP4 EP2", Layout(tp_size=4, ep_size=2)),
        ("tp8_ep8", Layout(tp_size=8, ep_size=8)),
        ("TP4EP2", Layout(tp_size=4, ep_size=2)),
        ("tp=8, ep=8", Layout(tp_size=8, ep_size=8)),
        ("TP8+DP8 attention", Layout(tp_size=8, attn_dp_size=8)),
        ("tp8 dp8 attn", Layout(tp_size=8, attn_dp_size=8)),
        ("dp attention tp8", Layout(tp_size=8, attn_dp_size=8)),
        ("TP8 with DP attention", Layout(tp_size=8, attn_dp_size=8)),
        ("tp8 dp8", Layout(tp_size=8, dp_size=8)),
        ("tp=8, ep=8, dpa", Layout(tp_size=8, ep_size=8, attn_dp_size=8)),
        ("tp8 dp attention 4", Layout(tp_size=8, attn_dp_size=4)),
        ("TP8 DPA8", Layout(tp_size=8, attn_dp_size=8)),
        ("TP8 EP", Layout(tp_size=8, ep_size=8)),
        ("DEP8", Layout(tp_size=8, ep_size=8, attn_dp_size=8)),
        ("TEP8", Layout(tp_size=8, ep_size=8)),
        ("attn_tp4 attn_dp2 moe_tp4 ep2", Layout(tp_size=8, attn_dp_size=2, ep_size=2)),
        ("TP8 deepep", Layout(tp_size=8, moe_a2a_backend="deepep")),
        (
            "TP8 ADP8 deepep-v2 mem0.9",
            Layout(tp_size=8, attn_dp_size=8, moe_a2a_backend="deepep_v2", mem_fraction_static=0.9),
        ),
        ("tp8_megamoe", Layout(tp_size=8, moe_a2a_backend="megamoe")),
        ("TP8 flashinfer_megamoe", Layout(tp_size=8, moe_a2a_backend="flashinfer_megamoe")),
        ("tp4 pp2 mem 0.88", Layout(tp_size=4, pp_size=2, mem_fraction_static=0.88)),
    ],
)
def test_a_notation_stands_for_the_flags_of_the_same_names(text, layout):
    assert read_notation(text).literal == layout


SIZE = st.sampled_from([1, 2, 4, 8])


@given(
    st.builds(
        Layout,
        tp_size=SIZE,
        pp_size=SIZE,
        dp_size=SIZE,
        attn_dp_size=SIZE,
        attn_cp_size=SIZE,
        ep_size=SIZE,
        moe_dp_size=SIZE,
        mem_fraction_static=st.sampled_from([None, 0.8, 0.94]),
        disable_custom_all_reduce=st.booleans(),
        enforce_disable_flashinfer_allreduce_fusion=st.booleans(),
        enable_mscclpp=st.booleans(),
        enable_torch_symm_mem=st.booleans(),
        moe_a2a_backend=st.sampled_from(moe_a2a_backends(NEWEST)),
    )
)
def test_a_layouts_own_label_is_a_notation_of_it(layout):
    assert read_notation(layout.label).literal == layout


@pytest.mark.parametrize(
    ("text", "num_gpus", "cluster"),
    [
        ("TP4 EP2", None, ""),
        ("TP4 EP2 on 8", 8, ""),
        ("TP4 EP2 on 8 GPUs", 8, ""),
        ("TP4 EP2 @ 2x8xh200", None, "2x8xh200"),
    ],
)
def test_a_notation_may_say_what_it_runs_on(text, num_gpus, cluster):
    notation = read_notation(text)
    assert (notation.num_gpus, notation.cluster) == (num_gpus, cluster)


@pytest.mark.parametrize("text", ["", "hello", "TP8 TP4", "8-way", "--tp-size 8", "mem 0.9", "tp8 quickly"])
def test_what_is_no_notation_is_refused_in_one_line(text):
    with pytest.raises(MalformedError) as refused:
        read_notation(text)
    assert "\n" not in str(refused.value)


def layouts(text, num_gpus):
    return [reading.layout for reading in readings(read_notation(text), num_gpus)]


def test_tp4_ep2_on_eight_gpus_was_meant_as_two_groups_of_four_way_tensor_parallel_experts():
    assert layouts("TP4 EP2", 8) == [
        Layout(tp_size=8, ep_size=2),
        Layout(tp_size=8, ep_size=2, attn_dp_size=2),
    ]


def test_what_its_flags_already_say_is_no_second_reading():
    assert layouts("TP8 EP8", 8) == []
    assert layouts("TP8 EP2", 8) == []
    assert layouts("TP4 EP4", 8) == []


def test_replicas_of_the_whole_width_were_meant_as_attention_data_parallelism():
    assert layouts("TP8 DP8", 8) == [Layout(tp_size=8, attn_dp_size=8)]


def test_attention_data_parallelism_alone_is_over_all_gpus():
    assert layouts("dp attention 8", 8) == [Layout(tp_size=8, attn_dp_size=8)]


def test_pipeline_stages_are_kept_in_every_reading():
    assert layouts("TP2 PP2 EP2", 8)[0] == Layout(tp_size=4, pp_size=2, ep_size=2)


@given(SIZE, SIZE, SIZE, st.sampled_from([8, 16]))
def test_every_reading_uses_all_gpus_and_fills_its_groups(tp, ep, dp, num_gpus):
    for layout in layouts(f"TP{tp} EP{ep} DP{dp}", num_gpus):
        assert layout.num_gpus == num_gpus
        assert layout.tp_size == layout.ep_size * layout.moe_tp_size
        assert layout.tp_size == layout.attn_dp_size * layout.attn_tp_size


@pytest.mark.parametrize(
    ("name", "claims"),
    [
        ("run_glm5_tp8_ep8.sh", [{"tp_size": 8, "ep_size": 8}]),
        ("--served-model-name glm-tp4ep2", [{"tp_size": 4, "ep_size": 2}]),
        ("kimi-DEP8", [{"tp_size": 8, "ep_size": 8, "attn_dp_size": 8}]),
        ("serve-tp8.sh", []),
        ("--tp 8 --ep 8", []),
        ("http8_keep8", []),
    ],
)
def test_a_name_claims_a_layout_where_it_holds_two_sizes(name, claims):
    assert [claim.flags for claim in names_in(name)] == claims
