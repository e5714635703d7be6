from __future__ import annotations

import json
from importlib.resources import files

import pytest

from search_spaces.sglang.options import Arity, choices_of, option_setting, options_of, releases_with
from search_spaces.sglang.versions import NEWEST, OLDEST, release_0_5

RELEASES = [release_0_5(patch) for patch in range(OLDEST.patch, NEWEST.patch + 1)]
RAW = json.loads((files("search_spaces.sglang") / "options.json").read_text())


def test_every_known_release_has_its_options():
    assert list(RAW["releases"]) == [str(release) for release in RELEASES]


@pytest.mark.parametrize("release", RELEASES, ids=str)
def test_no_release_has_two_options_of_one_name(release):
    names = [name for number in RAW["releases"][str(release)] for name in RAW["options"][number]["names"]]
    assert len(names) == len(set(names)) == len(options_of(release))


def test_every_option_belongs_to_a_release():
    used = {number for numbers in RAW["releases"].values() for number in numbers}
    assert used == set(range(len(RAW["options"])))


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        # The add_argument calls of server_args.py and arg_groups/fields/ in each release.
        ("--attn-dp-size", 22, 23),
        ("--cuda-graph-max-bs", 9, 19),
        ("--cuda-graph-max-bs-decode", 14, 23),
        ("--dcp-size", 15, 23),
        ("--dwdp-size", 17, 23),
        ("--enable-piecewise-cuda-graph", 9, 13),
        ("--disable-piecewise-cuda-graph", 10, 19),
        ("--enable-prefill-cp", 14, 23),
        ("--enable-layernorm-sp", 19, 23),
        ("--moe-dp-size", 9, 23),
    ],
)
def test_an_option_is_known_from_its_first_release_to_its_last(name, first, last):
    assert list(releases_with(name)) == [release_0_5(patch) for patch in range(first, last + 1)]


@pytest.mark.parametrize(
    ("backend", "first"),
    [
        *[("deepep", 9), ("mori", 9), ("flashinfer", 9), ("nixl", 10), ("megamoe", 12), ("ascend_tp", 16)],
        *[("pplx", 17), ("deepep_v2", 19), ("flashinfer_megamoe", 20)],
    ],
)
def test_an_all_to_all_backend_is_a_choice_from_its_first_release_on(backend, first):
    knowing = [release for release in RELEASES if backend in choices_of("moe_a2a_backend", release)]
    assert knowing == RELEASES[first - OLDEST.patch :]


def test_of_two_options_that_set_one_thing_the_current_one_is_written():
    option = option_setting("cuda_graph_max_bs_decode", release_0_5(19))
    assert option is not None
    assert option.names == ("--cuda-graph-max-bs-decode",)
    assert options_of(release_0_5(19))["--cuda-graph-max-bs"].now == "--cuda-graph-max-bs-decode"


def test_an_option_says_how_many_values_it_takes():
    known = options_of(NEWEST)
    assert known["--tp-size"].arity is Arity.ONE
    assert known["--enable-dp-lm-head"].arity is Arity.NONE
    assert known["--cuda-graph-bs-decode"].arity is Arity.SOME
    assert known["--model-checksum"].arity is Arity.OPTIONAL
    assert known["--no-dllm-fdfo"].arity is Arity.NEGATABLE
