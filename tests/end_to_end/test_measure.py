"""`tune measure URL`: a server that somebody else started is measured, recorded and left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mlflow
import psutil
import pytest
import requests
from mlflow.entities import Run

from tests.end_to_end.conftest import TinyCheckpoint
from tests.engine_support.server import engine_server
from tests.waiting import eventually
from tuner.servers.host import unused_port
from tuner.voice import SIMULATED_MARK

KEY = "canary-of-a-server-4b1f"
ADMIN = "canary-of-its-admin-77aa"
QUICK = ("--concurrency", "1,4", "--input-tokens", "64", "--output-tokens", "16")


def measure(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tuner", "measure", *words],
        cwd=folder,
        env=_environment(**env),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def _environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "COV_"))}
    proxy = {"HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
    return {**kept, **proxy, "PYTHONPATH": str(Path(__file__).parents[2]), **more}


@contextmanager
def simulated(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    port = unused_port()
    layout = ("--tp-size", "8", "--ep-size", "4", "--mem-fraction-static", "0.9", "--clock-scale", "1e9")
    command = [sys.executable, "-m", "tuner.simulator", "--model-path", "kimi-k2.6", "--cluster", "8xrtx-pro-6000"]
    with (folder / "simulator.log").open("wb") as log:
        process = subprocess.Popen([*command, *layout, "--port", str(port), *words], stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        assert eventually(lambda: answers(f"{url}/ready")), (folder / "simulator.log").read_text()
        yield process, url
    finally:
        process.kill()
        process.wait()


def answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=5).status_code == 200
    except requests.RequestException:
        return False


def runs_of(folder: Path) -> list[Run]:
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlruns' / 'mlflow.db'}")
    (experiment,) = [e for e in client.search_experiments() if e.name != "Default"]
    return list(client.search_runs([experiment.experiment_id], "tags.`tune.kind` = 'measurement'"))


def holding(folder: Path, *canaries: str) -> list[Path]:
    kept = [p for p in folder.rglob("*") if p.is_file() and p.name != "simulator.log"]
    return [p for p in kept if any(canary.encode() in p.read_bytes() for canary in canaries)]


def test_a_simulated_server_is_measured_with_its_keys_recorded_as_simulated_and_left_running(tmp_path: Path) -> None:
    with simulated(tmp_path, "--api-key", KEY, "--admin-api-key", ADMIN) as (process, url):
        keys = ("--api-key-env", "ITS_KEY", "--admin-api-key-env", "ITS_ADMIN")
        done = measure(tmp_path, url, *keys, *QUICK, ITS_KEY=KEY, ITS_ADMIN=ADMIN)
        assert done.returncode == 0, done.stderr
        assert process.poll() is None
        assert answers(f"{url}/ready")
    lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
    assert all(line.startswith(SIMULATED_MARK) for line in lines), lines
    assert "TP8 EP4 mem0.9" in done.stderr
    assert done.stdout.splitlines()[0].split()[1:5] == ["at", "once", "tok/s", "whole"]
    assert "could not be flushed" not in done.stderr
    (run,) = runs_of(tmp_path)
    assert run.info.status == "FINISHED"
    assert run.info.run_name.startswith("simulated ")
    assert run.data.tags["tune.simulated"] == "true"
    assert run.data.tags["tune.layout"] == "TP8 EP4 mem0.9"
    assert run.data.tags["mlflow.note.content"].startswith("SIMULATED")
    assert run.data.params["ep"] == "4"
    assert run.data.metrics["sweep/output_tok_per_s"] > 0
    assert holding(tmp_path, KEY, ADMIN) == []


def test_one_document_tells_the_same(tmp_path: Path) -> None:
    with simulated(tmp_path) as (_, url):
        done = measure(tmp_path, url, *QUICK, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["url"], document["simulated"], document["layout"]) == (url, True, "TP8 EP4 mem0.9")
    assert (document["model"], document["outcome"]) == ("kimi-k2.6", "measured")
    assert [rung["concurrency"] for rung in document["rungs"]] == [1, 4]
    assert runs_of(tmp_path)[0].info.run_id == document["mlflow"]["run_id"]


def test_a_key_that_is_missing_or_wrong_is_said_before_any_load(tmp_path: Path) -> None:
    with simulated(tmp_path, "--api-key", KEY) as (_, url):
        for words, said in (
            ((), "asks for a key"),
            (("--api-key-env", "WRONG"), "another key than ours"),
            (("--api-key-env", "NOT_THERE"), "no such variable"),
            (("--api-key-env", "UNSENDABLE"), "printable ASCII"),
            (("--admin-api-key-env", "OF_TWO_LINES"), "printable ASCII"),
        ):
            unsendable = {"UNSENDABLE": "not-the-kéy-☃", "OF_TWO_LINES": "not-the-key\nX: y"}
            refused = measure(tmp_path, url, *QUICK, *words, WRONG="not-the-key", **unsendable)
            assert refused.returncode == 2
            assert said in refused.stderr
            assert "not-the-k" not in refused.stderr
            assert len(refused.stderr.splitlines()) == 1
            assert refused.stdout == ""
        by_sglang = ("--api-key-env", "OF_A_FILE", "--load-generator", "sglang")
        refused = measure(tmp_path, url, *QUICK, *by_sglang, OF_A_FILE=KEY)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "needs the real engine" in refused.stderr
        assert not (tmp_path / "mlruns").exists()
        taken = measure(tmp_path, url, *QUICK, "--api-key-env", "OF_A_FILE", "--json", OF_A_FILE=f" {KEY}\r\n")
        assert taken.returncode == 0, taken.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("http://127.0.0.1:30000/v1",), "without a path: http://127.0.0.1:30000"),
        (("127.0.0.1:1", "--input-tokens", "10:20"), "--input-tokens is one number of tokens here, no range"),
        (("127.0.0.1:1", "--output-tokens", "many"), "--output-tokens is a number of tokens"),
        (("127.0.0.1:1", "--output-tokens", "9" * 5000), "--output-tokens is a number of tokens"),
        (("127.0.0.1:1", "--input-tokens", "-1"), "--input-tokens is a number of tokens"),
        (("127.0.0.1:1", "--engine-command", "python3"), "--load-generator sglang"),
        (("127.0.0.1:1",), "nothing answers at"),
    ],
)
def test_words_that_cannot_be_used_get_one_clear_line(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    refused = measure(tmp_path, *words, "--json")
    assert refused.returncode == 2, refused.stderr
    assert said in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert said in json.loads(refused.stdout)["error"]
    assert not (tmp_path / "mlruns").exists()


def started(folder: Path, url: str, *words: str) -> subprocess.Popen[str]:
    """A measurement whose first rung has been recorded."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tuner", "measure", url, "--output-tokens", "512", "--whole-ladder", *words],
        cwd=folder,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "concurrency 1:" in line:
            return process
    raise AssertionError(process.communicate())


SLOW = ("--clock-scale", "60")


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_server_that_goes_away_ends_it_with_what_was_measured_and_a_true_status(
    tmp_path: Path, as_json: tuple[str, ...]
) -> None:
    with simulated(tmp_path, *SLOW) as (server, url):
        process = started(tmp_path, url, "--concurrency", "1,64", *as_json)
        server.kill()
        out, err = process.communicate(timeout=120)
    assert process.returncode == 4, err
    assert "no longer answers" in out
    assert ("no longer answers" in err) == bool(as_json)
    (run,) = runs_of(tmp_path)
    assert (run.info.status, run.data.tags["tune.outcome"]) == ("FAILED", "environment")
    assert run.data.metrics["sweep/output_tok_per_s"] > 0


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_order_and_leaves_the_server(tmp_path: Path, asked: signal.Signals) -> None:
    with simulated(tmp_path, *SLOW) as (server, url):
        process = started(tmp_path, url, "--concurrency", "1,64")
        process.send_signal(asked)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 130, err
        assert "interrupted" in out
        assert server.poll() is None
        assert eventually(
            lambda: requests.get(f"{url}/v1/loads", timeout=9).json()["loads"][0]["num_running_reqs"] == 0
        )
    (run,) = runs_of(tmp_path)
    assert (run.info.status, run.data.tags["tune.outcome"]) == ("KILLED", "stopped early")


def test_the_run_of_a_killed_measurement_is_settled_by_the_next(tmp_path: Path) -> None:
    with simulated(tmp_path, *SLOW) as (_, url):
        process = started(tmp_path, url, "--concurrency", "1,64")
        process.kill()
        process.communicate()
        assert [run.info.status for run in runs_of(tmp_path)] == ["RUNNING"]
        done = measure(tmp_path, url, *QUICK)
        assert done.returncode == 0, done.stderr
    assert sorted(run.info.status for run in runs_of(tmp_path)) == ["FINISHED", "KILLED"]


@pytest.mark.engine
def test_the_real_engine_is_measured_with_its_keys_and_left_running(
    engine_python: str, tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    flags = ("--tp-size", "2", "--api-key", KEY, "--admin-api-key", ADMIN)
    with engine_server(engine_python, tiny_checkpoint.folder, *flags, log=tmp_path / "simulator.log") as server:
        server.wait_until_ready()
        url = f"http://127.0.0.1:{server.port}"
        keys = ("--api-key-env", "ITS_KEY", "--admin-api-key-env", "ITS_ADMIN")
        done = measure(tmp_path, url, *keys, *QUICK, "--json", ITS_KEY=KEY, ITS_ADMIN=ADMIN)
        assert done.returncode == 0, done.stderr
        assert psutil.pid_exists(server.process.pid)
        wrong = measure(tmp_path, url, *keys, *QUICK, "--model", "kimi-k2.6", ITS_KEY=KEY, ITS_ADMIN=ADMIN)
        assert wrong.returncode == 2
        assert "2048" in wrong.stderr
    document = json.loads(done.stdout)
    assert (document["simulated"], document["layout"], document["engine_version"]) == (False, "TP2 mem0.95", "0.5.23")
    assert document["model"] == tiny_checkpoint.folder.name
    assert [rung["concurrency"] for rung in document["rungs"]] == [1, 4]
    assert not any("flushed" in doubt for rung in document["rungs"] for doubt in rung["doubts"])
    assert "simulated" not in done.stderr
    (run,) = runs_of(tmp_path)
    assert "tune.simulated" not in run.data.tags
    assert holding(tmp_path, KEY, ADMIN) == []
