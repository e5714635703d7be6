"""What becomes of a verdict when the installed engine has been asked."""

from __future__ import annotations

from typing import Any

from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.layout import Layout
from search_spaces.verdict import Stage, Status
from tuner.agreement import compare, speaks_for
from tuner.checking import Checked, Server, check_layout
from tuner.engine_opinion import Opinion, document, lines, with_opinion
from tuner.installed_engine import Answer, Platform

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


def test_on_a_machine_without_these_gpus_the_answer_is_shown_and_decides_nothing() -> None:
    ours = checked(tp_size=8)
    opinion = opinion_on(ours, CPU, **REFUSED)
    assert with_opinion(ours, opinion) == ours
    assert "not decisive" in " ".join(lines(opinion))
    assert document(opinion)["decides"] is False


def test_values_that_differ_are_listed_without_touching_the_verdict() -> None:
    ours = checked(tp_size=8)
    opinion = opinion_on(ours, stage=None, resolved={"chunked_prefill_size": 4096})
    assert with_opinion(ours, opinion) == ours
    assert document(opinion)["differences"] == [{"name": "chunked_prefill_size", "ours": "8192", "engine": "4096"}]
    assert "but for some values" in " ".join(lines(opinion))
