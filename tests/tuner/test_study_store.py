"""The study as it is kept in a real SQLite storage."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from cost_models.estimate import predict
from cost_models.prediction import Prediction
from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.errors import UserError
from search_spaces.layout import Layout
from search_spaces.sglang.versions import NEWEST
from search_spaces.workload import Workload
from tuner.correctness import Agreement, Reference
from tuner.correctness import Scored as ScoredText
from tuner.engine import Engine, simulated
from tuner.load_mix import LoadMix
from tuner.measurement import Measurement, Rung, Spread
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
    WrongAnswers,
)
from tuner.record import Origin, TrialRecord, from_json, to_json
from tuner.request import Request
from tuner.sampling import LayoutSampler, Scored
from tuner.sglang_benchmark import SglangBenchmark
from tuner.study_store import CONTEXT_ATTR, StudyStore, open_storage

MODEL = load_model("kimi-k2.6")
CLUSTER = parse_cluster("8xrtx-pro-6000")
LAYOUTS = [
    Layout(tp_size=8, ep_size=ep, mem_fraction_static=0.9, chunked_prefill_size=8192, cuda_graph_max_bs_decode=64)
    for ep in (1, 2, 4, 8)
]


def engine() -> Engine:
    return simulated(CLUSTER, NEWEST, because="a test", clock_scale=1e6)


def request(tmp_path: Path, objective: Objective = Objective.PEAK_THROUGHPUT, **changes: object) -> Request:
    base = Request(
        objective=objective,
        model=MODEL,
        model_path="m",
        cluster=CLUSTER,
        workload=Workload(),
        engine=engine(),
        storage_url=f"sqlite:///{tmp_path / 'optuna.db'}",
        tracking_uri="",
        artifact_root="",
        work_dir=str(tmp_path),
        trials=4,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def store(tmp_path: Path, objective: Objective = Objective.PEAK_THROUGHPUT, **changes: object) -> StudyStore:
    sampler = LayoutSampler([Scored(layout=layout, score=float(i)) for i, layout in enumerate(LAYOUTS)])
    return StudyStore(request(tmp_path, objective, **changes), sampler)


def measurement(peak: float, tpot_s: float) -> Measurement:
    def rung(concurrency: int, rate: float) -> Rung:
        spread = Spread(mean=tpot_s, p50=tpot_s, p99=tpot_s)
        return Rung(
            concurrency=concurrency,
            num_requests=4,
            duration_s=10.0,
            output_tok_per_s=rate,
            ttft_s=spread,
            tpot_s=spread,
            cached_tokens=0,
        )

    return Measurement(rungs=(rung(1, 1 / tpot_s), rung(16, peak)), simulated=True, startup_s=60.0, kv_tokens=1000)


def record(number: int, layout: Layout, origin: Origin, outcome: Outcome, value: float | None) -> TrialRecord:
    prediction = predict(MODEL, CLUSTER, layout, Workload())
    assert isinstance(prediction, Prediction)
    return TrialRecord(
        number=number,
        requested=layout,
        effective=layout,
        origin=origin,
        outcome=outcome,
        value=value,
        prediction=prediction,
        command=("python3", "-m", "x"),
        duration_s=1.0,
    )


def run_one(s: StudyStore, outcome: Outcome, value: float | None = None) -> TrialRecord:
    asked = s.ask()
    assert asked is not None
    trial, layout, origin = asked
    told = record(trial.number, layout, origin, outcome, value)
    s.keep(trial, told)
    s.tell(trial, told)
    return told


def frozen(tmp_path: Path) -> list[optuna.trial.FrozenTrial]:
    storage = open_storage(f"sqlite:///{tmp_path / 'optuna.db'}")
    (summary,) = optuna.get_all_study_summaries(storage)
    return optuna.load_study(study_name=summary.study_name, storage=storage).trials


OUTCOMES: dict[str, tuple[Outcome, float | None, TrialState, float | None]] = {
    "measured": (Measured(measurement=measurement(900.0, 0.02)), 900.0, TrialState.COMPLETE, None),
    "stopped early": (
        StoppedEarly(measurement=measurement(500.0, 0.02), reason="budget"),
        None,
        TrialState.FAIL,
        None,
    ),
    "illegal": (Illegal(cause="x", stage="s", exit_code=1), None, TrialState.PRUNED, 1.0),
    "out of memory": (
        OutOfMemory(cause="x", stage="s", direction=Direction.LOWER_FRACTION, exit_code=137, shortfall_bytes=3 * 2**30),
        None,
        TrialState.PRUNED,
        3.0,
    ),
    "crashed": (Crashed(cause="x", stage="s", exit_code=137), None, TrialState.PRUNED, 1.0),
    "hung": (Hung(stage="s", silent_s=300.0), None, TrialState.PRUNED, 1.0),
    "wrong answers": (
        WrongAnswers(cause="x", agreement=Agreement(against="TP8", prefill=None, decode=None)),
        None,
        TrialState.PRUNED,
        1.0,
    ),
    "environment": (Environment(cause="x", stage="s", exit_code=1), None, TrialState.FAIL, None),
    "interrupted": (Interrupted(cause="x"), None, TrialState.FAIL, None),
}


@pytest.mark.parametrize("kind", OUTCOMES)
def test_optuna_is_told_the_truth(tmp_path: Path, kind: str) -> None:
    outcome, value, state, infeasible_by = OUTCOMES[kind]
    assert outcome.kind == kind
    run_one(store(tmp_path), outcome, value)
    (trial,) = frozen(tmp_path)
    assert trial.state is state
    assert trial.value == value if state is TrialState.COMPLETE else True
    assert next(iter(trial.constraints.values()), None) == infeasible_by


@pytest.mark.parametrize("kind", OUTCOMES)
def test_a_record_survives_being_written_and_read(kind: str) -> None:
    outcome, value, _, _ = OUTCOMES[kind]
    kept = record(0, LAYOUTS[0], Origin.SAMPLER, outcome, value)
    assert from_json(to_json(kept)) == kept


def test_the_storage_has_a_write_ahead_log(tmp_path: Path) -> None:
    store(tmp_path)
    with sqlite3.connect(tmp_path / "optuna.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_a_resumed_study_knows_what_was_done_and_does_not_repeat_it(tmp_path: Path) -> None:
    first = run_one(store(tmp_path), Measured(measurement=measurement(900.0, 0.02)), 900.0)
    again = store(tmp_path)
    assert again.resumed
    assert again.records() == [first]
    rest = [run_one(again, Measured(measurement=measurement(800.0, 0.02)), 800.0).requested for _ in range(3)]
    assert sorted(map(str, [first.requested, *rest])) == sorted(map(str, LAYOUTS))
    assert again.ask() is None


def test_a_trial_left_running_by_a_killed_tuner_is_settled_once_and_tried_once_more(tmp_path: Path) -> None:
    killed = store(tmp_path)
    asked = killed.ask()
    assert asked is not None
    trial, layout, origin = asked
    killed.keep(trial, record(trial.number, layout, origin, Interrupted(cause="running"), None))
    del killed
    again = store(tmp_path)
    (settled,) = again.settle()
    assert settled.requested == layout
    assert settled.outcome.kind == "interrupted"
    assert again.settle() == []
    assert frozen(tmp_path)[0].state is TrialState.FAIL
    tried = [run_one(again, Measured(measurement=measurement(1.0, 0.02)), 1.0) for _ in LAYOUTS]
    assert [r.origin for r in tried if r.requested == layout] == [Origin.RETRY]
    assert again.ask() is None


def test_enqueued_layouts_come_first_with_their_origin_and_only_once(tmp_path: Path) -> None:
    for _ in range(2):
        s = store(tmp_path)
        s.enqueue(LAYOUTS[0], Origin.BASELINE)
    done = run_one(s, Measured(measurement=measurement(1.0, 0.02)), 1.0)
    assert (done.requested, done.origin) == (LAYOUTS[0], Origin.BASELINE)
    assert run_one(s, Measured(measurement=measurement(1.0, 0.02)), 1.0).origin is Origin.SAMPLER


def test_another_objective_takes_over_what_was_measured_and_reads_its_own_value(tmp_path: Path) -> None:
    source = run_one(store(tmp_path), Measured(measurement=measurement(900.0, 0.025)), 900.0)
    other = store(tmp_path, Objective.C1_LATENCY)
    (adopted,) = other.adopt()
    assert adopted.origin is Origin.REUSED
    assert adopted.value == 0.025
    assert adopted.requested == source.requested
    assert adopted.reused_from.endswith("#0")
    assert store(tmp_path, Objective.C1_LATENCY).adopt() == []
    tried = [run_one(other, Measured(measurement=measurement(1.0, 0.02)), 0.02).requested for _ in range(3)]
    assert source.requested not in tried
    assert other.ask() is None


BY_SGLANG = SglangBenchmark(
    python=("python3",), module="sglang.benchmark.serving", tokenizer="/models/one", reports_cache=True
)


@pytest.mark.parametrize(
    "changes",
    [
        {"workload": Workload(input_tokens=64)},
        {"mix": LoadMix(request_rates=(1.0,))},
        {"mix": LoadMix(is_whole_ladder=True)},
        {"mix": LoadMix(by_sglang=BY_SGLANG)},
        {"engine": replace(simulated(CLUSTER, NEWEST, because="x", clock_scale=1.0), extra_args=("--x",))},
    ],
)
def test_measurements_of_another_context_are_not_taken_over(tmp_path: Path, changes: dict[str, object]) -> None:
    run_one(store(tmp_path), Measured(measurement=measurement(900.0, 0.025)), 900.0)
    assert store(tmp_path, Objective.C1_LATENCY, **changes).adopt() == []


def test_a_study_from_before_the_steady_window_is_neither_taken_over_nor_continued(tmp_path: Path) -> None:
    asked = request(tmp_path)
    before = {name: value for name, value in asked.context.items() if name != "figures"}
    assert asked.context["figures"] == "steady window"
    assert context_key_of(before) != asked.context_key
    run_one(store(tmp_path, study_name="mine"), Measured(measurement=measurement(900.0, 0.025)), 900.0)
    storage = open_storage(asked.storage_url)
    storage.set_study_user_attr(storage.get_study_id_from_name("mine"), CONTEXT_ATTR, context_key_of(before))
    assert store(tmp_path).adopt() == []
    with pytest.raises(UserError, match="another load, engine, space of layouts or definition of its figures"):
        store(tmp_path, study_name="mine")


def test_a_study_is_not_continued_with_another_load_generator(tmp_path: Path) -> None:
    mix = LoadMix(by_sglang=BY_SGLANG)
    run_one(store(tmp_path, study_name="mine", mix=mix), Measured(measurement=measurement(900.0, 0.025)), 900.0)
    elsewhere = LoadMix(by_sglang=replace(BY_SGLANG, tokenizer="/models/the_same_elsewhere"))
    store(tmp_path, study_name="mine", mix=elsewhere)
    assert request(tmp_path, mix=mix).context["figures"] == "whole run, by SGLang's benchmark"
    with pytest.raises(UserError, match="another load"):
        store(tmp_path, study_name="mine")


def context_key_of(context: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(context, sort_keys=True, default=str).encode()).hexdigest()[:8]


def test_a_study_name_that_belongs_to_another_question_is_refused(tmp_path: Path) -> None:
    store(tmp_path, study_name="mine")
    with pytest.raises(UserError, match="exists for another question"):
        store(tmp_path, Objective.C1_LATENCY, study_name="mine")


@pytest.fixture
def file_in_the_way(tmp_path: Path) -> Callable[[], str]:
    (tmp_path / "file").write_text("not a database, not a folder" * 100)
    return lambda: str(tmp_path / "file")


@pytest.mark.parametrize("suffix", ["/optuna.db", ""])
def test_a_storage_that_cannot_be_used_is_one_clear_line(file_in_the_way: Callable[[], str], suffix: str) -> None:
    with pytest.raises(UserError, match="storage") as caught:
        open_storage(f"sqlite:///{file_in_the_way()}{suffix}")
    assert "\n" not in str(caught.value)


def test_a_storage_of_an_unknown_kind_is_one_clear_line() -> None:
    with pytest.raises(UserError, match="cannot open the study storage"):
        open_storage("nosuch://x")


def test_a_password_is_not_shown() -> None:
    with pytest.raises(UserError) as caught:
        open_storage("postgresql+nosuchdriver://me:secret@127.0.0.1/db")
    assert "secret" not in str(caught.value)


def reference(layout: str, *, is_baseline: bool) -> Reference:
    scored = ScoredText(tokens=(5, 6), log_probs=(-0.5, -1.5), top=(((5, -0.5),), ((6, -1.5),)))
    return Reference(
        layout=layout, is_baseline=is_baseline, quantization="", prompt_lengths=(8,), vocab_size=32000, read=(scored,)
    )


def test_reference_answers_are_kept_and_hold_for_every_study_of_the_context(tmp_path: Path) -> None:
    first = store(tmp_path)
    assert first.reference() is None
    first.keep_reference(reference("TP8 EP8", is_baseline=False))
    assert store(tmp_path).reference() == reference("TP8 EP8", is_baseline=False)
    second = store(tmp_path, Objective.C1_LATENCY)
    assert second.reference() == reference("TP8 EP8", is_baseline=False)
    second.keep_reference(reference("TP8", is_baseline=True))
    third = store(tmp_path, study_name="third")
    assert third.reference() == reference("TP8", is_baseline=True)
    other = store(tmp_path, study_name="another load", workload=Workload(input_tokens=77))
    assert other.reference() is None


def test_concurrency_1_is_settled_by_its_rung_also_where_more_requests_kill_the_server(tmp_path: Path) -> None:
    crashed = Crashed(cause="x", stage="concurrency 64", exit_code=137, measurement=measurement(900.0, 0.02))
    assert Objective.C1_LATENCY.value_of(crashed) == 0.02
    assert Objective.PEAK_THROUGHPUT.value_of(crashed) is None
    run_one(store(tmp_path, Objective.C1_LATENCY), crashed, 0.02)
    (trial,) = frozen(tmp_path)
    assert (trial.state, trial.value) == (TrialState.COMPLETE, 0.02)
    killed = Environment(cause="x", stage="concurrency 64", exit_code=137, measurement=measurement(900.0, 0.02))
    assert Objective.C1_LATENCY.value_of(killed) is None
