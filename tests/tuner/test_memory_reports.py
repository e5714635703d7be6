"""Public reports of servers that ran out of memory: the right verdict, stage and way out (tests/golden)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cost_models.memory import fit
from cost_models.memory_types import DoesNotFit, Memory
from cost_models.memory_verdict import SMALLEST_REQUEST
from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.config_json import model_from_config
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.sglang.rules import judge
from search_spaces.sglang.versions import EngineVersion
from search_spaces.workload import Workload
from tuner import outcome as outcomes
from tuner.diagnosis import Ended, diagnose
from tuner.outcome import OutOfMemory

REPORTS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "golden" / "memory_reports.jsonl").read_text(encoding="utf-8").splitlines()
]


def of_kind(kind: str) -> list[Any]:
    return [pytest.param(report, id=report["id"]) for report in REPORTS if report["kind"] == kind]


def model_of(word: str | dict[str, Any]) -> Model:
    if isinstance(word, str):
        return load_model(word)
    return model_from_config(word["config"], name="written-out", source="written out for a test")


@pytest.mark.parametrize("report", of_kind("launch"))
def test_a_reported_launch_ends_where_it_did(report: dict[str, Any]) -> None:
    model, cluster = model_of(report["model"]), parse_cluster(report["cluster"])
    version = EngineVersion.parse(report["version"])
    verdict = judge(Layout(**report["flags"]), model, cluster, version, suggest=False)
    assert verdict.is_legal
    load = Workload(**report["workload"]) if "workload" in report else SMALLEST_REQUEST
    ended = fit(model, cluster, verdict.effective, load, version=version)
    if report["verdict"] == "fits":
        assert isinstance(ended, Memory)
        return
    assert isinstance(ended, DoesNotFit)
    assert ended.stage == report["verdict"]
    assert ended.remedy == report["remedy"], ended.message
    if "least_fraction" in report:
        assert ended.least_fraction == pytest.approx(report["least_fraction"], abs=0.005)
    if "shortfall_gib" in report:
        low, high = report["shortfall_gib"]
        assert low < ended.shortfall_bytes / 2**30 < high


@pytest.mark.parametrize("report", of_kind("log"))
def test_a_reported_log_is_read_for_what_it_says(report: dict[str, Any]) -> None:
    log = (
        "[2026-04-01 10:00:08 TP3] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/x/sglang/srt/managers/scheduler.py", line 4021, in run_scheduler_process\n'
        f"{report['log']}\n\n"
        "[2026-04-01 10:00:09] Received sigquit from a child process. It usually means the child failed.\n"
    )
    ended = diagnose(Ended(exit_code=137, log=log, stage=report["seen"]))
    assert isinstance(ended, getattr(outcomes, report["outcome"]))
    if isinstance(ended, OutOfMemory):
        assert ended.stage == report["stage"]
        assert ended.direction == report.get("direction", ended.direction)
        assert ended.least_fraction == report.get("least_fraction")
        if "shortfall_bytes" in report:
            assert ended.shortfall_bytes == report["shortfall_bytes"]


def test_every_report_has_its_address_and_those_not_judged_a_reason() -> None:
    assert all(report["url"].startswith("https://") for report in REPORTS)
    assert all(report["why"] for report in REPORTS if report["kind"] == "not judged")
    assert len({report["id"] for report in REPORTS}) == len(REPORTS)
