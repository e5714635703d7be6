"""Measurements move predictions and narrow their intervals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from cost_models.calibration import Observation
from cost_models.estimate import predict
from cost_models.prediction import Prediction
from cost_models.setting import Setting
from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.errors import UnknownNameError, UserError
from search_spaces.layout import Layout
from search_spaces.sglang.versions import NEWEST
from search_spaces.workload import Workload
from tuner.checking import Server, check_flags
from tuner.engine import simulated
from tuner.measurement import Measurement, Rung, Spread
from tuner.objective import Objective
from tuner.outcome import Illegal, Measured
from tuner.predict_evidence import Evidence, gathered
from tuner.predict_evidence_text import evidence_lines
from tuner.predict_measured import measured_in_file
from tuner.predict_study import measured_in_study
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


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(UserError, match="no measured point"):
        gathered(*FACTS, LOAD, Setting(version=NEWEST), [], origin="empty.jsonl")


def read(tmp_path: Path, *lines: Any) -> tuple[Observation, ...]:
    path = tmp_path / "measured.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return measured_in_file(str(path), SERVER, LOAD)


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
    assert {row[-1] for row in rows} == {"0.67"}
    assert [each["tpot_ms"]["measured"] for each in evidence.document["points"]] == pytest.approx(
        [1.5e3 * point.tpot_s for point in predicted().points]
    )
    assert max(map(len, evidence_lines(evidence, 60))) <= 60
    assert evidence_lines(None, 100) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: not JSON"),
        ({**LINE, "concurrency": 0}, "concurrency is a count"),
        ({**LINE, "concurrency": 10**9}, "concurrency is a count"),
        ({**LINE, "tpot_ms": None}, "a line says tpot_ms"),
        ({**LINE, "tpot_ms": -1}, "tpot_ms is a time above 0"),
        ({**LINE, "tpot_ms": True}, "tpot_ms is a time above 0"),
        ({**LINE, "tpot_ms": 1e300}, "tpot_ms is a time above 0"),
        ({**LINE, "ttft_ms": "1"}, "ttft_ms is a time above 0"),
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
        ({**LINE, "tp": "8"}, "tp is a count"),
    ],
)
def test_a_line_that_cannot_be_used_stops_with_its_number(tmp_path: Path, line: Any, said: str) -> None:
    with pytest.raises(UserError, match="--measured, line 2") as error:
        read(tmp_path, LINE, line)
    assert said in str(error.value)


@pytest.mark.parametrize("word", ["", "no/such/file.jsonl"])
def test_a_file_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(UserError, match="--measured"):
        measured_in_file(word, SERVER, LOAD)


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
            ttft_s=spread,
            tpot_s=spread,
            cached_tokens=0,
        )

    rungs = (rung(1), rung(8))
    return Measured(measurement=Measurement(rungs=rungs, simulated=simulated, startup_s=1.0, kv_tokens=10**6))


def test_a_studys_finished_trials_are_read_from_its_storage(tmp_path: Path) -> None:
    refused = Illegal(cause="no", stage="check", exit_code=1)
    url = study(tmp_path, record(measured(simulated=True), 8, 800.0), record(refused, 4, None))
    found, is_simulated = measured_in_study(url, "mine", *FACTS, LOAD)
    assert is_simulated
    assert [(each.concurrency, each.tpot_s, each.ttft_s) for each in found] == [(1, 0.03, 0.03), (8, 0.03, 0.03)]
    assert {each.layout for each in found} == {LAYOUT}
    told = gathered(*FACTS, LOAD, Setting(version=NEWEST), found, origin="study mine", is_simulated=is_simulated).told
    assert "simulated server" in told


def test_a_study_of_something_else_is_refused(tmp_path: Path) -> None:
    url = study(tmp_path, record(measured(simulated=False), 8, 800.0))
    with pytest.raises(UserError, match="measured qwen3-235b-a22b-fp8 on 8xh200, not qwen3-235b-a22b-fp8 on 8xb200"):
        measured_in_study(url, "mine", SERVER.model, parse_cluster("8xb200"), LOAD)
    with pytest.raises(UserError, match="input_tokens 1024, not 99: say --input-tokens 1024"):
        measured_in_study(url, "mine", *FACTS, Workload(input_tokens=99))
    assert not measured_in_study(url, "mine", *FACTS, LOAD)[1]
    with pytest.raises(UnknownNameError, match="mine"):
        measured_in_study(url, "mein", *FACTS, LOAD)


def test_a_storage_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no study storage"):
        measured_in_study(f"sqlite:///{tmp_path / 'no.db'}", "mine", *FACTS, LOAD)
    assert not list(tmp_path.iterdir())
