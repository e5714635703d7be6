"""Whole studies on the simulated server in which layouts answer wrongly, die under load, or cannot be told apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import pytest

from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.layout import Layout
from search_spaces.sglang.versions import NEWEST
from search_spaces.space import enumerate_space
from search_spaces.workload import Workload
from tuner import main_job
from tuner.engine import simulated
from tuner.objective import Objective
from tuner.patience import Patience
from tuner.request import Request
from tuner.simulator.arguments import WRONG_ANSWERS_VARIABLE

CLUSTER = parse_cluster("8xrtx-pro-6000")
MODEL = load_model("kimi-k2.6")
LAYOUTS = tuple(
    Layout(tp_size=8, ep_size=ep, mem_fraction_static=0.9) if ep > 1 else Layout(tp_size=8) for ep in (1, 2, 4, 8)
)
SMALL = Layout(tp_size=8, ep_size=8, mem_fraction_static=0.7)
"""Leaves no room for a KV cache: tried only where a user asks for it."""
Study = Callable[..., tuple[dict[str, Any], Request]]


@pytest.fixture
def study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Study:
    """Runs one over a few layouts and returns its document."""
    whole = enumerate_space(MODEL, CLUSTER, NEWEST, extra=(SMALL,))
    wanted = [c for c in whole.candidates if c == whole.baseline or c.requested in (*LAYOUTS, SMALL)]
    space = replace(whole, candidates=tuple(wanted))
    root = tmp_path / "mlruns"

    def run(*words: str, **changes: Any) -> tuple[dict[str, Any], Request]:
        """words: for the simulator alone."""
        engine = simulated(CLUSTER, NEWEST, because="a test", clock_scale=1e9)
        request = Request(
            objective=Objective.PEAK_THROUGHPUT,
            model=MODEL,
            model_path="kimi-k2.6",
            cluster=CLUSTER,
            workload=Workload(input_tokens=256, output_tokens=64, concurrencies=(1, 8)),
            engine=replace(engine, simulator_args=(*engine.simulator_args, *words)),
            storage_url=f"sqlite:///{root / 'optuna.db'}",
            tracking_uri=f"sqlite:///{root / 'mlflow.db'}",
            artifact_root=str(root / "artifacts"),
            work_dir=str(root / "work"),
            trials=4,
        )
        request = replace(request, **changes)
        main_job.run(request, space, json_output=True, patience=Patience(starting_s=240.0, loaded_s=120.0))
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document, request

    return run


def trials_of(document: dict[str, Any], **flags: int) -> list[dict[str, Any]]:
    wanted = {name.replace("_", "-"): value for name, value in flags.items()}
    return [t for t in document["trials"] if wanted.items() <= t["flags"].items()]


def test_a_layout_that_answers_wrongly_is_disqualified_everywhere(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WRONG_ANSWERS_VARIABLE, "ep_size=4")
    document, request = study(confirmations=0)
    (wrong,) = trials_of(document, ep_size=4)
    assert (wrong["outcome"], wrong["fault"], wrong["value"]) == ("wrong answers", "wrong answers", None)
    assert wrong["answers"]["agree"] is False
    assert wrong["answers"]["prefill"]["mean_nats"] > 0.5
    assert wrong["answers"]["compared_with"].startswith("the baseline TP8")
    assert document["winner"]["flags"].get("ep-size") != 4
    others = [t for t in document["trials"] if t is not wrong]
    assert [t["outcome"] for t in others] == ["measured"] * 3
    assert all(t["answers"]["agree"] for t in others)
    client = mlflow.MlflowClient(tracking_uri=request.tracking_uri)
    (run,) = client.search_runs([document["mlflow"]["experiment_id"]], "tags.`tune.outcome` = 'wrong answers'")
    assert (run.info.status, run.data.tags["tune.answers"]) == ("FINISHED", "wrong")
    assert run.data.metrics["answers_mean_difference_nats"] > 0.5
    assert "Answers: against the baseline TP8" in run.data.tags["mlflow.note.content"]
    (parent,) = client.search_runs([document["mlflow"]["experiment_id"]], "tags.`tune.kind` = 'study'")
    assert "disqualified for wrong answers" in parent.data.tags["mlflow.note.content"]


def test_without_the_probe_nobody_asks(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WRONG_ANSWERS_VARIABLE, "ep_size=4")
    document, _ = study(probes_correctness=False, confirmations=0, trials=2)
    assert {t["outcome"] for t in document["trials"]} == {"measured"}
    assert all(t["answers"] is None for t in document["trials"])


def test_what_was_measured_below_a_crash_is_kept_and_settles_concurrency_1(study: Study) -> None:
    words = ("--inject-crash-at-running", "20")  # more than warm up the server
    load = Workload(input_tokens=256, output_tokens=64, concurrencies=(1, 32))
    peak, _ = study(*words, confirmations=0, trials=2, workload=load)
    assert peak["winner"] is None
    for trial in peak["trials"]:
        assert (trial["outcome"], trial["value"]) == ("crashed", None)
        assert [rung["concurrency"] for rung in trial["rungs"]] == [1]
    latency, _ = study(*words, confirmations=0, trials=2, workload=load, objective=Objective.C1_LATENCY)
    assert latency["winner"]["value"] > 0
    assert {t["outcome"] for t in latency["trials"]} == {"crashed"}
    assert all(t["value"] == pytest.approx(t["rungs"][0]["tpot_ms"] / 1e3) for t in latency["trials"])


def test_finalists_are_measured_in_turn_and_the_winner_s_interval_is_told(study: Study) -> None:
    document, _ = study(confirmations=2)
    confirmed = [t for t in document["trials"] if t["origin"] == "confirmation"]
    winner, second = document["winner"], document["runner_up"]
    low, high = winner["interval"]
    assert low < winner["value"] < high
    assert winner["interval_confidence"] == 0.95
    assert len(winner["values"]) == winner["runs"] >= 2
    assert document["noise"]["degrees_of_freedom"] >= 1
    assert isinstance(document["tie"], bool)
    if second["runs"] > 1:  # where it was near enough
        flags = [json.dumps(t["flags"]) for t in confirmed]
        assert flags[0] != flags[1]


def test_the_memory_fraction_that_the_engine_names_is_tried_next(study: Study) -> None:
    document, _ = study(confirmations=0, trials=3, baseline=SMALL)
    plain, died, advised = document["trials"]
    assert [t["origin"] for t in (plain, died, advised)] == ["baseline", "user", "advised"]
    assert (died["outcome"], died["flags"]["mem-fraction-static"]) == ("out of memory", 0.7)
    assert (advised["outcome"], advised["flags"]["mem-fraction-static"]) == ("measured", 0.9)
