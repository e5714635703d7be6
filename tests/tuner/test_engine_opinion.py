"""What becomes of a verdict when the installed engine has been asked."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.layout import Layout
from search_spaces.sglang.versions import EngineVersion
from search_spaces.verdict import Stage, Status
from tuner.agreement import compare, speaks_for
from tuner.checking import Checked, Server, check_layout
from tuner.engine_opinion import Opinion, ask, document, lines, with_opinion
from tuner.installed_engine import Answer, Platform, asked_process
from tuner.launch_words import Asked

ASKED = (Stage.PARSE, Stage.RESOLVE, Stage.CHECK, Stage.PUBLISH)
H200 = Platform(version="0.5.23", kind="cuda sm_90", gpu="NVIDIA H200", memory_mib=143771)
CPU = Platform(version="0.5.23", kind="cpu")


def checked(cluster: str = "8xh200", **flags: Any) -> Checked:
    server = Server(model=load_model("deepseek-v3"), cluster=parse_cluster(cluster))
    return check_layout(Layout(**flags), server)


def opinion_on(ours: Checked, platform: Platform = H200, **answer: Any) -> Opinion:
    said = Answer(asked=ASKED, **answer)
    return Opinion(
        platform=platform,
        answer=said,
        differences=compare(ours.verdict, said),
        decides=speaks_for(platform, ours.server.cluster),
    )


REFUSED = {"stage": Stage.CHECK, "exception": "AssertionError", "error": "no", "at": "arg_groups/validation_hook.py:1"}


def test_where_both_agree_the_verdict_stays() -> None:
    ours = checked(tp_size=8)
    opinion = opinion_on(ours, stage=None)
    assert with_opinion(ours, opinion) == ours
    assert "agrees" in " ".join(lines(opinion))


def test_an_engine_that_refuses_under_the_facts_of_the_gpus_wins() -> None:
    ours = checked(tp_size=8)
    opinion = opinion_on(ours, **REFUSED)
    verdict = with_opinion(ours, opinion).verdict
    assert verdict.status is Status.ILLEGAL
    assert (verdict.violations[0].stage, verdict.violations[0].source) == (Stage.CHECK, REFUSED["at"])
    told = " ".join(lines(opinion))
    assert "DISAGREES" in told
    assert "the engine wins" in told


def test_an_engine_that_accepts_removes_what_was_refused_at_the_stages_it_was_asked_about() -> None:
    ours = checked(tp_size=8, ep_size=3)
    assert {broken.stage for broken in ours.verdict.violations} == {Stage.PUBLISH, Stage.MODEL}
    verdict = with_opinion(ours, opinion_on(ours, stage=None)).verdict
    assert {broken.stage for broken in verdict.violations} == {Stage.MODEL}


def asked_of(ours: Checked, hello: dict[str, Any], answer: dict[str, Any]) -> Opinion:
    """What a process that gives one answer to every question is understood to say."""
    program = "\n".join(
        (
            "import sys",
            f"print({json.dumps(hello)!r}, flush=True)",
            "for _ in sys.stdin:",
            f"    print({json.dumps(answer)!r}, flush=True)",
        )
    )
    with asked_process([sys.executable, "-c", program]) as engine:
        return ask(engine, Asked(), ours, Path("/model"))


HELLO = {"version": "0.5.23", "platform": "cuda sm_90", "gpu": "NVIDIA H200", "memory_mib": 143771, "stages": ["parse"]}
ACCEPTS = {"stage": None, "resolved": {}, "warnings": [], "exception": "", "error": "", "at": ""}


def test_an_engine_of_another_release_than_was_judged_decides_nothing() -> None:
    ours = checked(tp_size=8)
    assert asked_of(ours, HELLO, ACCEPTS).decides
    older = replace(ours, server=replace(ours.server, version=EngineVersion.parse("0.5.9")))
    opinion = asked_of(older, HELLO, ACCEPTS)
    assert not opinion.decides
    assert "not decisive: it is not SGLang 0.5.9, whose rules were asked for" in " ".join(lines(opinion))


def test_an_engine_that_was_not_asked_as_far_as_the_launch_gets_is_said_to_be() -> None:
    ours = checked(tp_size=8, mem_fraction_static=0.5)
    assert ours.verdict.status is Status.ILLEGAL
    told = " ".join(lines(asked_of(ours, HELLO, ACCEPTS)))
    assert "agrees: it accepts it" in told
    assert "not asked further: what stops the launch comes at KV pool sizing" in told


def test_on_a_machine_without_these_gpus_the_answer_is_shown_and_decides_nothing() -> None:
    ours = checked(tp_size=8)
    opinion = opinion_on(ours, CPU, **REFUSED)
    assert with_opinion(ours, opinion) == ours
    told = " ".join(lines(opinion))
    assert "not decisive" in told
    assert "DISAGREES" not in told
    assert document(opinion)["decides"] is False


def test_values_that_differ_are_listed_without_touching_the_verdict() -> None:
    ours = checked(tp_size=8)
    opinion = opinion_on(ours, stage=None, resolved={"chunked_prefill_size": 4096})
    assert with_opinion(ours, opinion) == ours
    assert document(opinion)["differences"] == [{"name": "chunked_prefill_size", "ours": "8192", "engine": "4096"}]
    assert "but for some values" in " ".join(lines(opinion))
