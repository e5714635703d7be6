"""Public reports of servers that crashed or hung: what the end was, on which rank, and what to do (tests/golden)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tuner import outcome as outcomes
from tuner.diagnosis import Ended, diagnose, silent
from tuner.outcome import Outcome, advice_of, evidence_of, fault_of, rank_of

REPORTS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "golden" / "crash_reports.jsonl").read_text(encoding="utf-8").splitlines()
]
SIGQUIT = "[2026-04-01 10:00:09] Received sigquit from a child process. It usually means the child failed.\n"


def diagnosed(report: dict[str, Any]) -> Outcome:
    if "silent" in report:
        return silent(stage=report["stage"], silent_s=180.0, log=f"{report['silent']}\n")
    log = (
        f"{report['plain']}\n{SIGQUIT}"
        if "plain" in report
        else (
            f"[2026-04-01 10:00:08 {report['rank']}] Scheduler hit an exception: Traceback (most recent call last):\n"
            '  File "/x/sglang/srt/managers/scheduler.py", line 4021, in run_scheduler_process\n'
            f"{report['log']}\n\n{SIGQUIT}"
        )
    )
    return diagnose(Ended(exit_code=137, log=log, stage=report["stage"], kernel_log=report.get("kernel_log", "")))


@pytest.mark.parametrize("report", REPORTS, ids=[report["id"] for report in REPORTS])
def test_a_reported_end_is_told_for_what_it_was(report: dict[str, Any]) -> None:
    ended = diagnosed(report)
    assert isinstance(ended, getattr(outcomes, report["outcome"])), ended.summary
    assert fault_of(ended) == report["fault"]
    assert rank_of(ended) == report.get("rank", "")
    assert report.get("advice", "") in advice_of(ended)
    assert report["stage"] in ended.summary
    assert evidence_of(ended)


def test_every_report_has_its_address_and_says_what_was_seen() -> None:
    assert all(report["url"].startswith("https://") and report["why"] for report in REPORTS)
    assert len({report["id"] for report in REPORTS}) == len(REPORTS)
