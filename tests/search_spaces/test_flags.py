from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.errors import MalformedError, UnsupportedError
from search_spaces.layout import Layout
from search_spaces.sglang.choices import DEEPEP_MODES, MOE_RUNNER_BACKENDS, moe_a2a_backends
from search_spaces.sglang.flags import FlagError, from_argv, to_argv
from search_spaces.sglang.versions import NEWEST, OLDEST, EngineVersion

SIZES = st.integers(-2, 64)
LIMITS = st.none() | st.integers(-1, 20_000)

LAYOUTS = st.builds(
    Layout,
    tp_size=SIZES,
    pp_size=SIZES,
    dp_size=SIZES,
    attn_dp_size=SIZES,
    attn_cp_size=SIZES,
    ep_size=SIZES,
    moe_dp_size=SIZES,
    moe_a2a_backend=st.sampled_from(moe_a2a_backends(NEWEST)),
    mem_fraction_static=st.none() | st.floats(0.01, 0.99),
    chunked_prefill_size=LIMITS,
    page_size=LIMITS,
    max_running_requests=LIMITS,
    cuda_graph_max_bs_decode=LIMITS,
    moe_runner_backend=st.sampled_from(MOE_RUNNER_BACKENDS),
    deepep_mode=st.sampled_from(DEEPEP_MODES),
    moe_dense_tp_size=LIMITS,
    enable_dp_lm_head=st.booleans(),
    ep_num_redundant_experts=SIZES,
    disable_custom_all_reduce=st.booleans(),
    nnodes=SIZES,
)

VERSIONS = st.builds(EngineVersion, st.just(0), st.just(5), st.integers(OLDEST.patch, NEWEST.patch))

STRANGERS = st.lists(st.sampled_from(["--model-path", "org/model", "--trust-remote-code", "--port=30000", "-x", "--"]))


@given(LAYOUTS, VERSIONS, STRANGERS)
def test_flags_written_for_a_version_read_back_as_the_same_layout(layout, version, strangers):
    try:
        words = to_argv(layout, version)
    except UnsupportedError:
        assert version < EngineVersion(0, 5, 22)
        assert layout.attn_dp_size != 1
        assert layout.dp_size != 1
        return
    parsed = from_argv([*strangers, *words], version)
    assert parsed.layout == layout
    assert parsed.rest == tuple(strangers)


@given(LAYOUTS)
def test_one_word_per_flag_says_the_same_as_two(layout):
    words = list(to_argv(layout))
    joined = []
    while words:
        word = words.pop(0)
        joined.append(f"{word}={words.pop(0)}" if words and not words[0].startswith("--") else word)
    assert from_argv(joined).layout == layout


def test_a_plain_launch_needs_no_flags():
    assert to_argv(Layout()) == ()


def test_every_field_of_a_layout_has_a_flag():
    strange = {
        field.name: {int: 7, str: "deepep", bool: True, type(None): 7}[type(getattr(Layout(), field.name))]
        for field in fields(Layout)
    }
    strange |= {"mem_fraction_static": 0.5, "deepep_mode": "normal", "moe_runner_backend": "triton"}
    assert from_argv(to_argv(Layout(**strange))).layout == Layout(**strange)


def test_attention_dp_is_spelled_as_the_version_spells_it():
    layout = Layout(tp_size=8, attn_dp_size=4)
    assert to_argv(layout, EngineVersion(0, 5, 22)) == ("--tp-size", "8", "--attn-dp-size", "4")
    assert to_argv(layout, EngineVersion(0, 5, 21)) == (
        "--tp-size", "8", "--dp-size", "4", "--enable-dp-attention",
    )  # fmt: skip


def test_the_old_spelling_of_attention_dp_moves_and_is_reported():
    parsed = from_argv(["--tp", "8", "--dp", "8", "--enable-dp-attention"])
    assert parsed.layout == Layout(tp_size=8, attn_dp_size=8)
    assert {a.name: (a.before, a.after) for a in parsed.adjustments} == {
        "dp_size": ("8", "1"),
        "attn_dp_size": ("default 1", "8"),
    }


def test_beside_the_new_spelling_the_old_switch_moves_nothing():
    parsed = from_argv(["--attn-dp-size", "4", "--dp-size", "4", "--enable-dp-attention"])
    assert parsed.layout == Layout(attn_dp_size=4, dp_size=4)


def test_the_decode_graph_limit_was_renamed_in_0_5_14():
    layout = Layout(cuda_graph_max_bs_decode=64)
    assert to_argv(layout, EngineVersion(0, 5, 13)) == ("--cuda-graph-max-bs", "64")
    assert to_argv(layout, EngineVersion(0, 5, 14)) == ("--cuda-graph-max-bs-decode", "64")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        # argparse of sglang 0.5.23
        (
            ["--pp", "2"],
            "ambiguous option: --pp could match --pp-async-batch-depth, --pp-max-micro-batch-size, --pp-size",
        ),
        (
            ["--cuda-graph-max-bs", "64"],
            "ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode, --cuda-graph-max-bs-prefill",
        ),
        (
            ["--tp-size", "eight"],
            "argument --tp-size/--tensor-parallel-size: invalid int value: 'eight'",
        ),
        (["--tp-size"], "argument --tp-size/--tensor-parallel-size: expected one argument"),
        (["--tp-size", "--ep", "2"], "argument --tp-size/--tensor-parallel-size: expected one argument"),
        (["--tp-size", "2.0"], "argument --tp-size/--tensor-parallel-size: invalid int value: '2.0'"),
        (["--enable-dp-lm-head=yes"], "argument --enable-dp-lm-head: ignored explicit argument 'yes'"),
    ],
)
def test_what_argparse_refuses_is_refused_with_its_words(words, text):
    with pytest.raises(FlagError) as refused:
        from_argv(words)
    assert refused.value.engine_text == text
    assert isinstance(refused.value, MalformedError)


def test_a_flag_of_a_later_version_is_refused():
    with pytest.raises(FlagError, match="--attn-dp-size"):
        from_argv(["--attn-dp-size", "4"], EngineVersion(0, 5, 21))


@pytest.mark.parametrize(
    ("short", "layout"),
    [
        ("--tp 8", Layout(tp_size=8)),
        ("--tensor-parallel-size 8", Layout(tp_size=8)),
        ("--dp 2", Layout(dp_size=2)),
        ("--ep 4", Layout(ep_size=4)),
        ("--mem 0.9", Layout(mem_fraction_static=0.9)),
        ("--chunked-prefill-size -1", Layout(chunked_prefill_size=-1)),
        ("--tp 4 --tp-size 8", Layout(tp_size=8)),
    ],
)
def test_abbreviations_and_aliases_work_as_in_argparse(short, layout):
    assert from_argv(short.split()) == from_argv(to_argv(layout))
