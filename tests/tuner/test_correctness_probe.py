"""Servers that are asked for log-probabilities: simulated ones, and small ones that answer in other ways."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.layout import Layout
from search_spaces.sglang.versions import NEWEST
from search_spaces.workload import Workload
from tuner.correctness import Answers, Reference
from tuner.correctness_judge import AnswerJudge, Judgement, advised
from tuner.correctness_probe import Probe, UnaskedError
from tuner.engine import simulated
from tuner.interruptible import run_interruptibly
from tuner.outcome import Crashed, Hung, WrongAnswers
from tuner.patience import Patience
from tuner.server_control import server_info
from tuner.server_log import ServerLog
from tuner.servers.local import LocalLauncher
from tuner.servers.protocol import Launch, Server
from tuner.watched import StageTimes, Watched, await_ready
from tuner.watcher import Watcher

MODEL = load_model("kimi-k2.6")
CLUSTER = parse_cluster("8xrtx-pro-6000")
LOAD = Workload(input_tokens=256, output_tokens=64, concurrencies=(1,))
TP8, EP4, EP8 = (Layout(tp_size=8, ep_size=ep, mem_fraction_static=0.9) for ep in (1, 4, 8))
ANSWERING = Path(__file__).parent / "answering_server.py"


class Heard(Watcher):
    def __init__(self) -> None:
        self.notices: list[str] = []

    def on_notice(self, text: str) -> None:
        self.notices.append(text)


@contextmanager
def started(command: tuple[str, ...], port: int, folder: Path) -> Iterator[Server]:
    log_path = folder / f"{port}.log"
    launch = Launch(command=command, host="127.0.0.1", port=port, log_path=log_path)
    server = LocalLauncher().start(launch)
    try:
        watched = Watched(server=server, log=ServerLog(log_path))
        assert await_ready(watched, Patience(starting_s=120.0), Watcher(), StageTimes()) is None
        yield server
    finally:
        server.stop()


def judge_of(kept: list[Reference], reference: Reference | None = None, baseline: Layout = TP8) -> AnswerJudge:
    return AnswerJudge(model=MODEL, workload=LOAD, baseline=baseline, reference=reference, keep=kept.append)


def judged(judge: AnswerJudge, layout: Layout, folder: Path, *words: str, heard: Watcher | None = None) -> Judgement:
    engine = simulated(CLUSTER, NEWEST, because="a test", clock_scale=1e9, extra_args=words)
    port = LocalLauncher().free_port()
    command = engine.command(layout, model_path="kimi-k2.6", host="127.0.0.1", port=port, seed=0)
    with started(command, port, folder) as server:
        info = server_info(server.base_url)
        return judge.judge(server, layout, info, silence_limit_s=60.0, watcher=heard or Watcher())


def test_layouts_of_one_model_agree_and_the_baseline_s_answers_are_kept(tmp_path: Path) -> None:
    kept: list[Reference] = []
    judge = judge_of(kept)
    first = judged(judge, TP8, tmp_path)
    assert first.ended is None
    assert first.agreement is not None
    assert first.agreement.prefill is None
    (reference,) = kept
    assert reference.is_baseline
    assert reference.prompt_lengths == (8, 37, 130, 256)
    second = judged(judge, EP4, tmp_path)
    assert second.ended is None
    assert second.agreement is not None
    assert second.agreement.prefill is not None
    assert 0 < second.agreement.prefill.mean < 0.05
    assert second.agreement.prefill.places == 4 * 32
    assert kept == [reference]


def test_a_layout_that_computes_something_else_is_told_with_its_figures(tmp_path: Path) -> None:
    kept: list[Reference] = []
    judge = judge_of(kept)
    judged(judge, TP8, tmp_path)
    ended = judged(judge, EP8, tmp_path, "--inject-wrong-answers", "ep_size=8").ended
    assert isinstance(ended, WrongAnswers)
    assert ended.agreement.prefill is not None
    assert ended.agreement.prefill.mean > 0.5
    assert "the baseline TP8 mem0.9" in ended.summary
    assert ended.evidence[0].startswith("against the baseline TP8 mem0.9: mean ")
    assert len(kept) == 1


def test_without_a_baseline_the_first_layout_is_the_reference_until_there_is_one(tmp_path: Path) -> None:
    kept: list[Reference] = []
    heard = Heard()
    judge = judge_of(kept)
    judged(judge, EP4, tmp_path, heard=heard)
    assert [reference.is_baseline for reference in kept] == [False]
    assert heard.notices == [
        "other layouts' answers are compared with those of TP8 EP4 mem0.9, the first layout that answered: no baseline's "
        "yet"
    ]
    judged(judge, TP8, tmp_path, heard=heard)
    assert [reference.is_baseline for reference in kept] == [False, True]
    assert len(heard.notices) == 1


def test_the_baseline_overrules_a_first_layout_that_answered_otherwise(tmp_path: Path) -> None:
    kept: list[Reference] = []
    heard = Heard()
    judge = judge_of(kept)
    assert judged(judge, EP4, tmp_path, "--inject-wrong-answers", "ep_size=4").ended is None
    assert judged(judge, TP8, tmp_path, heard=heard).ended is None
    assert kept[-1].is_baseline
    assert heard.notices == [
        "the baseline gives other answers than TP8 EP4 mem0.9, the first layout that answered: what earlier trials were "
        "compared with was wrong, and so may be their verdicts"
    ]
    ended = judged(judge, EP4, tmp_path, "--inject-wrong-answers", "ep_size=4").ended
    assert isinstance(ended, WrongAnswers)


def test_a_reference_of_another_study_serves_only_for_the_same_prompts(tmp_path: Path) -> None:
    kept: list[Reference] = []
    judged(judge_of(kept), TP8, tmp_path)
    again: list[Reference] = []
    agreement = judged(judge_of(again, kept[0]), EP8, tmp_path).agreement
    assert agreement is not None
    assert agreement.against == "the baseline TP8 mem0.9"
    assert again == []
    other = AnswerJudge(
        model=MODEL,
        workload=Workload(input_tokens=100, output_tokens=64, concurrencies=(1,)),
        baseline=TP8,
        reference=kept[0],
        keep=again.append,
    )
    judged(other, EP8, tmp_path)
    assert [reference.is_baseline for reference in again] == [False]


@pytest.mark.parametrize(
    ("info", "told"),
    [
        ({"load_format": "dummy"}, "weights of --load-format dummy are others in every layout"),
        ({"quantization": "fp8"}, "weights are fp8, those of the baseline TP8 mem0.9 as stored"),
    ],
)
def test_other_weights_are_not_judged_and_that_is_said(tmp_path: Path, info: dict[str, Any], told: str) -> None:
    kept: list[Reference] = []
    judged(judge_of(kept), TP8, tmp_path)
    heard = Heard()
    with answering(tmp_path, {}) as server:
        judgement = judge_of([], kept[0]).judge(server, EP8, info, silence_limit_s=60.0, watcher=heard)
    assert judgement == Judgement()
    assert told in heard.notices[0]


@contextmanager
def answering(folder: Path, script: dict[str, Any]) -> Iterator[Server]:
    port = LocalLauncher().free_port()
    with started((sys.executable, str(ANSWERING), str(port), json.dumps(script)), port, folder) as server:
        yield server


def asked(folder: Path, script: dict[str, Any], silence_limit_s: float = 60.0) -> Answers | Crashed | Hung:
    probe = Probe(prompt_lengths=(4, 9), vocab_size=500, reference=None, silence_limit_s=silence_limit_s)
    with answering(folder, script) as server:
        return run_interruptibly(probe.of(server))


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ({"status": 400}, "HTTP 400: no such thing"),
        ({"meta": {"completion_tokens": 32}}, "no output_token_logprobs"),
        ({"meta": {"output_token_logprobs": [], "output_top_logprobs": []}}, "0 log-probabilities for 32 tokens"),
        ({"meta": {"output_token_logprobs": ["x"], "output_top_logprobs": [[]]}}, "cannot be read"),
        ({"text": "no json"}, "no JSON"),
    ],
)
def test_a_server_that_does_not_answer_such_questions_is_not_judged(
    tmp_path: Path, script: dict[str, Any], told: str
) -> None:
    with pytest.raises(UnaskedError, match=told):
        asked(tmp_path, script)
    heard = Heard()
    with answering(tmp_path, script) as server:
        judgement = judge_of([]).judge(server, TP8, {}, silence_limit_s=60.0, watcher=heard)
    assert judgement == Judgement()
    assert heard.notices[0].startswith("answers are not judged: ")


def test_a_server_that_dies_of_the_question_has_crashed_and_advice_says_how_not_to_ask(tmp_path: Path) -> None:
    ended = asked(tmp_path, {"dies": 3})
    assert isinstance(ended, Crashed)
    assert ended.stage == "answers"
    told = advised(ended)
    assert isinstance(told, Crashed)
    assert "--no-correctness-probe" in told.advice


def test_a_server_that_never_answers_hangs(tmp_path: Path) -> None:
    ended = asked(tmp_path, {"sleeps": True}, silence_limit_s=0.5)
    assert isinstance(ended, Hung)
    assert (ended.stage, ended.silent_s) == ("answers", 0.5)
