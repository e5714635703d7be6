from __future__ import annotations

import argparse
import sys
from dataclasses import fields, replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from search_spaces.errors import MalformedError, UnsupportedError
from search_spaces.layout import Layout
from search_spaces.sglang.argument_parser import mentions
from search_spaces.sglang.flags import FlagError, flags_from_mapping, from_argv, nearest_option, to_argv
from search_spaces.sglang.foreign_flags import OTHER_ENGINES, OTHER_WORDS, SWITCHES, TP_SIZE
from search_spaces.sglang.options import Arity, choices_of, options_of
from search_spaces.sglang.versions import NEWEST, OLDEST, EngineVersion, release_0_5
from search_spaces.verdict import Stage

VERSIONS = st.integers(OLDEST.patch, NEWEST.patch).map(release_0_5)

DEFAULT = Layout()

ODD = {
    # Fields whose option reads no int, no word of a list and no path.
    "mem_fraction_static": st.floats(0.01, 0.99),
    "schedule_conservativeness": st.floats(0.01, 9),
    "cuda_graph_bs_decode": st.lists(st.integers(1, 512), min_size=1).map(tuple),
    "cuda_graph_bs_prefill": st.lists(st.integers(1, 512), min_size=1).map(tuple),
}


def values_of(name):
    if name in ODD:
        return ODD[name]
    if choices_of(name, NEWEST):
        return st.sampled_from(choices_of(name, NEWEST))
    if isinstance(getattr(DEFAULT, name), bool):
        return st.booleans()
    is_number = options_of(NEWEST)["--" + name.replace("_", "-")].reads in {"int", "human_readable_int"}
    return st.integers(-2, 20_000) if is_number else st.sampled_from(["one", "org/two"])


NAMES = [each.name for each in fields(Layout)]

LAYOUTS = st.fixed_dictionaries({}, optional={name: values_of(name) for name in NAMES}).map(
    lambda changed: replace(DEFAULT, **changed)
)

STRANGERS = st.lists(
    st.sampled_from([("--model-path", "org/model"), ("--trust-remote-code",), ("--port=30000",), ("--host", "::")])
).map(lambda chosen: [word for words in chosen for word in words])


@given(LAYOUTS, STRANGERS)
def test_flags_read_back_as_the_same_layout(layout, strangers):
    parsed = from_argv([*strangers, *to_argv(layout)])
    assert parsed.layout == layout
    assert parsed.rest == tuple(strangers)


@given(LAYOUTS, VERSIONS)
def test_what_a_release_has_words_for_it_reads_back(layout, version):
    try:
        words = to_argv(layout, version)
    except UnsupportedError:
        assert version < NEWEST
        return
    if all(has_word_for(name, value, version) for name, value in changes_of(layout)):
        assert from_argv(words, version).layout == layout


def changes_of(layout):
    return [(name, getattr(layout, name)) for name in NAMES if getattr(layout, name) != getattr(DEFAULT, name)]


def has_word_for(name, value, version):
    """Releases accept more words as they go."""
    choices = choices_of(name, version)
    return not choices or value in choices


@given(LAYOUTS)
def test_one_word_per_flag_says_the_same_as_two(layout):
    several = {"cuda_graph_bs_decode", "cuda_graph_bs_prefill"}
    layout = replace(layout, **dict.fromkeys(several))
    words = list(to_argv(layout))
    joined = []
    while words:
        word = words.pop(0)
        joined.append(f"{word}={words.pop(0)}" if words and not words[0].startswith("--") else word)
    assert from_argv(joined).layout == layout


def test_a_plain_launch_needs_no_flags():
    assert to_argv(Layout()) == ()


def test_every_field_of_a_layout_is_the_name_of_an_option():
    known = {option.dest for option in options_of(NEWEST).values()}
    assert known.issuperset(NAMES)


def test_attention_dp_is_spelled_as_the_version_spells_it():
    layout = Layout(tp_size=8, attn_dp_size=4)
    assert to_argv(layout, release_0_5(22)) == ("--tp-size", "8", "--attn-dp-size", "4")
    assert to_argv(layout, release_0_5(21)) == ("--tp-size", "8", "--dp-size", "4", "--enable-dp-attention")


def test_before_attention_dp_had_a_flag_it_could_not_be_combined_with_replicas():
    with pytest.raises(UnsupportedError, match="replicas"):
        to_argv(Layout(dp_size=2, attn_dp_size=2), release_0_5(21))


def test_the_old_spelling_of_attention_dp_moves_and_is_reported():
    parsed = from_argv(["--tp", "8", "--dp", "8", "--enable-dp-attention"])
    assert parsed.layout == Layout(tp_size=8, attn_dp_size=8)
    assert {a.name: (a.before, a.after) for a in parsed.adjustments} == {
        "dp_size": ("8", "1"),
        "attn_dp_size": ("default 1", "8"),
    }


def test_where_it_was_the_only_spelling_nothing_is_moved():
    parsed = from_argv(["--tp", "8", "--dp", "8", "--enable-dp-attention"], release_0_5(21))
    assert parsed.layout == Layout(tp_size=8, attn_dp_size=8)
    assert parsed.adjustments == ()


def test_beside_the_new_spelling_the_old_switch_moves_nothing():
    parsed = from_argv(["--attn-dp-size", "4", "--dp-size", "4", "--enable-dp-attention"])
    assert parsed.layout == Layout(attn_dp_size=4, dp_size=4)


def test_the_decode_graph_limit_was_renamed_in_0_5_14():
    layout = Layout(cuda_graph_max_bs_decode=64)
    assert to_argv(layout, release_0_5(13)) == ("--cuda-graph-max-bs", "64")
    assert to_argv(layout, release_0_5(14)) == ("--cuda-graph-max-bs-decode", "64")
    assert from_argv(["--cuda-graph-max-bs", "64"], release_0_5(19)).layout == layout


@pytest.mark.parametrize(
    ("words", "patch", "layout"),
    [
        (
            "--disable-cuda-graph",
            13,
            Layout(disable_decode_cuda_graph=True, disable_prefill_cuda_graph=True),
        ),
        ("--disable-piecewise-cuda-graph", 13, Layout(disable_prefill_cuda_graph=True)),
        ("--disable-piecewise-cuda-graph", 14, Layout(cuda_graph_backend_prefill="disabled")),
        (
            "--enable-nsa-prefill-context-parallel",
            12,
            Layout(enable_prefill_cp=True, cp_strategy="interleave"),
        ),
        (
            "--enable-nsa-prefill-context-parallel --nsa-prefill-cp-mode in-seq-split",
            19,
            Layout(enable_prefill_cp=True, cp_strategy="zigzag"),
        ),
        ("--enable-prefill-context-parallel", 10, Layout(enable_prefill_cp=True, cp_strategy="zigzag")),
        ("--piecewise-cuda-graph-max-tokens 512", 11, Layout(cuda_graph_max_bs_prefill=512)),
        ("--max-total-tokens 8k", 10, Layout(max_total_tokens=8000)),
        ("--max-total-tokens 8Ki", 23, Layout(max_total_tokens=8192)),
    ],
)
def test_what_older_releases_called_otherwise_fills_the_fields_of_today(words, patch, layout):
    assert from_argv(words.split(), release_0_5(patch)).layout == layout


@pytest.mark.parametrize(
    ("words", "text"),
    [
        # argparse of sglang 0.5.23
        (
            ["--pp", "2"],
            "ambiguous option: --pp could match --pp-size, --pp-max-micro-batch-size, --pp-async-batch-depth",
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
        (["--foo", "5", "bar"], "unrecognized arguments: --foo 5 bar"),
        (["--", "x"], "unrecognized arguments: -- x"),
        (
            ["--deepep-mode", "fast"],
            "argument --deepep-mode: invalid choice: 'fast' (choose from 'auto', 'normal', 'low_latency')",
        ),
    ],
)
def test_what_argparse_refuses_is_refused_with_its_words(words, text):
    with pytest.raises(FlagError) as refused:
        from_argv(words)
    assert refused.value.engine_text == text
    assert isinstance(refused.value, MalformedError)
    assert refused.value.violation.stage is Stage.PARSE
    assert refused.value.violation.engine_text == text


@pytest.mark.parametrize(
    ("words", "patch", "rule", "word", "nearest", "hint"),
    [
        ("--attn-dp-size 4", 21, "flag.unknown", "--attn-dp-size", "--dp-size", "known since 0.5.22"),
        ("--dcp-size 2", 9, "flag.unknown", "--dcp-size", "", "known since 0.5.15"),
        ("--tp8", 23, "flag.unknown", "--tp8", "--tp", "did you mean --tp 8 (for --tp8)?"),
        ("--tp eight", 23, "flag.value", "eight", "8", "did you mean 8?"),
        ("\u2014tp 8", 23, "flag.unknown", "\u2014tp", "--tp", "did you mean --tp (for \u2014tp)?"),
        ("--enable-ep-moe", 23, "flag.unknown", "--enable-ep-moe", "--ep-size", "did you mean --ep-size TP_SIZE"),
        ("--kv-cache-dtype fp8", 23, "kv_cache_dtype.choice", "fp8", "fp8_e4m3", "did you mean fp8_e4m3?"),
        ("-- --ep 8", 23, "flag.unknown", "--", "", "a bare -- ends the flags"),
        (
            "--cuda-graph-max-bs 4",
            23,
            "flag.ambiguous",
            "--cuda-graph-max-bs",
            "--cuda-graph-max-bs-decode",
            "removed in 0.5.20: now --cuda-graph-max-bs-decode",
        ),
        ("--enable-piecewise-cuda-graph", 23, "flag.unknown", "--enable-piecewise-cuda-graph", "", "removed in 0.5.14"),
        ("--nsa-prefill-cp-mode x", 23, "flag.unknown", "--nsa-prefill-cp-mode", "--cp-strategy", "now --cp-strategy"),
        ("--tp-sizee 8", 23, "flag.unknown", "--tp-sizee", "--tp-size", "did you mean --tp-size"),
        ("--tp_size=8", 23, "flag.unknown", "--tp_size", "--tp-size", "did you mean --tp-size"),
        (
            "--gpu-memory-utilization 0.9",
            23,
            "flag.unknown",
            "--gpu-memory-utilization",
            "--mem-fraction-static",
            "did you mean",
        ),
        ("--moe-a2a-backend deeepep", 23, "a2a.choice", "deeepep", "deepep", "did you mean deepep?"),
        ("--moe-a2a-backend pplx", 16, "a2a.choice", "pplx", "", ""),
        ("--pp 2", 23, "flag.ambiguous", "--pp", "--pp-size", "write --pp-size in full"),
        ("--xyzzy", 23, "flag.unknown", "--xyzzy", "", "no release from 0.5.9 to 0.5.23 knows --xyzzy"),
        (
            "--enable-expert-distribution-metrics",
            19,
            "flag.removed",
            "--enable-expert-distribution-metrics",
            "",
            "",
        ),
    ],
)
def test_a_refusal_says_what_was_probably_meant(words, patch, rule, word, nearest, hint):
    with pytest.raises(FlagError) as refused:
        from_argv(words.split(), release_0_5(patch))
    error = refused.value
    assert (error.rule, error.word, error.nearest) == (rule, word, nearest)
    assert hint in error.hint
    assert hint in str(error)


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


def test_what_is_not_about_the_layout_is_kept_and_read():
    parsed = from_argv(["--model-path", "org/model", "--tp", "8", "--trust-remote-code", "--api-key=", "--port", "3"])
    assert parsed.rest == ("--model-path", "org/model", "--trust-remote-code", "--api-key=", "--port", "3")
    assert parsed.others == {"model_path": "org/model", "trust_remote_code": True, "api_key": "", "port": 3}


def test_flags_given_as_a_mapping_become_words():
    flags = {
        "tp-size": 8,
        "enable_dp_attention": True,
        "trust-remote-code": False,
        "dllm-fdfo": False,
        "page-size": None,
        "cuda-graph-bs-decode": [1, 2],
        "chunked-prefill-size": -1,
        "json-model-override-args": {"a": 1},
        "chat-template": "-x",
    }
    assert flags_from_mapping(flags) == (
        "--tp-size", "8", "--enable-dp-attention", "--no-dllm-fdfo", "--cuda-graph-bs-decode", "1", "2",
        "--chunked-prefill-size", "-1", "--json-model-override-args", '{"a": 1}', "--chat-template=-x",
    )  # fmt: skip


@pytest.mark.parametrize("flags", [{"": 1}, {"--": True}, {"tp-size": object()}])
def test_a_mapping_that_says_nothing_readable_is_refused(flags):
    with pytest.raises(MalformedError):
        flags_from_mapping(flags)


def test_nothing_is_near_a_word_from_elsewhere():
    assert nearest_option("--xyzzy") is None


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_what_stands_for_a_foreign_flag_is_an_option_and_the_foreign_flag_is_none(version):
    known = options_of(NEWEST)
    assert not {*OTHER_ENGINES, *SWITCHES} & set(options_of(version))
    assert {*OTHER_ENGINES.values(), *(option for option, _ in SWITCHES.values())} <= set(known)
    for option, word in SWITCHES.values():
        assert word == TP_SIZE or word in known[option].choices
    for (dest, _), word in OTHER_WORDS.items():
        assert word in choices_of(dest, NEWEST)


PLAIN = {"str": str, "int": int, "float": float}


def parser_of(version):
    """Python's own parser with the options of the table."""
    parser = argparse.ArgumentParser(add_help=False)
    for option in dict.fromkeys(options_of(version).values()):
        names = option.names[:1] if option.arity is Arity.NEGATABLE else option.names
        parser.add_argument(*names, dest=option.dest, default=argparse.SUPPRESS, **behaviour(option))
    return parser


def behaviour(option):
    read = {"type": PLAIN.get(option.reads, str), "choices": option.choices}
    match option.arity:
        case Arity.NEGATABLE:
            return {"action": argparse.BooleanOptionalAction}
        case Arity.NONE:
            return {"action": "store_const", "const": option.sets}
        case Arity.ONE:
            return read
        case Arity.OPTIONAL:
            return read | {"nargs": "?", "const": option.sets}
        case Arity.ANY:
            return read | {"nargs": "*"}
        case Arity.SOME:
            return read | {"nargs": "+"}


PARSERS = {version: parser_of(version) for version in map(release_0_5, (9, 13, 14, 19, 23))}

VALUES = ["8", "0.5", "-1", "x", "deepep", "a b", "", "-", "--", "-x", "-1.5e3"]


def is_simple(option):
    """Whether Python's parser, told of the option's names and values alone, does all that the engine's does."""
    says_more = option.error or option.dest == "help" or (option.arity is Arity.ONE and option.sets is not None)
    return option.reads in PLAIN and not says_more


@st.composite
def launches(draw):
    version = draw(st.sampled_from(sorted(PARSERS)))
    options = list(dict.fromkeys(options_of(version).values()))
    words = []
    for _ in range(draw(st.integers(0, 4))):
        name = draw(st.sampled_from(draw(st.sampled_from(options)).names))
        name = name[: draw(st.integers(3, len(name)))] if len(name) > 3 and draw(st.booleans()) else name
        taken = draw(st.lists(st.sampled_from(VALUES), max_size=2))
        words += [f"{name}={taken[0]}"] if taken and taken[0] != "--" and draw(st.booleans()) else [name, *taken]
    begun = {word.partition("=")[0] for word in words if word.startswith("--") and word != "--"}
    names = [name for option in options if not is_simple(option) for name in option.names]
    assume(not any(name.startswith(word) for name in names for word in begun))
    return version, words


def ours(version, words):
    try:
        return {mention.option.dest: mention.value for mention in mentions(words, version)}
    except FlagError as error:
        return error.engine_text


def pythons(version, words):
    class RefusedError(Exception):
        pass

    def refuse(text):
        raise RefusedError(text)

    parser = PARSERS[version]
    parser.error = refuse
    try:
        found = vars(parser.parse_args(words))
    except RefusedError as refused:
        return str(refused)
    return {dest: tuple(value) if isinstance(value, list) else value for dest, value in found.items()}


@settings(max_examples=300)
@given(launches())
def test_words_are_taken_apart_as_python_takes_them_apart(launch):
    found, expected = ours(*launch), pythons(*launch)
    if sys.version_info >= (3, 12) and isinstance(expected, str):
        # Later Pythons word some refusals otherwise than the one that SGLang was asked with.
        assert isinstance(found, str)
    else:
        assert found == expected


def test_an_engine_version_knows_only_its_own_words():
    assert "pplx" not in choices_of("moe_a2a_backend", EngineVersion(0, 5, 16))
    assert "pplx" in choices_of("moe_a2a_backend", EngineVersion(0, 5, 17))
