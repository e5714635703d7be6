"""The product's own questions to a real SGLang, on a machine with no GPU, where it applies its rules for CPUs."""

from __future__ import annotations

import time

import pytest

from search_spaces.catalogue import load_model, model_files, parse_cluster
from search_spaces.layout import Layout
from search_spaces.sglang.flags import to_argv
from search_spaces.sglang.rules import judge
from search_spaces.verdict import Stage
from tests.engine_support.environment import ENVIRONMENT
from tuner.agreement import compare, speaks_for
from tuner.installed_engine import Question, folder_of, installed_engine

MODEL = "qwen3-30b-a3b"
CPUS = parse_cluster("8xcpu")
LAYOUTS = tuple(
    Layout(tp_size=tp_size, ep_size=ep_size, attn_dp_size=attn_dp_size)
    for tp_size in (1, 2, 4, 8)
    for ep_size in (1, 2, 3, 4, 8)
    for attn_dp_size in (1, 2, 3, 4, 8)
)


@pytest.fixture(scope="module")
def engine(engine_python):
    with pytest.MonkeyPatch.context() as environment:
        for name, value in ENVIRONMENT.items():
            environment.setenv(name, value)
        with installed_engine((engine_python, "-m", "sglang.launch_server")) as asked:
            yield asked


@pytest.mark.engine
def test_a_hundred_launches_are_asked_in_seconds_and_judged_alike(engine):
    with folder_of(model_files(MODEL)) as folder:
        said = ("--model-path", str(folder), "--device", "cpu")
        began = time.monotonic()
        answers = list(engine.ask(Question(argv=(*said, *to_argv(layout))) for layout in LAYOUTS))
        took_s = time.monotonic() - began
    assert len(answers) == len(LAYOUTS) == 100
    # About ten seconds on two idle cores.
    assert took_s < 60
    assert any(answer.is_legal for answer in answers)
    for layout, answer in zip(LAYOUTS, answers, strict=True):
        verdict = judge(layout, load_model(MODEL), CPUS, suggest=False)
        assert compare(verdict, answer) == (), layout


@pytest.mark.engine
def test_it_says_which_engine_it_is_and_for_whom_it_speaks(engine):
    assert engine.platform.kind == "cpu"
    assert engine.platform.version == "0.5.23"
    assert speaks_for(engine.platform, CPUS)
    assert not speaks_for(engine.platform, parse_cluster("8xh200"))


@pytest.mark.engine
def test_what_the_engine_raises_is_quoted_with_its_line(engine):
    with folder_of(model_files(MODEL)) as folder:
        said = ("--model-path", str(folder), "--device", "cpu")
        unread, unbalanced = engine.ask(
            [Question(argv=(*said, "--pp", "2")), Question(argv=(*said, "--tp-size", "4", "--ep-size", "3"))]
        )
    assert (unread.stage, unread.exception) == (Stage.PARSE, "SystemExit(2)")
    assert unread.error.startswith("ambiguous option: --pp could match")
    assert (unbalanced.stage, unbalanced.at) == (Stage.PUBLISH, "runtime_context.py:347")
    assert unbalanced.error.startswith("parallel topology is inconsistent")


@pytest.mark.engine
def test_every_rank_is_placed(engine):
    with folder_of(model_files(MODEL)) as folder:
        argv = ("--model-path", str(folder), "--device", "cpu", "--tp-size", "4", "--ep-size", "2", "--pp-size", "2")
        (answer,) = engine.ask([Question(argv=argv)])
    assert [rank["moe_ep_rank"] for rank in answer.found["ranks"]] == [0, 0, 1, 1] * 2
    assert [rank["pp_rank"] for rank in answer.found["ranks"]] == [0] * 4 + [1] * 4


@pytest.mark.engine
def test_a_model_that_is_not_there_is_refused_by_the_engine(engine):
    (answer,) = engine.ask([Question(argv=("--model-path", "/no/such/model", "--device", "cpu"))])
    assert answer.stage is Stage.RESOLVE
    assert "/no/such/model" in answer.error
