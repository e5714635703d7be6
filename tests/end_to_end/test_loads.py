"""Loads and limits as a user names them: the command itself, on the simulated server, in a folder of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlflow
import pytest

from tests.end_to_end.test_main_job import runs_of, tune

QUICK = ("--concurrency", "1,4", "--clock-scale", "1e9", "--trials", "2", "--pin", "mem_fraction_static=0.9")


def document(folder: Path, *words: str) -> dict[str, Any]:
    done = tune(folder, *QUICK, *words, "--json")
    assert done.returncode == 0, done.stderr
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


@pytest.fixture(scope="module")
def by_rate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("goodput")
    slo = "ttft_p99=2s,tpot_p90=60ms"
    lengths = ("--input-tokens", "200:1800", "--output-tokens", "16:64")
    return folder, document(folder, "--objective", "goodput", "--slo", slo, "--request-rate", "0.5,1,2,4", *lengths)


def test_goodput_is_the_highest_rate_at_which_the_limits_hold(by_rate: tuple[Path, dict[str, Any]]) -> None:
    _, told = by_rate
    assert (told["objective"], told["limits"]) == ("goodput", "ttft_p99=2s,tpot_p90=60ms")
    assert told["workload"]["requests"] == "200 to 1800 tokens in, 16 to 64 out, drawn evenly"
    measured = [trial for trial in told["trials"] if trial["outcome"] == "measured"]
    assert measured
    for trial in measured:
        assert [rate["requests_per_s"] for rate in trial["rates"]] == [0.5, 1.0, 2.0, 4.0]
        held = [
            rate["requests_per_s"]
            for rate in trial["rates"]
            if rate["ttft_p99_ms"] <= 2000 and rate["tpot_p90_ms"] <= 60 and rate["is_kept_up"]
        ]
        assert trial["value"] == max(held, default=0.0)
        assert trial["unit"] == "requests/s"
        assert all(0.0 <= rate["within_limits"] <= 1.0 for rate in trial["rates"])
    assert told["winner"]["value"] == max(trial["value"] for trial in measured)


def test_the_rates_are_kept_request_by_request_and_as_series(by_rate: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = by_rate
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlruns' / 'mlflow.db'}")
    trial = next(run for run in runs_of(folder, "trial") if run.data.tags["tune.outcome"] == "measured")
    steps = [point.step for point in client.get_metric_history(trial.info.run_id, "rate/ttft_p99_ms")]
    assert steps == [500, 1000, 2000, 4000]
    table = json.loads(Path(client.download_artifacts(trial.info.run_id, "requests.json")).read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    of_rates = [row for row in rows if row["request_rate"] == "2 requests/s"]
    assert len(of_rates) == 120
    assert {row["concurrency"] for row in of_rates} == {None}
    assert 200 <= min(row["prompt_tokens"] for row in of_rates) < max(row["prompt_tokens"] for row in of_rates) <= 1800


def test_a_burst_is_no_rate_that_a_server_keeps_up_with_however_lax_the_limits(tmp_path: Path) -> None:
    lengths = ("--input-tokens", "64", "--output-tokens", "32", "--pin", "tp_size=8", "--pin", "ep_size=8")
    words = ("--objective", "goodput", "--slo", "ttft_p99=1000s", "--request-rate", "2,1000", *lengths)
    told = document(tmp_path, *words)
    trial = next(trial for trial in told["trials"] if trial["outcome"] == "measured")
    calm, burst = trial["rates"]
    assert (calm["is_kept_up"], burst["is_kept_up"], told["winner"]["value"]) == (True, False, 2.0)
    assert calm["ended_per_s"] == pytest.approx(2.0, rel=0.4)
    assert burst["ended_per_s"] < 500
    assert "does not keep up" in burst["doubts"][0]
    again = tune(tmp_path, *QUICK, *words, "--study", "kept")
    assert again.returncode == 0, again.stderr
    other = tune(tmp_path, *QUICK, *words, "--study", "kept", "--seed", "4")
    assert other.returncode == 2
    assert "another question" in other.stderr


def test_limits_that_no_layout_keeps_leave_no_winner(tmp_path: Path) -> None:
    done = tune(tmp_path, *QUICK, "--objective", "goodput", "--slo", "ttft_p99=1ms", "--output-tokens", "8")
    assert done.returncode == 4
    assert "no layout keeps ttft_p99=1ms at any rung" in done.stdout


def test_a_trace_is_a_load_of_its_own_and_its_arrivals_are_kept(tmp_path: Path) -> None:
    lines = [{"timestamp": 400 * i, "input_length": 300 + 7 * i, "output_length": 20} for i in range(40)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ("--objective", "peak_throughput", "--pin", "tp_size=8", "--pin", "ep_size=8")
    told = document(tmp_path, *words, "--trace", "t.jsonl")
    trial = next(trial for trial in told["trials"] if trial["outcome"] == "measured")
    (rate,) = trial["rates"]
    assert (rate["requests_per_s"], rate["num_requests"], rate["num_failed"]) == (pytest.approx(2.5), 40, 0)
    assert trial["value"] == max(rung["output_tok_s"] for rung in trial["rungs"])
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[:-1]))
    again = document(tmp_path, *words, "--trace", "t.jsonl")
    assert again["study"] != told["study"]
    assert not any(trial["reused_from"] for trial in again["trials"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--trace", "t.jsonl"), "t.jsonl:2: input_tokens must be a whole number"),
        (("--prompts", "p.jsonl"), "p.jsonl:1: no `prompt`"),
        (("--request-rate", "fast"), "--request-rate is requests per second"),
        (("--input-tokens", "9:3"), "a range of input lengths rises"),
        (("--slo", "ttft_p99=2s"), "--slo is what --objective goodput holds to"),
    ],
)
def test_a_load_that_is_none_is_refused_with_its_place_before_anything_starts(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    (tmp_path / "t.jsonl").write_text('{"input_tokens": 5, "output_tokens": 5}\n{"input_tokens": "5"}\n')
    (tmp_path / "p.jsonl").write_text('{"question": "why"}\n')
    done = tune(tmp_path, "--objective", "peak_throughput", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "mlruns").exists()
