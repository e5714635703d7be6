"""Measurements move predictions and narrow their intervals."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cost_models.calibration import Observation
from cost_models.estimate import predict
from cost_models.prediction import Prediction
from cost_models.setting import Setting
from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.errors import CannotRunError, UnknownNameError, UserError
from search_spaces.layout import Layout
from search_spaces.sglang.versions import NEWEST
from search_spaces.workload import Workload
from tuner import predict_ranking_document, predict_ranking_text
from tuner.checking import Server, check_flags
from tuner.engine import simulated
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
)
from tuner.predict_evidence import Evidence, gathered
from tuner.predict_evidence_text import evidence_lines
from tuner.predict_figure import measured_points, write_figure
from tuner.predict_left_out import LeftOut
from tuner.predict_measured import measured_in_files
from tuner.predict_space import Ranking, rank_space
from tuner.predict_study import measured_in_study, observations_of, trials_of
from tuner.record import Origin, TrialRecord
from tuner.request import Request
from tuner.sampling import LayoutSampler, Scored
from tuner.study_store import StudyStore

SERVER = Server(model=load_model("qwen3-235b-a22b-fp8"), cluster=parse_cluster("8xh200"))
FACTS = (SERVER.model, SERVER.cluster)
LOAD = Workload(concurrencies=(1, 8, 64))
LAYOUT = check_flags(("--tp-size", "8", "--ep-size", "8"), SERVER).verdict.effective
LINE: dict[str, Any] = {"flags": {"tp-size": 8, "ep-size": 8}, "concurrency": 8, "tpot_ms": 20.0, "ttft_ms": 200.0}


def predicted(evidence: Evidence | None = None, layout: Layout = LAYOUT) -> Prediction:
    known = {} if evidence is None else {"calibration": evidence.calibration}
    found = predict(*FACTS, layout, LOAD, setting=Setting(version=NEWEST), **known)
    assert isinstance(found, Prediction)
    return found


def slower(factor: float, layout: Layout = LAYOUT) -> Evidence:
    """As if the whole sweep of a layout had been measured at `factor` times its prediction."""
    seen = [
        Observation(layout=layout, concurrency=p.concurrency, tpot_s=p.tpot_s * factor, ttft_s=p.ttft_s * factor)
        for p in predicted(layout=layout).points
    ]
    return gathered(*FACTS, LOAD, Setting(version=NEWEST), seen, origin="a test")


@pytest.mark.parametrize("factor", [0.7, 1.5])
def test_measurements_move_the_prediction_towards_them_and_narrow_its_interval(factor: float) -> None:
    evidence = slower(factor)
    before, after = predicted(), predicted(evidence)
    for old, new in zip(before.points, after.points, strict=True):
        assert abs(math.log(new.tpot_s / (old.tpot_s * factor))) < 0.3 * abs(math.log(factor))
        assert new.tpot_interval_s.factor < old.tpot_interval_s.factor
        assert old.tpot_s * factor in new.tpot_interval_s


def test_another_layout_of_the_campaign_is_moved_the_same_way_but_less() -> None:
    other = check_flags(("--tp-size", "8", "--ep-size", "4"), SERVER).verdict.effective
    evidence = slower(1.5)
    own = predicted(evidence).points[1].tpot_s / predicted().points[1].tpot_s
    theirs = predicted(evidence, other).points[1].tpot_s / predicted(layout=other).points[1].tpot_s
    assert 1 < theirs <= own


def test_it_is_said_how_many_points_moved_it_and_by_which_factor() -> None:
    evidence = slower(1.5)
    assert "3 measured points of 1 layout in a test" in evidence.told
    assert 1.3 < evidence.tpot_factor < 1.55
    assert f"factor {evidence.tpot_factor:.2f}" in evidence.told
    assert "simulated" not in evidence.told
    assert set(evidence.document) >= {"origin", "num_points", "num_layouts", "tpot_factor", "ttft_factor", "simulated"}


def ranked(evidence: Evidence | None = None, **options: Any) -> Ranking:
    pins = {"tp_size": 8, "attn_cp_size": 1, "moe_a2a_backend": "none"}
    options = {"pins": pins, **options}
    return rank_space(*FACTS, NEWEST, LOAD, Objective.PEAK_THROUGHPUT, evidence=evidence, **options)


def studied(factor: float, *ends: TrialRecord) -> Evidence:
    """As a study that measured one layout at `factor` times its prediction, and in which `ends` took place."""
    return replace(slower(factor), trials=trials_of(ends), origin="study mine")


def test_layouts_that_died_in_the_study_are_not_ranked_but_listed() -> None:
    usual = ranked()
    first = usual.best.prediction.layout
    died = replace(ended(OUT_OF_MEMORY), requested=usual.best.candidate.requested, effective=first)
    told = ranked(studied(1.0, died))
    assert first not in {each.prediction.layout for each in told.ranked}
    shape = first.changed(mem_fraction_static=None)
    for each in told.ranked:
        for layout in (each.prediction.layout, each.roomiest[0].effective):
            if layout.changed(mem_fraction_static=None) == shape:
                assert layout.mem_fraction_static < first.mem_fraction_static
    label = usual.best.candidate.requested.label
    text = " ".join(" ".join(predict_ranking_text.report(told, 150, 3)).split())
    assert f"1 layout died in that study and is not ranked: {label} (out of memory at CUDA graph capture)" in text
    (shown,) = predict_ranking_document.document(told)["died"]
    assert (shown["label"], shown["how"]) == (label, "out of memory at CUDA graph capture")
    refused = replace(died, outcome=Illegal(cause="no", stage="check", exit_code=1))
    gone = ranked(studied(1.0, refused))
    assert shape not in {each.prediction.layout.changed(mem_fraction_static=None) for each in gone.ranked}
    assert not predict_ranking_document.document(usual)["died"]
    with pytest.raises(CannotRunError, match="died in study mine"):
        ranked(
            studied(1.0, ended(refused.outcome, None)),
            pins={"tp_size": 8, "ep_size": 8, "attn_dp_size": 1, "attn_cp_size": 1, "moe_a2a_backend": "none"},
        )


def test_the_best_of_the_study_is_said_above_the_table() -> None:
    won = ended(measured(simulated=False), number=5)
    told = ranked(studied(1.0, won))
    assert "measured best: TP8 EP8 mem0.9, 800 tok/s (trial 5)" in predict_ranking_text.report(told, 150, 3)
    shown = predict_ranking_document.document(told)["measured_best"]
    assert (shown["label"], shown["value"], shown["unit"], shown["trials"]) == ("TP8 EP8 mem0.9", 800.0, "tok/s", [5])


def test_a_tight_fraction_that_was_measured_is_ranked_as_any_other() -> None:
    story = load_model("kimi-k2.6"), parse_cluster("8xrtx-pro-6000")
    server = Server(model=story[0], cluster=story[1])
    tight = check_flags(("--tp-size", "8", "--ep-size", "4", "--mem-fraction-static", "0.94"), server).verdict.effective
    seen = [Observation(layout=tight, concurrency=64, tpot_s=0.06)]
    evidence = gathered(*story, LOAD, Setting(version=NEWEST), seen, origin="a test")
    pins = {"tp_size": 8, "ep_size": 4, "attn_dp_size": 1, "attn_cp_size": 1, "moe_a2a_backend": "none"}
    load = Workload(concurrencies=(1, 64, 256))
    before, after = (
        rank_space(*story, NEWEST, load, Objective.PEAK_THROUGHPUT, pins=pins, evidence=known).best
        for known in (None, evidence)
    )
    assert not before.prediction.memory.is_tight
    assert after.prediction.layout == tight
    assert after.prediction.memory.is_tight
    row = next(
        line
        for line in predict_ranking_text.report(
            rank_space(*story, NEWEST, load, Objective.PEAK_THROUGHPUT, pins=pins, evidence=evidence), 150, 3
        )
        if line.startswith("1 ")
    )
    assert "tight" not in row


@pytest.mark.parametrize("factor", [1.0, 2.5])
def test_that_others_gain_by_slow_measurements_alone_is_said(factor: float) -> None:
    best = ranked().best.prediction.layout
    evidence = slower(factor, best)
    told = ranked(evidence)
    assert told.is_lead_unmeasured is (factor > 1.2)
    text = " ".join(" ".join(predict_ranking_text.report(told, 150, 3)).split())
    said = "the measured layouts came out x2.5 slower than predicted; others are expected to share part of that only"
    assert (said in text) is (factor > 1.2)
    assert predict_ranking_document.document(told)["is_lead_unmeasured"] is (factor > 1.2)


def test_measured_points_are_drawn_in_the_figure(tmp_path: Path) -> None:
    told = ranked(slower(1.3))
    points = measured_points(told)
    assert [x for x, _ in points] == pytest.approx([1 / (1.3 * point.tpot_s) for point in predicted().points])
    assert all(
        y == pytest.approx(point.output_tok_per_s / 1.3 / 8, rel=1e-6)
        for (_, y), point in zip(points, predicted().points, strict=True)
    )
    path = tmp_path / "a.svg"
    write_figure(told, path)
    assert "measured" in path.read_text()
    assert measured_points(ranked()) == []


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(UserError, match="no measured point"):
        gathered(*FACTS, LOAD, Setting(version=NEWEST), [], origin="empty.jsonl")


def read(tmp_path: Path, *lines: Any) -> tuple[Observation, ...]:
    path = tmp_path / "measured.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return measured_in_files([str(path)], SERVER, LOAD).observations


def test_a_file_is_read_into_effective_layouts_and_seconds(tmp_path: Path) -> None:
    words = {**LINE, "flags": None, "argv": "--tp 8 --ep 8", "ttft_ms": None}
    notation = {**LINE, "flags": None, "argv": "TP8 EP8"}
    first, second, third = read(tmp_path, LINE, "", words, notation)
    assert first == Observation(layout=LAYOUT, concurrency=8, tpot_s=0.02, ttft_s=0.2)
    assert second == Observation(layout=LAYOUT, concurrency=8, tpot_s=0.02, ttft_s=None)
    assert third == first


def test_lines_of_validate_are_measurements_too(tmp_path: Path) -> None:
    line = {"concurrency": 8, "tpot_ms": 20.0, "ttft_ms": 200.0, "tp": 8, "moe_ep": 8, "attention_dp": None, "pp": 0}
    line |= {"engine": "sglang", "model": "Qwen3-235B-A22B", "precision": "fp8", "gpu": "H200 SXM 141GB", "flag": ""}
    line |= {"isl": 1024, "osl": 512, "source": "mine", "used_for_fitting": False}
    assert read(tmp_path, line) == read(tmp_path, LINE)
    (other,) = read(tmp_path, {**line, "moe_ep": 4, "world_tp": 4, "pp": 2})
    assert (other.layout.tp_size, other.layout.ep_size, other.layout.pp_size) == (4, 4, 2)


def test_each_measured_point_stands_beside_what_was_predicted_of_it_before() -> None:
    evidence = slower(1.5)
    assert [each.measured for each in evidence.compared] == list(evidence.observations)
    for each, point in zip(evidence.compared, predicted().points, strict=True):
        assert (each.tpot_s, each.ttft_s) == (point.tpot_s, point.ttft_s)
    lines = evidence_lines(evidence, 100)
    rows = [line.split() for line in lines if line.strip().startswith("TP8 EP8")]
    assert len(rows) == 3
    assert all(row.count("0.67") == 2 for row in rows)
    assert [each["tpot_ms"]["measured"] for each in evidence.document["points"]] == pytest.approx(
        [1.5e3 * point.tpot_s for point in predicted().points]
    )
    assert max(map(len, evidence_lines(evidence, 60))) <= 60
    assert evidence_lines(None, 100) == []


def test_measured_rates_and_what_they_move_are_told() -> None:
    points = predicted().points
    seen = [
        Observation(layout=LAYOUT, concurrency=p.concurrency, tpot_s=p.tpot_s, ttft_s=p.ttft_s, output_tok_per_s=rate)
        for p, rate in ((points[0], points[0].output_tok_per_s), (points[2], 0.8 * points[2].output_tok_per_s))
    ]
    evidence = gathered(*FACTS, LOAD, Setting(version=NEWEST), seen, origin="a test")
    assert evidence.rate_factors == pytest.approx({1: 1.0, 64: 0.8}, rel=0.02)
    lines = evidence_lines(evidence, 150)
    assert any(line.split()[-3:] == ["tok/s", "predicted", "ratio"] for line in lines)
    assert "1.25" in next(line for line in lines if " 64 " in line)
    text = " ".join(" ".join(lines).split())
    assert re.search(r"measured rates are 0\.\d\d to \d\.\d\d of what .* at concurrencies 1 and 64: runs of few", text)
    assert "tok/s here are such runs'" in text
    shown = evidence.document
    assert set(shown["rate_factors"]) == {"1", "64"}
    assert shown["points"][1]["output_tok_s"]["measured"] == pytest.approx(0.8 * points[2].output_tok_per_s)
    assert slower(1.1).rates_told == ""
    assert slower(1.1).document["points"][0]["output_tok_s"]["is_outside"] is None


def test_a_measured_point_names_its_environment() -> None:
    switch = (("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE", "1"),)
    story = load_model("kimi-k2.6"), parse_cluster("8xrtx-pro-6000")
    layout = check_flags(("--tp-size", "8"), Server(model=story[0], cluster=story[1])).verdict.effective
    seen = [
        Observation(layout=layout, concurrency=1, tpot_s=t, environment=env) for t, env in ((0.04, ()), (0.02, switch))
    ]
    evidence = gathered(*story, LOAD, Setting(version=NEWEST), seen, origin="a test")
    assert "2 measured points of 1 layout in 2 environments" in evidence.told
    rows = [line for line in evidence_lines(evidence, 150) if line.strip().startswith("TP8 ")]
    assert ["SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1" in row for row in rows] == [False, True]
    assert [each["environment"] for each in evidence.document["points"]] == [{}, dict(switch)]
    assert not any("environment" in line for line in evidence_lines(slower(1.1), 150))


def test_what_is_left_out_is_told_and_written() -> None:
    seen = slower(1.1).observations
    left = LeftOut(set_aside={"flagged: stalled": 2}, repeated=1, by_client={"burst": 3})
    evidence = gathered(*FACTS, LOAD, Setting(version=NEWEST), seen, origin="a test", left_out=left)
    text = " ".join(" ".join(evidence_lines(evidence, 100)).split())
    for said in ("set aside: 2 lines, flagged: stalled", "repeated: 1 line", "of 3 lines sent by burst"):
        assert said in text
    told = evidence.document
    assert (told["set_aside"], told["repeated"], told["tpot_alone_by_client"]) == (
        {"flagged: stalled": 2},
        1,
        {"burst": 3},
    )
    with pytest.raises(UserError, match=r"no measured point in a test: .*; set aside: 2 lines"):
        gathered(*FACTS, LOAD, Setting(version=NEWEST), [], origin="a test", left_out=left)


def test_points_outside_of_the_uncalibrated_interval_are_marked() -> None:
    near, far = slower(1.02), slower(4.0)
    for evidence, is_outside in ((near, False), (far, True)):
        lines = [line for line in evidence_lines(evidence, 150) if line.strip().startswith("TP8 EP8")]
        assert all(("outside 95 %" in line) is is_outside for line in lines)
        for each, shown in zip(evidence.compared, evidence.document["points"], strict=True):
            low, high = shown["tpot_ms"]["interval"]
            assert (low / 1e3, high / 1e3) == pytest.approx((each.tpot_interval_s.low, each.tpot_interval_s.high))
            assert is_outside is not (low <= shown["tpot_ms"]["measured"] <= high)
            assert shown["tpot_ms"]["is_outside"] is is_outside
    assert near.measured_over_predicted == pytest.approx(1.02)
    assert far.measured_over_predicted == pytest.approx(4.0)
    assert not any("outside" in line for line in evidence_lines(near, 150))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: not JSON"),
        ({**LINE, "concurrency": 0}, "concurrency is a whole number from 1 to 8192"),
        ({**LINE, "concurrency": 10**9}, "concurrency is a whole number from 1 to 8192"),
        ({**LINE, "tpot_ms": None}, "tpot_ms is missing"),
        ({**LINE, "tpot_ms": -1}, "tpot_ms is a time in ms from 0.001 to 1e+09"),
        ({**LINE, "tpot_ms": True}, "tpot_ms is a time in ms from 0.001 to 1e+09"),
        ({**LINE, "tpot_ms": 1e300}, "tpot_ms is a time in ms from 0.001 to 1e+09"),
        ({**LINE, "ttft_ms": "1"}, "ttft_ms is a time in ms from 0.001 to 1e+09"),
        ({**LINE, "flags": None}, "either flags"),
        ({**LINE, "tpot_m": 3}, "did you mean tpot_ms"),
        ({**LINE, "flags": {"tp-size": 8, "ep-size": 3}}, "it was measured, but SGLang"),
        (
            {**LINE, "tpot_ms": 0.02, "ttft_ms": 0.2},
            "tok/s, and no layout of 8xh200 can exceed",
        ),
        ({**LINE, "tpot_ms": 0.02, "ttft_ms": None}, "in seconds it would be 20 ms"),
        ({**LINE, "isl": 8192}, "measured with isl 8192, and what is asked for has 1024: say --input-tokens 8192"),
        ({**LINE, "output_tokens": 7}, "measured with output_tokens 7, and what is asked for has 512"),
        ({**LINE, "engine": "vllm"}, "measured with vllm"),
        (
            {**LINE, "model": "DeepSeek-V3", "precision": "fp8"},
            "measured of DeepSeek-V3, and what is asked for is qwen3",
        ),
        ({**LINE, "gpu": "B200"}, "measured on B200, and what is asked for is 8xh200"),
        ({**LINE, "tp": "8"}, "tp is a whole number from 1"),
    ],
)
def test_a_line_that_cannot_be_used_stops_with_its_number(tmp_path: Path, line: Any, said: str) -> None:
    with pytest.raises(UserError, match="--measured, line 2") as error:
        read(tmp_path, LINE, line)
    assert said in str(error.value)


@pytest.mark.parametrize("word", ["", "no/such/file.jsonl"])
def test_a_file_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(UserError, match="--measured"):
        measured_in_files([word], SERVER, LOAD)


def study(tmp_path: Path, *records: TrialRecord, load: Workload = LOAD) -> str:
    """The address of a storage with the study `mine`, which holds `records`."""
    url = f"sqlite:///{tmp_path / 'optuna.db'}"
    request = Request(
        objective=Objective.PEAK_THROUGHPUT,
        model=SERVER.model,
        model_path="m",
        cluster=SERVER.cluster,
        workload=load,
        engine=simulated(SERVER.cluster, NEWEST, because="a test", clock_scale=1e6),
        storage_url=url,
        tracking_uri="",
        artifact_root="",
        work_dir=str(tmp_path),
        trials=4,
        study_name="mine",
    )
    store = StudyStore(request, LayoutSampler([Scored(layout=record.requested, score=1.0) for record in records]))
    for record in records:
        store.enqueue(record.requested, record.origin)
        asked = store.ask()
        assert asked is not None
        store.tell(asked[0], record)
    return url


def record(outcome: Measured | Illegal, ep_size: int, value: float | None) -> TrialRecord:
    layout = LAYOUT.changed(ep_size=ep_size)
    return TrialRecord(
        number=0,
        requested=Layout(tp_size=8, ep_size=ep_size),
        effective=layout,
        origin=Origin.BASELINE,
        outcome=outcome,
        value=value,
        prediction=predicted(),
        command=("sglang",),
        duration_s=1.0,
    )


def measured(*, simulated: bool) -> Measured:
    def rung(concurrency: int) -> Rung:
        spread = Spread(mean=0.03, p50=0.02, p99=0.09)
        return Rung(
            concurrency=concurrency,
            num_requests=4,
            duration_s=1.0,
            output_tok_per_s=100.0 * concurrency,
            window_s=0.9,
            run_output_tok_per_s=90.0 * concurrency,
            ttft_s=spread,
            tpot_s=spread,
            cached_tokens=0,
        )

    rungs = (rung(1), rung(8))
    return Measured(measurement=Measurement(rungs=rungs, simulated=simulated, startup_s=1.0, kv_tokens=10**6))


def test_a_studys_finished_trials_are_read_from_its_storage(tmp_path: Path) -> None:
    refused = Illegal(cause="no", stage="check", exit_code=1)
    url = study(tmp_path, record(measured(simulated=True), 8, 800.0), record(refused, 4, None))
    study_ = measured_in_study(url, "mine", *FACTS, LOAD)
    found, is_simulated = study_.observations, study_.is_simulated
    assert is_simulated
    assert [(each.told, each.trials) for each in study_.trials.died] == [("TP8 EP4 (refused at check)", (0,))]
    assert study_.trials.standings[Objective.PEAK_THROUGHPUT][0].value == 800.0
    assert [(each.concurrency, each.tpot_s, each.ttft_s) for each in found] == [(1, 0.03, 0.03), (8, 0.03, 0.03)]
    assert {each.layout for each in found} == {LAYOUT}
    told = gathered(*FACTS, LOAD, Setting(version=NEWEST), found, origin="study mine", is_simulated=is_simulated).told
    assert "simulated server" in told


OUT_OF_MEMORY = OutOfMemory(
    cause="no", stage="CUDA graph capture", direction=Direction.LOWER_FRACTION, exit_code=1, shortfall_bytes=1
)


def test_throughput_of_whole_runs_teaches_nothing_of_steady_load() -> None:
    before = measured(simulated=True).measurement
    whole_run = replace(before, rungs=tuple(replace(each, window_s=None) for each in before.rungs))
    found = observations_of([record(Measured(measurement=whole_run), 8, 800.0)])
    assert [(each.concurrency, each.tpot_s, each.output_tok_per_s) for each in found] == [
        (1, 0.03, None),
        (8, 0.03, None),
    ]


def ended(outcome: Outcome, fraction: float | None = 0.9, *, number: int = 0, ep_size: int = 8) -> TrialRecord:
    return replace(
        record(measured(simulated=True), ep_size, None),
        number=number,
        outcome=outcome,
        requested=Layout(tp_size=8, ep_size=ep_size, mem_fraction_static=fraction),
        effective=LAYOUT.changed(ep_size=ep_size, mem_fraction_static=fraction),
    )


@pytest.mark.parametrize(
    ("outcome", "dead"),
    [
        (OUT_OF_MEMORY, {0.9, 0.92}),
        (replace(OUT_OF_MEMORY, direction=Direction.RAISE_FRACTION), {0.85, 0.9}),
        (replace(OUT_OF_MEMORY, direction=Direction.SPLIT_FURTHER), {0.85, 0.9, 0.92}),
        (Illegal(cause="no", stage="check", exit_code=1), {0.85, 0.9, 0.92}),
        (Crashed(cause="no", stage="warm-up", exit_code=-11), {0.85, 0.9, 0.92}),
        (Hung(stage="ready", silent_s=100.0), {0.85, 0.9, 0.92}),
        (Environment(cause="port", stage="launch", exit_code=1), set()),
        (Interrupted(cause="Ctrl-C"), set()),
        (StoppedEarly(measurement=measured(simulated=True).measurement, reason="the budget ended"), set()),
        (measured(simulated=True), set()),
    ],
)
def test_an_end_of_its_own_rules_out_a_layout_and_the_fractions_it_speaks_of(
    outcome: Outcome, dead: set[float]
) -> None:
    trials = trials_of([ended(outcome)])
    layouts = {fraction: LAYOUT.changed(mem_fraction_static=fraction) for fraction in (0.85, 0.9, 0.92)}
    assert {fraction for fraction, layout in layouts.items() if trials.how_it_died(layout)} == dead
    assert trials.how_it_died(LAYOUT.changed(ep_size=2, mem_fraction_static=0.9)) is None


def test_a_layout_that_was_measured_once_is_not_dead_and_saves_its_shape_from_a_crash_elsewhere() -> None:
    crash = Crashed(cause="no", stage="warm-up", exit_code=-11)
    trials = trials_of(
        [ended(crash, 0.9, number=1), ended(measured(simulated=True), 0.9, number=2), ended(crash, 0.85, number=3)]
    )
    assert [(each.told, each.trials) for each in trials.died] == [("TP8 EP8 mem0.85 (crashed at warm-up)", (3,))]
    assert trials.how_it_died(LAYOUT.changed(mem_fraction_static=0.9)) is None
    assert trials.how_it_died(LAYOUT.changed(mem_fraction_static=0.88)) is None
    again = trials_of([ended(OUT_OF_MEMORY, 0.9, number=1), ended(OUT_OF_MEMORY, 0.9, number=4)])
    assert [each.trials for each in again.died] == [(1, 4)]


def test_the_best_of_a_study_is_told_by_the_objective_that_is_asked_for() -> None:
    seen = measured(simulated=True)
    better = replace(seen.measurement.rungs[1], output_tok_per_s=1000.0)
    winner = Measured(measurement=replace(seen.measurement, rungs=(seen.measurement.rungs[0], better)))
    records = [ended(seen, number=0, ep_size=4), ended(winner, number=3), ended(winner, number=7)]
    trials = trials_of(records)

    def told(objective: Objective, **pins: int) -> str | None:
        best = trials.best(objective, pins)
        return None if best is None else best.told(objective)

    assert told(Objective.PEAK_THROUGHPUT) == "measured best: TP8 EP8 mem0.9, 1,000 tok/s (trials 3 and 7)"
    assert told(Objective.PEAK_THROUGHPUT, ep_size=4) == "measured best: TP8 EP4 mem0.9, 800 tok/s (trial 0)"
    assert told(Objective.PEAK_THROUGHPUT, ep_size=2) is None
    assert (told(Objective.C1_LATENCY) or "").endswith("30.0 ms per token (trial 0)")
    assert trials_of([ended(OUT_OF_MEMORY)]).best(Objective.PEAK_THROUGHPUT, {}) is None


def test_of_a_study_only_what_was_asked_for_is_listed() -> None:
    records = [ended(measured(simulated=True), ep_size=8, number=1), ended(OUT_OF_MEMORY, ep_size=4, number=2)]
    evidence = studied(1.0, *records)
    for pins, has_died, is_best in (({"ep_size": 8}, False, True), ({"ep_size": 4}, True, False)):
        told = ranked(evidence, pins={"tp_size": 8, "attn_cp_size": 1, "moe_a2a_backend": "none", **pins})
        text = " ".join(predict_ranking_text.report(told, 150, 3))
        assert ("died in that study" in text) is has_died
        assert ("measured best: TP8 EP8" in text) is is_best
        shown = predict_ranking_document.document(told)
        assert bool(shown["died"]) is has_died
        assert (shown["measured_best"] is not None) is is_best


def test_a_study_of_something_else_is_refused(tmp_path: Path) -> None:
    url = study(tmp_path, record(measured(simulated=False), 8, 800.0))
    with pytest.raises(UserError, match="measured qwen3-235b-a22b-fp8 on 8xh200, not qwen3-235b-a22b-fp8 on 8xb200"):
        measured_in_study(url, "mine", SERVER.model, parse_cluster("8xb200"), LOAD)
    with pytest.raises(UserError, match="input_tokens 1024, not 99: say --input-tokens 1024"):
        measured_in_study(url, "mine", *FACTS, Workload(input_tokens=99))
    assert not measured_in_study(url, "mine", *FACTS, LOAD).is_simulated
    with pytest.raises(UnknownNameError, match="mine"):
        measured_in_study(url, "mein", *FACTS, LOAD)


def test_a_storage_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no study storage"):
        measured_in_study(f"sqlite:///{tmp_path / 'no.db'}", "mine", *FACTS, LOAD)
    assert not list(tmp_path.iterdir())
