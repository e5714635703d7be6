"""An engine that cannot be asked says why, and whom it may speak for."""

from __future__ import annotations

import sys

import pytest

from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.layout import Layout
from search_spaces.sglang.rules import judge
from search_spaces.verdict import Stage
from tuner.agreement import compare, speaks_for
from tuner.installed_engine import Answer, EngineSilentError, Platform, Question, asked_process, installed_engine

ASKED = (Stage.PARSE, Stage.RESOLVE, Stage.CHECK, Stage.PUBLISH)
HELLO = '{"version": "0.5.23", "platform": "cpu", "gpu": "", "memory_mib": 0, "stages": ["parse"]}'


def verdict_on(layout):
    return judge(layout, load_model("qwen3-30b-a3b"), parse_cluster("8xh200"), suggest=False)


def test_a_python_without_sglang_says_what_it_lacks():
    with (
        pytest.raises(
            EngineSilentError, match=r"SGLang cannot be imported there: ModuleNotFoundError: No module named"
        ),
        installed_engine((sys.executable, "-m", "sglang.launch_server")),
    ):
        pass


def test_a_program_that_is_no_python_module_cannot_be_asked():
    with (
        pytest.raises(EngineSilentError, match=r"python -m sglang\.launch_server"),
        installed_engine(("sglang", "serve")),
    ):
        pass


def test_a_python_that_is_not_there_is_told_of():
    with pytest.raises(EngineSilentError, match="cannot be started"), installed_engine(("/no/python", "-m", "x")):
        pass


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("raise SystemExit('no driver')", "ended without an answer: no driver"),
        ("print('Welcome')", "answered with something else: b'Welcome'"),
    ],
)
def test_a_process_that_says_nothing_useful_is_quoted(program, says):
    with pytest.raises(EngineSilentError, match=says), asked_process([sys.executable, "-c", program]):
        pass


def test_an_engine_that_dies_while_it_is_asked_is_told_of():
    program = f"print({HELLO!r}, flush=True); input()"
    with asked_process([sys.executable, "-c", program]) as engine:
        assert engine.platform == Platform(version="0.5.23", kind="cpu")
        with pytest.raises(EngineSilentError, match="ended without an answer"):
            list(engine.ask([Question(argv=("--tp-size", "2"))]))


def test_nothing_differs_where_both_accept_and_resolve_alike():
    verdict = verdict_on(Layout(tp_size=8))
    assert compare(verdict, Answer(asked=ASKED, stage=None, resolved={"tp_size": 8, "page_size": 1})) == ()


def test_a_value_resolved_in_two_ways_is_a_difference():
    differences = compare(verdict_on(Layout(tp_size=8)), Answer(asked=ASKED, stage=None, resolved={"page_size": 64}))
    assert [(d.name, d.ours, d.engine) for d in differences] == [("page_size", "1", "64")]


def test_a_refusal_of_one_side_alone_is_a_difference_in_verdict():
    refused = Answer(asked=ASKED, stage=Stage.CHECK, exception="AssertionError", at="arg_groups/validation_hook.py:1")
    (difference,) = compare(verdict_on(Layout(tp_size=8)), refused)
    assert (difference.name, difference.ours) == ("verdict", "legal")
    assert "argument check" in difference.engine
    (difference,) = compare(verdict_on(Layout(tp_size=4, ep_size=3)), Answer(asked=ASKED, stage=None))
    assert difference.engine == "legal"
    assert "ep.divides" in difference.ours


def test_what_the_engine_was_not_asked_is_no_difference():
    too_wide = verdict_on(Layout(tp_size=8, attn_dp_size=1, ep_num_redundant_experts=3, ep_size=8))
    assert too_wide.violations[0].stage is Stage.MODEL
    assert compare(too_wide, Answer(asked=ASKED, stage=None)) == ()


@pytest.mark.parametrize(
    ("platform", "cluster", "speaks"),
    [
        (Platform(version="0.5.23", kind="cuda sm_90", gpu="NVIDIA H200", memory_mib=143771), "8xh200", True),
        (Platform(version="0.5.23", kind="cuda sm_90", gpu="NVIDIA H100", memory_mib=81559), "8xh200", False),
        (Platform(version="0.5.23", kind="cuda sm_100", gpu="NVIDIA B200", memory_mib=183359), "8xh200", False),
        (Platform(version="0.5.23", kind="cpu"), "8xh200", False),
        (Platform(version="0.5.23", kind="cpu"), "2xcpu", True),
    ],
)
def test_an_engine_speaks_for_gpus_like_its_own(platform, cluster, speaks):
    assert speaks_for(platform, parse_cluster(cluster)) is speaks
