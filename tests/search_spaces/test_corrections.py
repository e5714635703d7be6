from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.sglang.corrections import corrected
from search_spaces.sglang.flags import from_argv
from search_spaces.sglang.versions import NEWEST, OLDEST, release_0_5


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--tp-sizee 8", "--tp-size 8"),
        ("--tp 8 --eps-size 4", "--tp 8 --ep-size 4"),
        ("--tp 8 --ep_size=4", "--tp 8 --ep-size=4"),
        ("--pp 2 --tp 4", "--pp-size 2 --tp 4"),
        ("--tp 8 --moe-a2a-backend deeepep", "--tp 8 --moe-a2a-backend deepep"),
        ("--tp 8 --moe-a2a-backend=deep-ep", "--tp 8 --moe-a2a-backend=deepep"),
        ("--gpu-memory-utilization 0.9", "--mem-fraction-static 0.9"),
        ("--tp8 --mem0.9", "--tp 8 --mem 0.9"),
        ("--tp 8 \u2013-ep 8 \u2014mem-fraction-static 0.9", "--tp 8 --ep 8 --mem-fraction-static 0.9"),
        ("--tp 8 --enable-deepep-moe --deepep-mode normal", "--tp 8 --moe-a2a-backend deepep --deepep-mode normal"),
        ("--tp 8 --enable-ep-moe", "--tp 8 --ep-size 8"),
        (
            "--tensor-parallel-size 8 --max-model-len 32768 --enable-expert-parallel",
            "--tensor-parallel-size 8 --context-length 32768 --ep-size 8",
        ),
        ("--enable-flashinfer-mla", "--attention-backend flashinfer"),
        ("--nsa-prefill-backend tilelang", "--dsa-prefill-backend tilelang"),
        ("--cuda-graph-max-bs 64", "--cuda-graph-max-bs-decode 64"),
        ("--tp 8 --kv-cache-dtype fp8", "--tp 8 --kv-cache-dtype fp8_e4m3"),
        ("--tp eight", "--tp 8"),
        ("--mem-fraction-static 0,9", "--mem-fraction-static 0.9"),
        ("--enable-dp-attention=true", "--enable-dp-attention"),
        ("-- --tp 8", "--tp 8"),
    ],
)
def test_a_mistyped_flag_becomes_the_nearest_known_one(typed, meant):
    assert corrected(shlex.split(typed), NEWEST) == tuple(shlex.split(meant))


@pytest.mark.parametrize(
    ("typed", "left"),
    [
        ("--zyxwvut 3 --tp 8", "--tp 8"),
        ("--tp 8 --ep many --pp-size=", "--tp 8"),
        ("--tp 8 9 other --ep 8", "--tp 8 --ep 8"),
        ("--enable-ep-moe", ""),
        ("--tp-size", ""),
    ],
)
def test_what_has_nothing_near_it_is_left_to_the_engine(typed, left):
    assert corrected(shlex.split(typed), NEWEST) == tuple(shlex.split(left))


def test_a_flag_of_a_newer_release_is_said_in_the_older_ones_words():
    assert corrected(["--tp", "8", "--attn-dp-size", "8"], release_0_5(9)) == (
        "--tp", "8", "--dp-size", "8", "--enable-dp-attention",
    )  # fmt: skip
    assert corrected(["--tp", "8", "--dcp-size", "2"], release_0_5(9)) == ("--tp", "8")


@pytest.mark.parametrize("words", ["--tp 8", "", "--tp 8 --enable-dp-attention --dp 8"])
def test_what_is_right_is_left(words):
    assert corrected(shlex.split(words), NEWEST) is None


WORDS = st.lists(
    st.sampled_from(
        [
            "--tp",
            "8",
            "--tp8",
            "--",
            "-x",
            "x",
            "--ep=",
            "--xyzzy",
            "--attn-dp-size",
            "\u2014tp",
            "--pp",
            "-1",
            "=",
            "--tp=",
        ]
    )
)


@given(WORDS, st.integers(OLDEST.patch, NEWEST.patch).map(release_0_5))
def test_whatever_was_typed_what_is_left_of_it_can_be_read(words, version):
    from_argv(words if (now := corrected(words, version)) is None else now, version)
