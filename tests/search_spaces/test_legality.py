"""Verdicts on launches that SGLang 0.5.23 itself judged (tests/golden/legality*.json)."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path

import pytest

from search_spaces.catalogue import load_gpu, load_model
from search_spaces.hardware import Cluster
from search_spaces.sglang.flags import FlagError, from_argv
from search_spaces.sglang.rules import judge
from search_spaces.verdict import Stage, Status

GOLDEN = Path(__file__).parents[1] / "golden"

OUTSIDE_THE_RULES = {
    "L197": "needs the memory model: the weights do not fit the card",
    "L198": "needs the memory model: the static fraction leaves nothing for the KV cache",
    "L199": "needs the memory model: the static fraction leaves nothing for graphs",
}

ACCEPTED_BY_THE_ARGUMENT_STAGES = {
    "L043": "its decode graphs of 512 exceed DeepEP's 128 as in L107",
    "L099": "likewise: attention context parallelism splits prefill, every rank decodes all requests",
}

AFTER_CONSTRUCTION = {Stage.WEIGHTS, Stage.KV_POOL, Stage.GRAPHS, Stage.FORWARD, Stage.UNDETECTED}

DIFFERENT_BUILD = {
    "S-0036": "refused for a package that was not installed; here for what its kernels would refuse",
    "S-0023": "refused for the CUDA version that the judging machine lacked, and for its FP8 blocks",
}


def cases(name):
    return json.loads((GOLDEN / name).read_text())["cases"]


def ids(chosen):
    return [case["id"] for case in chosen]


def verdict_on(case):
    layout = from_argv(shlex.split(case["argv"])).layout
    nodes = max(layout.nnodes, 1)
    cluster = Cluster(
        gpu=load_gpu(case["gpu"]),
        gpus_per_node=max(math.ceil(max(layout.num_gpus, 1) / nodes), 1),
        num_nodes=nodes,
    )
    return judge(layout, load_model(case["model"]), cluster, suggest=False, env=case.get("env"))


def assert_resolved(effective, resolved):
    widths = {"attn_tp_size": effective.attn_tp_size, "moe_tp_size": effective.moe_tp_size}
    for name, value in resolved.items():
        assert widths.get(name, getattr(effective, name)) == value, name


LEGALITY = [case for case in cases("legality.json") if case["id"] not in OUTSIDE_THE_RULES]


@pytest.mark.parametrize("case", LEGALITY, ids=ids(LEGALITY))
def test_a_launch_is_judged_as_the_engine_judges_it(case):
    if case.get("stage") == "PARSE":
        with pytest.raises(FlagError) as refused:
            from_argv(shlex.split(case["argv"]))
        said = case["error"].removeprefix("sglang serve: error: ")
        assert said.split(" could match ")[0] in refused.value.engine_text
        return
    verdict = verdict_on(case)
    if case["id"] in ACCEPTED_BY_THE_ARGUMENT_STAGES:
        assert {violation.stage for violation in verdict.violations} == {Stage.GRAPHS}
    else:
        assert verdict.status == Status(case["verdict"]), [v.message for v in verdict.violations]
    if case["verdict"] == "illegal":
        assert verdict.violations[0].stage.name == case["stage"]
    else:
        parsed = from_argv(shlex.split(case["argv"]))
        changes = {a.name: f"{a.before} -> {a.after}" for a in (*parsed.adjustments, *verdict.adjustments)}
        assert changes == case["adjustments"]
    assert_resolved(verdict.effective, case.get("resolved", {}))


BY_THE_ENGINE = [*cases("legality_rtx_pro_6000.json"), *cases("legality_random.json")]


@pytest.mark.parametrize("case", BY_THE_ENGINE, ids=ids(BY_THE_ENGINE))
def test_a_launch_gets_as_far_as_the_engine_lets_it(case):
    """The engine judged up to model construction; what this project refuses later is no disagreement."""
    verdict = verdict_on(case)
    early = [v for v in verdict.violations if v.stage not in AFTER_CONSTRUCTION]
    assert_resolved(verdict.effective, case.get("resolved") or {})
    if case["id"] in DIFFERENT_BUILD:
        assert verdict.status is Status.ILLEGAL
    elif case["verdict"] == "legal":
        assert early == []
    else:
        assert early[0].stage.name == case["stage"], early
        text = early[0].engine_text
        assert case["error"].removeprefix(f"{early[0].exception}: ")[:60].startswith(text[:60])


JUDGED = cases("legality_judged.json")
NOT_A_MATTER_OF_LAYOUT = ("Mori EP is not installed", "Please install bitsandbytes")


@pytest.mark.parametrize("case", JUDGED, ids=ids(JUDGED))
def test_a_random_launch_ends_where_the_engine_ended_it(case):
    """Any flag of a layout; the launches were drawn and judged by tests/engine_support/judged_launches.py."""
    if case.get("error", "").startswith(NOT_A_MATTER_OF_LAYOUT):
        return
    if case.get("stage") == "PARSE":
        with pytest.raises(FlagError) as refused:
            from_argv(shlex.split(case["argv"]))
        assert case["error"].startswith(refused.value.engine_text[:60])
        return
    layout = from_argv(shlex.split(case["argv"])).layout
    cluster = Cluster(gpu=load_gpu(case["gpu"]), gpus_per_node=4096, num_nodes=max(layout.nnodes, 1))
    verdict = judge(layout, load_model(case["model"]), cluster, suggest=False, env=case.get("env"))
    early = [v for v in verdict.violations if v.stage not in AFTER_CONSTRUCTION]
    for name, value in case["resolved"].items():
        ours = getattr(verdict.effective, name)
        assert ours is None or ours == pytest.approx(value, abs=1e-6), name
    if case["verdict"] == "legal":
        assert early == []
    else:
        assert (early[0].stage.name, early[0].exception) == (case["stage"], case["exception"])
        assert case.get("error", "").startswith(early[0].engine_text[:60])


def test_no_launch_is_only_listed_to_be_left_out():
    known = {case["id"] for name in ("legality.json", "legality_rtx_pro_6000.json") for case in cases(name)}
    assert {*OUTSIDE_THE_RULES, *ACCEPTED_BY_THE_ARGUMENT_STAGES, *DIFFERENT_BUILD} <= known


OWN_TEXTS = [
    case
    for case in LEGALITY
    if case["verdict"] == "illegal" and case["stage"] in {"RESOLVE", "CHECK", "PUBLISH", "INIT", "MODEL"}
]


@pytest.mark.parametrize("case", OWN_TEXTS, ids=ids(OWN_TEXTS))
def test_a_violation_repeats_what_the_engine_raises(case):
    first = verdict_on(case).violations[0]
    assert first.exception == case["exception"]
    assert case["error"].startswith(first.engine_text[:80])
    assert first.message
    assert first.source
