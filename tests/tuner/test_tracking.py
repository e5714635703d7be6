"""What a colleague finds in MLflow, read back from a real store with MLflow's own client."""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from cost_models.memory_types import Memory
from cost_models.prediction import Interval, Limit, Prediction, ServingPoint, StepTime
from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.errors import UserError
from search_spaces.layout import Layout
from search_spaces.model import Component
from search_spaces.sglang.all_reduce import AllReducePath
from search_spaces.sglang.versions import NEWEST
from search_spaces.workload import Workload
from tuner import ui
from tuner.engine import Engine, simulated
from tuner.measurement import Measurement, RateRung, RequestTiming, Rung
from tuner.objective import Objective
from tuner.outcome import (
    Crashed,
    Direction,
    Environment,
    Hung,
    Illegal,
    Interrupted,
    Measured,
    Outcome,
    OutOfMemory,
    StoppedEarly,
    measurement_of,
)
from tuner.record import Origin, TrialRecord, from_json
from tuner.request import Request
from tuner.tracking import Tracker, TrackingError
from tuner.tracking_files import LOG_BYTES, launch_text, log_tail
from tuner.tracking_store import MAX_TAG_CHARS, cut, find_experiment, without_password

# MLflow only after the module that settles how quiet it is.
from mlflow.entities import Run, ViewType  # isort: skip
from mlflow.tracking import MlflowClient  # isort: skip

CLUSTER = parse_cluster("8xrtx-pro-6000")
REAL = Engine(name="sglang", version=NEWEST, program=("python3", "-m", "sglang.launch_server"))
SIMULATED = simulated(CLUSTER, NEWEST, because="no GPU was found", clock_scale=1e6)
REQUESTED = Layout(tp_size=8, moe_a2a_backend="deepep", mem_fraction_static=0.9)
EFFECTIVE = replace(REQUESTED, ep_size=8, chunked_prefill_size=8192)


def a_request(folder: Path, *, engine: Engine = REAL, study: str = "", **changes: object) -> Request:
    request = Request(
        objective=Objective.PEAK_THROUGHPUT,
        model=load_model("kimi-k2.6"),
        model_path="/models/kimi-k2.6",
        cluster=CLUSTER,
        workload=Workload(concurrencies=(1, 4, 16)),
        engine=engine,
        storage_url=f"sqlite:///{folder / 'optuna.db'}",
        tracking_uri=f"sqlite:///{folder / 'mlruns' / 'mlflow.db'}",
        artifact_root=str(folder / "mlruns" / "artifacts"),
        work_dir=str(folder / "work"),
        trials=24,
        study_name=study,
    )
    return replace(request, **changes)  # type: ignore[arg-type]


def point(concurrency: int, ttft_s: float, tpot_s: float, output_tok_per_s: float) -> ServingPoint:
    """With intervals of a factor 2 either way."""
    ttft, tpot, rate = (Interval(low=value / 2, high=2 * value) for value in (ttft_s, tpot_s, output_tok_per_s))
    return ServingPoint(
        concurrency=concurrency,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        output_tok_per_s=output_tok_per_s,
        ttft_interval_s=ttft,
        tpot_interval_s=tpot,
        output_tok_per_s_interval=rate,
    )


PREDICTION = Prediction(
    layout=EFFECTIVE,
    memory=Memory(
        weights=((Component.ROUTED, 70 * 2**30), (Component.ATTENTION, 2 * 2**30)),
        total_bytes=96 * 2**30,
        reserve_bytes=2**30,
        mem_fraction_static=0.9,
        kv_pool_bytes=10 * 2**30,
        headroom_bytes=8 * 2**30,
        kv_tokens=250_000,
        kv_replicas=1,
    ),
    all_reduce=AllReducePath.NCCL,
    step=StepTime(parts=(("experts", 0.012), ("attention", 0.003))),
    peak_step=StepTime(parts=(("experts", 0.02), ("attention", 0.005))),
    prefill=StepTime(parts=(("experts", 0.1),)),
    points=(point(1, 0.2, 0.015, 60.0), point(4, 0.4, 0.02, 180.0), point(16, 0.8, 0.025, 480.0)),
    limits=tuple(Limit(concurrency=c, output_tok_per_s=1000.0 * c, bound_by="compute") for c in (1, 4, 16)),
)


def timings(concurrency: int) -> list[RequestTiming]:
    """Requests of 101 tokens: the first after 0.1 s, the others 20 ms apart."""
    return [
        RequestTiming(
            start_s=float(i),
            first_token_s=i + 0.1,
            end_s=i + 2.1,
            prompt_tokens=1024,
            output_tokens=101,
            first_chunk_tokens=1,
            cached_tokens=0,
        )
        for i in range(concurrency)
    ]


RUNG_REQUESTS = {concurrency: timings(concurrency) for concurrency in (1, 4)}
MEASUREMENT = Measurement(
    rungs=tuple(Rung.of(c, r) for c, r in RUNG_REQUESTS.items()), simulated=False, startup_s=61.5, kv_tokens=240_000
)
ML = "?workflowType=machine_learning"
SCORE = 4 * 101 / 5.1  # tokens of the second rung over its duration

OUTCOMES: dict[str, tuple[Outcome, str]] = {
    "measured": (Measured(measurement=MEASUREMENT), "FINISHED"),
    "stopped early": (StoppedEarly(measurement=MEASUREMENT, reason="cannot beat 961 tok/s"), "FINISHED"),
    "illegal": (
        Illegal(cause="tp_size must be divisible by ep_size", stage="argument check", exit_code=1, evidence=("a",)),
        "FINISHED",
    ),
    "out of memory": (
        OutOfMemory(
            cause="CUDA out of memory",
            stage="weight load",
            direction=Direction.SPLIT_FURTHER,
            exit_code=137,
            evidence=("torch.OutOfMemoryError: CUDA out of memory.", "94.83 GiB of 94.97 GiB"),
        ),
        "FINISHED",
    ),
    "crashed": (Crashed(cause="<class 'KeyError'> in `load`", stage="first forward", exit_code=-9), "FINISHED"),
    "hung": (Hung(stage="CUDA graph capture", silent_s=1800.0, evidence=("Capture cuda graph begin.",)), "FINISHED"),
    "environment": (Environment(cause="port 30000 is taken", stage="launch", exit_code=None), "FAILED"),
    "interrupted": (Interrupted(cause="ended by a signal"), "KILLED"),
}


def start(tracker: Tracker, number: int = 0) -> str:
    return tracker.start_trial(
        number=number,
        requested=REQUESTED,
        effective=EFFECTIVE,
        origin=Origin.SAMPLER,
        prediction=PREDICTION,
        command=("python3", "-m", "sglang.launch_server", "--model-path", "/models/my model", "--tp-size", "8"),
    )


def a_record(run_id: str, outcome: Outcome, number: int = 0, **changes: object) -> TrialRecord:
    measurement = measurement_of(outcome)
    record = TrialRecord(
        number=number,
        requested=REQUESTED,
        effective=EFFECTIVE,
        origin=Origin.SAMPLER,
        outcome=outcome,
        value=None if measurement is None else measurement.peak.output_tok_per_s,
        prediction=PREDICTION,
        command=("python3", "-m", "sglang.launch_server", "--tp-size", "8"),
        duration_s=312.0,
        run_id=run_id,
    )
    return replace(record, **changes)  # type: ignore[arg-type]


def run_trial(tracker: Tracker, outcome: Outcome, log_path: Path | None = None, number: int = 0) -> TrialRecord:
    run_id = start(tracker, number)
    measurement = measurement_of(outcome)
    for rung in measurement.rungs if measurement else ():
        tracker.log_rung(run_id, rung)
    record = a_record(run_id, outcome, number)
    tracker.end_trial(record, rung_requests=RUNG_REQUESTS if measurement else {}, log_path=log_path)
    return record


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("project with a space")


@pytest.fixture(scope="module")
def client(folder: Path) -> MlflowClient:
    Tracker.open(a_request(folder))
    return MlflowClient(tracking_uri=a_request(folder).tracking_uri)


@pytest.fixture
def copied(client: MlflowClient, folder: Path, tmp_path: Path) -> Request:
    """What asks for a copy of the shared database, to be spoilt: making a new one takes seconds."""
    shutil.copy(folder / "mlruns" / "mlflow.db", tmp_path / "copy.db")
    return a_request(tmp_path, tracking_uri=f"sqlite:///{tmp_path / 'copy.db'}")


def alter(request: Request, statement: str, *values: str) -> None:
    with contextlib.closing(sqlite3.connect(request.tracking_uri.removeprefix("sqlite:///"))) as connection:
        connection.execute(statement, values)
        connection.commit()


@pytest.fixture
def tracker(client: MlflowClient, folder: Path, request: pytest.FixtureRequest) -> Tracker:
    """A tracker on the shared store, in the middle of a study of the test's own."""
    asked = a_request(folder, study=request.node.name)
    tracker = Tracker.open(asked)
    tracker.start_study(asked, study=asked.study, facts={"legal_layouts": 385})
    return tracker


@pytest.fixture
def simulated_tracker(client: MlflowClient, folder: Path, request: pytest.FixtureRequest) -> Tracker:
    asked = a_request(folder, engine=SIMULATED, study=request.node.name)
    tracker = Tracker.open(asked)
    tracker.start_study(asked, study=asked.study, facts={})
    return tracker


def runs_of(client: MlflowClient, tracker: Tracker, study: str) -> list[Run]:
    runs = client.search_runs([tracker.experiment_id], run_view_type=ViewType.ALL, max_results=1000)
    return [r for r in runs if r.data.tags["tune.study"] == study]


def note_of(run: Run) -> str:
    return run.data.tags["mlflow.note.content"]


def text_of(client: MlflowClient, run_id: str, name: str) -> str:
    return Path(client.download_artifacts(run_id, name)).read_text()


@pytest.mark.parametrize("kind", OUTCOMES)
def test_each_outcome_is_a_tag_of_its_name_and_sets_the_status(
    client: MlflowClient, tracker: Tracker, kind: str
) -> None:
    outcome, status = OUTCOMES[kind]
    run = client.get_run(run_trial(tracker, outcome).run_id)
    assert run.data.tags["tune.outcome"] == kind
    assert run.info.status == status
    assert run.info.end_time >= run.info.start_time
    if kind != "measured":
        assert kind in note_of(run).splitlines()[0]


def test_a_failure_tells_its_cause_stage_direction_and_evidence(client: MlflowClient, tracker: Tracker) -> None:
    run = client.get_run(run_trial(tracker, OUTCOMES["out of memory"][0]).run_id)
    assert run.data.tags["tune.cause"] == "CUDA out of memory"
    assert run.data.tags["tune.stage"] == "weight load"
    assert run.data.tags["tune.direction"] == "split the weights over more GPUs"
    assert run.data.tags["tune.exit_code"] == "137"
    assert run.data.tags["tune.evidence"].splitlines()[1] == "94.83 GiB of 94.97 GiB"
    assert note_of(run).splitlines()[0].startswith("`out of memory at weight load")
    assert "94.83 GiB of 94.97 GiB" in note_of(run)


def test_a_cause_stays_readable_in_markdown(client: MlflowClient, tracker: Tracker) -> None:
    first = note_of(client.get_run(run_trial(tracker, OUTCOMES["crashed"][0]).run_id)).splitlines()[0]
    assert first.startswith("`crashed at first forward: <class 'KeyError'> in 'load'`; ")


def test_a_measured_trial_has_its_score_beside_the_prediction(client: MlflowClient, tracker: Tracker) -> None:
    metrics = client.get_run(run_trial(tracker, OUTCOMES["measured"][0]).run_id).data.metrics
    assert metrics["score"] == pytest.approx(SCORE)
    assert metrics["predicted_score"] == 480.0
    assert metrics["prediction_error_pct"] == pytest.approx(100 * (480 / SCORE - 1))
    assert metrics["best_concurrency"] == 4
    assert metrics["c1_tpot_ms"] == pytest.approx(20.0)
    assert metrics["c1_ttft_ms"] == pytest.approx(100.0)
    assert metrics["predicted_c1_tpot_ms"] == pytest.approx(15.0)
    assert metrics["kv_tokens"] == 240_000
    assert metrics["predicted_kv_tokens"] == 250_000
    assert metrics["predicted_weight_gib"] == pytest.approx(72.0)
    assert metrics["startup_s"] == 61.5
    assert metrics["duration_s"] == 312.0


def test_what_died_has_a_prediction_and_no_score(client: MlflowClient, tracker: Tracker) -> None:
    metrics = client.get_run(run_trial(tracker, OUTCOMES["crashed"][0]).run_id).data.metrics
    assert "score" not in metrics
    assert metrics["predicted_score"] == 480.0


def test_the_ladder_is_a_series_over_concurrency_visible_while_the_trial_runs(
    client: MlflowClient, tracker: Tracker
) -> None:
    run_id = start(tracker)
    tracker.log_rung(run_id, MEASUREMENT.rungs[0])
    assert client.get_run(run_id).info.status == "RUNNING"
    assert [(m.step, m.value) for m in client.get_metric_history(run_id, "sweep/ttft_p99_ms")] == [
        (1, pytest.approx(100.0))
    ]
    tracker.log_rung(run_id, MEASUREMENT.rungs[1])
    tracker.end_trial(a_record(run_id, Measured(measurement=MEASUREMENT)), rung_requests={}, log_path=None)
    history = client.get_metric_history(run_id, "sweep/output_tok_per_s")
    assert [(m.step, m.value) for m in history] == [(1, pytest.approx(101 / 2.1)), (4, pytest.approx(SCORE))]
    predicted = client.get_metric_history(run_id, "sweep/predicted_output_tok_per_s")
    assert [(m.step, m.value) for m in predicted] == [(1, 60.0), (4, 180.0), (16, 480.0)]


def test_a_rung_that_could_not_be_logged_in_time_is_logged_at_the_end_and_none_twice(
    client: MlflowClient, tracker: Tracker
) -> None:
    run_id = start(tracker)
    tracker.log_rung(run_id, MEASUREMENT.rungs[0])
    tracker.end_trial(a_record(run_id, Measured(measurement=MEASUREMENT)), rung_requests={}, log_path=None)
    assert [m.step for m in client.get_metric_history(run_id, "sweep/tpot_mean_ms")] == [1, 4]


def test_a_record_without_a_run_gets_one(client: MlflowClient, tracker: Tracker) -> None:
    run_id = tracker.end_trial(a_record("", OUTCOMES["measured"][0], number=7), rung_requests={}, log_path=None)
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.tags["tune.trial"] == "7"
    assert run.data.metrics["score"] == pytest.approx(SCORE)


def test_the_table_shows_the_effective_layout_and_tags_what_was_asked_for(
    client: MlflowClient, tracker: Tracker
) -> None:
    run = client.get_run(start(tracker, number=3))
    assert run.info.run_name == "#3 TP8 EP8 deepep mem0.9"
    columns = ("tp", "pp", "dp", "attn_dp", "attn_cp", "ep", "moe_dp", "a2a_backend", "mem_fraction")
    assert [run.data.params[c] for c in columns] == ["8", "1", "1", "1", "1", "8", "1", "deepep", "0.9"]
    assert run.data.params["model"] == "kimi-k2.6"
    assert run.data.params["model_experts"] == "384"
    assert run.data.params["cluster"] == "8xrtx-pro-6000"
    assert run.data.params["engine"] == "sglang"
    assert run.data.params["engine_version"] == str(NEWEST)
    assert run.data.tags["tune.requested"] == "TP8 deepep mem0.9"
    assert run.data.tags["tune.adjusted"] == "ep_size 1 -> 8"
    assert run.data.tags["requested.ep_size"] == "1"
    assert "requested.chunked_prefill_size" not in run.data.tags
    assert run.data.tags["tune.origin"] == "sampler"


def test_files_are_there_and_can_be_downloaded(client: MlflowClient, tracker: Tracker, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"[2026-01-01] ready \xff\n")
    record = run_trial(tracker, OUTCOMES["measured"][0], log_path=log)
    names = {a.path for a in client.list_artifacts(record.run_id)}
    assert names == {"launch.txt", "server.log", "measurement.json", "requests.json", "trial.json"}
    assert text_of(client, record.run_id, "launch.txt").splitlines()[-1] == "  --tp-size 8"
    assert text_of(client, record.run_id, "server.log") == "[2026-01-01] ready \ufffd\n"
    assert from_json(text_of(client, record.run_id, "trial.json")) == record
    assert json.loads(text_of(client, record.run_id, "measurement.json"))["kv_tokens"] == 240_000


def test_the_requests_are_a_table_with_one_row_each(
    client: MlflowClient, tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # MLflow loads tables from the store of the environment, whatever the client was made for.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", client.tracking_uri)
    run = client.get_run(run_trial(tracker, OUTCOMES["measured"][0]).run_id)
    assert json.loads(run.data.tags["mlflow.loggedArtifacts"]) == [{"path": "requests.json", "type": "table"}]
    table = client.load_table(tracker.experiment_id, "requests.json", run_ids=[run.info.run_id])
    assert list(table["concurrency"]) == [1, 4, 4, 4, 4]
    assert list(table["tpot_ms"]) == pytest.approx([20.0] * 5)
    assert list(table["total_s"]) == pytest.approx([2.1] * 5)


def doubted() -> Measured:
    rung = replace(MEASUREMENT.rungs[0], doubts=("5 prompt tokens came from a warm prefix cache",), within=0.5)
    rate = RateRung.of(2.5, [*timings(9), replace(timings(1)[0], error="HTTP 503: busy")])
    ended = "throughput peaked at concurrency 1 (48 tok/s)"
    return Measured(measurement=replace(MEASUREMENT, rungs=(rung, MEASUREMENT.rungs[1]), rates=(rate,), ended=ended))


def test_doubts_about_the_figures_are_a_tag_and_stand_in_the_note(client: MlflowClient, tracker: Tracker) -> None:
    data = client.get_run(run_trial(tracker, doubted()).run_id).data
    cached = "concurrency 1: 5 prompt tokens came from a warm prefix cache"
    failed = "2.5 requests/s: 1 of 10 requests failed: HTTP 503: busy"
    assert data.tags["tune.doubts"].splitlines() == [cached, failed]
    note = data.tags["mlflow.note.content"]
    assert f"- {cached}" in note
    assert "No further concurrency: throughput peaked at concurrency 1 (48 tok/s)." in note
    assert "| 2.5 | 10 | 1 |" in note
    plain = client.get_run(run_trial(tracker, OUTCOMES["measured"][0], number=1).run_id).data
    assert "tune.doubts" not in plain.tags
    assert "Doubts" not in plain.tags["mlflow.note.content"]


def test_rungs_of_concurrency_and_of_rates_are_series_with_their_units(client: MlflowClient, tracker: Tracker) -> None:
    run_id = run_trial(tracker, doubted()).run_id

    def series(name: str) -> list[tuple[int, float]]:
        return [(point.step, pytest.approx(point.value)) for point in client.get_metric_history(run_id, name)]

    assert series("sweep/run_output_tok_per_s") == [(1, 101 / 2.1), (4, SCORE)]
    assert series("sweep/ttft_p95_ms") == [(1, 100.0), (4, 100.0)]
    assert series("sweep/within_limits_share") == [(1, 0.5)]
    assert series("rate/requests_per_s") == [(2500, 2.5)]
    assert series("rate/num_failed") == [(2500, 1)]
    assert series("rate/tpot_p99_ms") == [(2500, 20.0)]


def test_a_missing_server_log_costs_nothing_else(client: MlflowClient, tracker: Tracker, tmp_path: Path) -> None:
    record = run_trial(tracker, OUTCOMES["environment"][0], log_path=tmp_path / "never written")
    assert {a.path for a in client.list_artifacts(record.run_id)} == {"launch.txt", "trial.json"}


def test_a_long_log_is_cut_to_its_last_mebibyte_at_a_line(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    lines = [f"line {i}" for i in range(200_000)]
    log.write_text("\n".join(lines))
    kept = log_tail(log)
    assert kept is not None
    mark, *rest = kept.splitlines()
    assert mark.startswith("[cut: the last ")
    assert str(log.stat().st_size) in mark
    assert rest == lines[-len(rest) :]
    assert LOG_BYTES - 20 < len("\n".join(rest)) <= LOG_BYTES


def test_no_number_that_is_none_reaches_the_store(client: MlflowClient, tracker: Tracker) -> None:
    nan = float("nan")
    rung = MEASUREMENT.rungs[0]
    broken = replace(rung, ttft_s=replace(rung.ttft_s, p99=math.inf), tpot_s=replace(rung.tpot_s, p99=nan))
    measurement = Measurement(rungs=(broken,), simulated=False, startup_s=nan, kv_tokens=1)
    requests_of_rung = {1: [replace(timings(1)[0], first_token_s=nan, error="cut")]}
    run_id = start(tracker)
    tracker.log_rung(run_id, broken)
    record = a_record(run_id, Measured(measurement=measurement), value=nan)
    tracker.end_trial(record, rung_requests=requests_of_rung, log_path=None)
    metrics = client.get_run(run_id).data.metrics
    assert all(abs(v) < 1e300 for v in metrics.values())
    assert "sweep/output_tok_per_s" in metrics
    assert not {"score", "startup_s", "sweep/ttft_p99_ms", "sweep/tpot_p99_ms"} & set(metrics)
    for name in ("requests.json", "measurement.json", "trial.json"):
        assert not re.search(r"NaN|Infinity", text_of(client, run_id, name))


def test_evidence_longer_than_mlflow_takes_is_cut_with_a_mark(client: MlflowClient, tracker: Tracker) -> None:
    evidence = tuple(f"line {i} " + "x" * 500 for i in range(100))
    outcome = Crashed(cause="a\0b" + "y" * 9000, stage="first forward", exit_code=1, evidence=evidence)
    run = client.get_run(run_trial(tracker, outcome).run_id)
    for tag in ("tune.evidence", "tune.cause", "mlflow.note.content"):
        assert len(run.data.tags[tag]) <= MAX_TAG_CHARS
    assert run.data.tags["tune.evidence"].endswith(f"[cut: {sum(map(len, evidence)) + 99} characters in all]")
    assert run.data.tags["tune.cause"].startswith("aby")
    assert "Launched as:" in note_of(run)


@given(text=st.text(max_size=300), limit=st.integers(60, 400))
def test_cutting_keeps_short_texts_whole_and_never_exceeds_the_limit(text: str, limit: int) -> None:
    kept = cut(text * 3, limit)
    assert len(kept) <= limit
    assert kept == text.replace("\0", "") * 3 or "[cut: " in kept


def test_halves_of_characters_as_in_undecodable_file_names_can_be_stored() -> None:
    assert cut("/models/\udcff\0", 100) == "/models/?"


def test_a_study_is_one_run_with_its_trials_nested_in_it(
    client: MlflowClient, tracker: Tracker, request: pytest.FixtureRequest
) -> None:
    run_trial(tracker, OUTCOMES["measured"][0])
    parent, child = sorted(
        runs_of(client, tracker, request.node.name), key=lambda r: r.data.tags["tune.kind"] == "trial"
    )
    assert parent.data.tags["tune.kind"] == "study"
    assert parent.data.tags["tune.legal_layouts"] == "385"
    assert parent.data.tags["tune.trials"] == "24"
    assert parent.data.params["gpu"] == CLUSTER.gpu.name
    assert parent.data.params["concurrencies"] == "1,4,16"
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id


def test_a_study_ends_with_a_verdict_and_a_table_that_links_its_trials(
    client: MlflowClient, tracker: Tracker, request: pytest.FixtureRequest
) -> None:
    good = run_trial(tracker, OUTCOMES["measured"][0], number=0)
    better = replace(good, number=2, value=961.0, effective=replace(EFFECTIVE, attn_dp_size=8), run_id="f" * 32)
    bad = run_trial(tracker, OUTCOMES["out of memory"][0], number=1)
    study = next(r for r in runs_of(client, tracker, request.node.name) if r.data.tags["tune.kind"] == "study")
    run_id = study.info.run_id
    tracker.log_best(run_id, 0, SCORE)
    tracker.log_best(run_id, 2, 961.0)
    tracker.end_study(
        run_id,
        status="FINISHED",
        note="TP8 ADP8 EP8 wins\nby far",
        summary={"stopped_because": "3 of 3 trials done"},
        records=[good, bad, better],
    )
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    note = note_of(run).splitlines()
    assert note[0] == "TP8 ADP8 EP8 wins"
    page = f"#/experiments/{tracker.experiment_id}/runs"
    assert f"| 1 | TP8 ADP8 EP8 deepep mem0.9 | 961 | 480 | [#2]({page}/{'f' * 32}{ML}) |" in note
    assert f"| 2 | TP8 EP8 deepep mem0.9 | 79.22 | 480 | [#0]({page}/{good.run_id}{ML}) |" in note
    assert f"- out of memory: [#1]({page}/{bad.run_id}{ML})" in note
    board = json.loads(text_of(client, run_id, "leaderboard.json"))
    assert [row["trials"] for row in board["layouts"]] == [[2], [0]]
    assert json.loads(text_of(client, run_id, "summary.json")) == {"stopped_because": "3 of 3 trials done"}
    assert [(m.step, m.value) for m in client.get_metric_history(run_id, "best_score")] == [
        (0, pytest.approx(SCORE)),
        (2, 961.0),
    ]


def test_resuming_takes_the_same_run_up_again_and_settles_what_a_killed_tuner_left(
    client: MlflowClient, folder: Path
) -> None:
    asked = a_request(folder, study="o'brien's \"study\"")
    killed = Tracker.open(asked)
    study_run = killed.start_study(asked, study=asked.study, facts={"searched": 1})
    done = run_trial(killed, OUTCOMES["measured"][0]).run_id
    left = start(killed, number=1)

    other = a_request(folder, study="another study")
    others_tracker = Tracker.open(other)
    others_tracker.start_study(other, study=other.study, facts={})
    others = start(others_tracker)

    again = replace(asked, trials=48, seed=7)
    resumed = Tracker.open(again)
    assert resumed.start_study(again, study=again.study, facts={"searched": 2}) == study_run
    run = client.get_run(study_run)
    assert run.info.status == "RUNNING"
    assert (run.data.tags["tune.trials"], run.data.tags["tune.searched"]) == ("48", "2")
    settled = client.get_run(left)
    assert (settled.info.status, settled.data.tags["tune.outcome"]) == ("KILLED", "interrupted")
    assert note_of(settled).splitlines()[0] == "interrupted: the tuner was killed"
    assert "Layout: TP8 EP8" in note_of(settled)
    assert client.get_run(done).info.status == "FINISHED"
    assert client.get_run(others).info.status == "RUNNING"


def test_a_finished_study_is_running_again_once_resumed(client: MlflowClient, folder: Path) -> None:
    asked = a_request(folder, study="finished before")
    tracker = Tracker.open(asked)
    run_id = tracker.start_study(asked, study=asked.study, facts={})
    tracker.end_study(run_id, status="KILLED", note="interrupted", summary={})
    assert client.get_run(run_id).info.status == "KILLED"
    assert Tracker.open(asked).start_study(asked, study=asked.study, facts={}) == run_id
    assert client.get_run(run_id).info.status == "RUNNING"


def test_a_study_of_the_same_name_on_another_cluster_is_another_run(client: MlflowClient, folder: Path) -> None:
    asked = a_request(folder, study="same name")
    elsewhere = replace(asked, cluster=parse_cluster("8xh200"))
    first = Tracker.open(asked).start_study(asked, study=asked.study, facts={})
    assert Tracker.open(elsewhere).start_study(elsewhere, study=asked.study, facts={}) != first


def test_a_reused_measurement_names_its_source_and_has_no_files(client: MlflowClient, tracker: Tracker) -> None:
    source = run_trial(tracker, OUTCOMES["measured"][0])
    reused = replace(source, number=5, origin=Origin.REUSED, reused_from="earlier#0", duration_s=0.0)
    run = client.get_run(tracker.record_reused(reused))
    assert run.info.run_id != source.run_id
    assert run.info.status == "FINISHED"
    assert run.data.tags["tune.origin"] == "reused"
    assert run.data.tags["tune.reused_from"] == "earlier#0"
    assert run.data.tags["tune.outcome"] == "measured"
    assert run.data.metrics["score"] == pytest.approx(SCORE)
    assert [m.step for m in client.get_metric_history(run.info.run_id, "sweep/output_tok_per_s")] == [1, 4]
    assert f"[earlier#0](#/experiments/{tracker.experiment_id}/runs/{source.run_id}{ML})" in note_of(run)
    assert client.list_artifacts(run.info.run_id) == []


def test_a_simulated_study_says_so_on_every_run(
    client: MlflowClient, simulated_tracker: Tracker, request: pytest.FixtureRequest
) -> None:
    tracker = simulated_tracker
    for number, (outcome, _) in enumerate(OUTCOMES.values()):
        record = run_trial(tracker, outcome, number=number)
    tracker.record_reused(replace(record, number=20, outcome=OUTCOMES["measured"][0], reused_from="x#1"))
    start(tracker, number=21)
    asked = a_request(Path(client.tracking_uri.removeprefix("sqlite:///")).parents[1], engine=SIMULATED)
    resumed = Tracker.open(replace(asked, study_name=request.node.name))
    run_id = resumed.start_study(asked, study=request.node.name, facts={})
    resumed.end_study(run_id, status="FINISHED", note="the winner", summary={}, records=[record])
    runs = runs_of(client, tracker, request.node.name)
    assert len(runs) == 1 + len(OUTCOMES) + 2
    for run in runs:
        assert run.info.status != "RUNNING"
        assert run.info.run_name.startswith("simulated ")
        assert run.data.tags["tune.simulated"] == "true"
        assert run.data.tags["tune.simulated_because"] == "no GPU was found"
        assert run.data.params["engine"] == "simulated"
        assert note_of(run).splitlines()[0].startswith("SIMULATED: ")
        assert "simulated seconds" in note_of(run)


def test_a_real_run_carries_no_mark_of_a_simulation(client: MlflowClient, tracker: Tracker) -> None:
    run = client.get_run(run_trial(tracker, OUTCOMES["measured"][0]).run_id)
    assert "simulated" not in json.dumps(run.to_dictionary()["data"]).lower()


def test_metric_names_are_those_that_every_mlflow_store_takes(client: MlflowClient, tracker: Tracker) -> None:
    metrics = client.get_run(run_trial(tracker, OUTCOMES["measured"][0]).run_id).data.metrics
    assert all(re.fullmatch(r"[A-Za-z0-9_\-. :/]+", name) for name in metrics)


def test_a_run_deleted_under_the_tuner_is_one_tracking_error(client: MlflowClient, tracker: Tracker) -> None:
    run_id = start(tracker)
    client.delete_run(run_id)
    with pytest.raises(TrackingError, match="MLflow could not log to a run"):
        tracker.log_rung(run_id, MEASUREMENT.rungs[0])


def test_the_store_is_where_it_was_asked_for(client: MlflowClient, folder: Path, tracker: Tracker) -> None:
    experiment = client.get_experiment(tracker.experiment_id)
    assert experiment.name == "layout-tune"
    assert experiment.artifact_location == str(folder / "mlruns" / "artifacts")
    assert find_experiment(client.tracking_uri) == tracker.experiment_id
    assert tracker.run_url("abc") == f"#/experiments/{tracker.experiment_id}/runs/abc{ML}"
    assert tracker.experiment_url.endswith("/runs?workflowType=machine_learning")


def _in_a_file(folder: Path) -> str:
    (folder / "file").write_text("not a folder")
    return f"sqlite:///{folder}/file/mlflow.db"


def _no_database(folder: Path) -> str:
    (folder / "garbage.db").write_text("not a database " * 100)
    return f"sqlite:///{folder}/garbage.db"


def _a_folder(folder: Path) -> str:
    (folder / "folder.db").mkdir()
    return f"sqlite:///{folder}/folder.db"


def _nobody_there(_: Path) -> str:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"http://me:secret@127.0.0.1:{s.getsockname()[1]}"


@pytest.mark.parametrize(
    ("make_uri", "says"),
    [
        (_in_a_file, "cannot be written"),
        (_no_database, "file is not a database"),
        (_a_folder, "unable to open database file"),
        (_nobody_there, r"no MLflow server answers at http://\*\*\*@127"),
        (lambda folder: str(folder / "mlruns"), "plain folder.*sqlite:///.*migrate-filestore"),
        (lambda folder: f"file://{folder}/mlruns", "plain folder"),
        (lambda _: "sqlite://", "needs a file"),
        (lambda _: "bogus://x", "cannot use the MLflow store bogus://x"),
    ],
)
def test_a_store_that_cannot_be_used_is_one_clear_line(
    tmp_path: Path, make_uri: Callable[[Path], str], says: str
) -> None:
    with pytest.raises(UserError, match=says) as caught:
        Tracker.open(a_request(tmp_path, tracking_uri=make_uri(tmp_path)))
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_database_of_another_mlflow_is_one_clear_line(copied: Request) -> None:
    alter(copied, "UPDATE alembic_version SET version_num = 'ffffffffffff'")
    with pytest.raises(UserError, match=r"out-of-date database schema") as caught:
        Tracker.open(copied)
    assert "\n" not in str(caught.value)


def test_artifacts_that_cannot_be_written_are_noticed_before_a_study_starts(copied: Request, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    location = f"{tmp_path}/file/artifacts"
    alter(copied, "UPDATE experiments SET artifact_location = ? WHERE name = 'layout-tune'", location)
    with pytest.raises(UserError, match=f"keeps its artifacts in {location}, which cannot be written"):
        Tracker.open(copied)


def test_a_deleted_experiment_is_told_with_the_way_back(copied: Request) -> None:
    tracker = Tracker.open(copied)
    MlflowClient(tracking_uri=copied.tracking_uri).delete_experiment(tracker.experiment_id)
    with pytest.raises(UserError, match="mlflow experiments restore --experiment-id"):
        Tracker.open(copied)


def test_opening_and_tracking_say_nothing_on_the_terminal(tmp_path: Path) -> None:
    program = (
        "import sys; from tuner.tracking_store import Point, Store\n"
        "store = Store.open(sys.argv[1], sys.argv[2])\n"
        "run = store.create_run('a', tags={})\n"
        "store.log(run, points=[Point(name='m', value=1.0)])\n"
        "store.end_run(run, 'FINISHED')\n"
    )
    uri = f"sqlite:///{tmp_path}/new/mlflow.db"
    done = subprocess.run(
        [sys.executable, "-c", program, uri, str(tmp_path)], capture_output=True, text=True, timeout=120, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("postgresql://me:secret@host:5432/db", "postgresql://***@host:5432/db"),
        ("http://me:se@cret@host/x", "http://***@host/x"),
        ("sqlite:////home/me@work/mlflow.db", "sqlite:////home/me@work/mlflow.db"),
    ],
)
def test_passwords_are_not_shown(uri: str, shown: str) -> None:
    assert without_password(uri) == shown


def test_a_launch_command_can_be_pasted_and_read() -> None:
    text = launch_text(["python3", "-m", "sglang.launch_server", "--model-path", "/m/a b", "--tp-size", "8"])
    assert text == "python3 -m sglang.launch_server \\\n  --model-path '/m/a b' \\\n  --tp-size 8\n"


# The interface and the server


@pytest.fixture
def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def eventually(condition: Callable[[], bool], what: str, limit_s: float = 120.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in {limit_s:.0f} s"
        time.sleep(0.05)


def answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=5).ok
    except requests.ConnectionError:
        return False


@pytest.fixture
def interface(client: MlflowClient, folder: Path, free_port: int) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """`serve` on the shared store, in a process of its own as the command line runs it."""
    # SIGINT may come ignored, as to whatever a script starts in the background; the command line takes it back too.
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from tuner.ui import serve; sys.exit(serve(*sys.argv[1:4], int(sys.argv[4])))"
    )
    artifacts = str(folder / "mlruns" / "artifacts")
    command = [sys.executable, "-c", program, client.tracking_uri, artifacts, "127.0.0.1", str(free_port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        address = f"http://127.0.0.1:{free_port}"
        try:
            eventually(
                lambda: process.poll() is not None or answers(f"{address}/health"), "an answer from the interface"
            )
            yield address, process
        finally:
            process.terminate()


def gone(processes: Sequence[psutil.Process]) -> bool:
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)


def test_the_interface_shows_the_store_and_leaves_nothing_running(
    tracker: Tracker, interface: tuple[str, subprocess.Popen[bytes]]
) -> None:
    address, process = interface
    record = run_trial(tracker, OUTCOMES["measured"][0])
    assert requests.get(f"{address}/health", timeout=30).text == "OK"
    page = requests.get(address, timeout=30)
    assert "<title>MLflow</title>" in page.text
    run = requests.get(f"{address}/ajax-api/2.0/mlflow/runs/get", params={"run_id": record.run_id}, timeout=60).json()
    assert {"key": "tune.outcome", "value": "measured"} in run["run"]["data"]["tags"]
    launch = requests.get(
        f"{address}/get-artifact", params={"run_uuid": record.run_id, "path": "launch.txt"}, timeout=60
    )
    assert launch.text.startswith("python3 -m sglang.launch_server")
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 2
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert process.stdout is not None
    assert process.stdout.read() == b""
    eventually(lambda: gone(family), "the end of the interface")


def test_a_study_is_tracked_on_a_server_as_on_a_database_until_that_is_gone(
    interface: tuple[str, subprocess.Popen[bytes]], folder: Path
) -> None:
    address, process = interface
    asked = a_request(folder, tracking_uri=address, study="over http")
    tracker = Tracker.open(asked)
    run_id = tracker.start_study(asked, study=asked.study, facts={})
    record = run_trial(tracker, OUTCOMES["measured"][0])
    tracker.end_study(run_id, status="FINISHED", note="done", summary={}, records=[record])
    there = MlflowClient(tracking_uri=address)
    assert there.get_run(run_id).info.status == "FINISHED"
    assert there.get_run(record.run_id).data.metrics["score"] == pytest.approx(SCORE)
    assert tracker.run_url(run_id) == f"{address}/#/experiments/{tracker.experiment_id}/runs/{run_id}{ML}"
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    eventually(lambda: gone(family), "the end of the server")
    with pytest.raises(TrackingError):
        tracker.log_best(run_id, 1, 1.0)


def test_the_address_names_the_workflow_that_shows_runs() -> None:
    assert ui.url("127.0.0.1", 5000) == "http://127.0.0.1:5000/#/experiments"
    assert ui.url("127.0.0.1", 5000, "1") == "http://127.0.0.1:5000/#/experiments/1/runs?workflowType=machine_learning"


def test_the_interface_refuses_a_taken_port_and_a_store_that_has_its_own() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} is in use"):
            ui.serve("sqlite:///x.db", "artifacts", "127.0.0.1", port)
    with pytest.raises(UserError, match="an interface of its own"):
        ui.serve("http://127.0.0.1:1", "artifacts", "127.0.0.1", 0)
