"""SGLang's own benchmark as the load generator, on the real SGLang: by `tune measure` and in a study."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from tests.end_to_end.conftest import TinyCheckpoint
from tests.engine_support.environment import ARGUMENTS, ENVIRONMENT
from tests.engine_support.server import EngineServer, engine_server
from tests.engine_support.sglang_benchmark import make_tokenizer
from tests.processes import words_of
from tests.waiting import eventually

pytestmark = pytest.mark.engine

KEY = "canary-of-a-server-b7d2"
WITH_TEXT = tuple(word for word in ARGUMENTS if word != "--skip-tokenizer-init")
PAIRS = 2
WITHIN = 1.6
"""The ratio of two medians, either way: other work of the machine hits either generator. How well they agree where more
pairs are taken is in test_load_beside_sglang.py."""


@pytest.fixture(scope="module")
def model(engine_python: str, tiny_checkpoint: TinyCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("with-tokenizer") / "model"
    shutil.copytree(tiny_checkpoint.folder, folder)
    make_tokenizer(engine_python, folder)
    return folder


@pytest.fixture(scope="module")
def server(engine_python: str, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    log = tmp_path_factory.mktemp("server") / "log"
    with engine_server(engine_python, model, "--api-key", KEY, log=log, arguments=WITH_TEXT) as running:
        running.wait_until_ready()
        yield running


# A proxy for the world outside is none for the server under test; SGLang's own warm-up, though, would ask it.
PROXY = {"HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}


def tune(folder: Path, *words: str) -> subprocess.Popen[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "COV_"))}
    proxy = PROXY if words[0] == "measure" else {}
    path = f"{ENVIRONMENT['PYTHONPATH']}:{Path(__file__).parents[2]}"
    return subprocess.Popen(
        [sys.executable, "-m", "tuner", *words],
        cwd=folder,
        env={**kept, **proxy, **ENVIRONMENT, "PYTHONPATH": path, "ITS_KEY": KEY},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def told(folder: Path, *words: str) -> dict[str, Any]:
    process = tune(folder, *words, "--json")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    document: dict[str, Any] = json.loads(out)
    return document


def measuring(server: EngineServer, generator: str, python: str) -> tuple[str, ...]:
    whose = ("--engine-command", f"{python} -m sglang.launch_server") if generator == "sglang" else ()
    url = f"http://127.0.0.1:{server.port}"
    return ("measure", url, "--api-key-env", "ITS_KEY", "--load-generator", generator, *whose)


def requests_of(folder: Path) -> list[dict[str, Any]]:
    """Of the last run, from its table."""
    found = max(folder.rglob("requests.json"), key=lambda path: path.stat().st_mtime)
    table = json.loads(found.read_text())
    return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]


def holding(folder: Path, canary: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and canary.encode() in path.read_bytes()]


def test_both_generators_say_the_same_of_one_server(server: EngineServer, engine_python: str, tmp_path: Path) -> None:
    load = ("--concurrency", "1,4", "--input-tokens", "64", "--output-tokens", "64", "--whole-ladder")
    found: dict[str, list[list[dict[str, Any]]]] = {"own": [], "sglang": []}
    for pair in range(PAIRS):
        for name in sorted(found, reverse=bool(pair % 2)):
            document = told(tmp_path, *measuring(server, name, engine_python), *load)
            assert document["outcome"] == "measured"
            assert document["throughput_is_of"].startswith("steady" if name == "own" else "whole run")
            found[name].append(document["rungs"])
            if name == "sglang":
                rows = requests_of(tmp_path)
                assert [row["concurrency"] for row in rows].count(4) == document["rungs"][1]["num_requests"] == 16
                assert {(row["start_s"], row["output_tokens"], row["error"]) for row in rows} == {(None, 64, "")}
                assert {rung["window_s"] for rung in document["rungs"]} == {None}
    for place, concurrency in enumerate((1, 4)):
        for figure in ("run_output_tok_s", "tpot_p50_ms"):
            own, theirs = ([rungs[place][figure] for rungs in found[name]] for name in ("own", "sglang"))
            sys.stdout.write(f"\nconcurrency {concurrency} {figure}: own {own}, sglang {theirs}")
            assert 1 / WITHIN < statistics.median(own) / statistics.median(theirs) < WITHIN
    assert holding(tmp_path, KEY) == []


@pytest.mark.parametrize("asked", [signal.SIGKILL, signal.SIGINT])
def test_the_generator_ends_with_its_tuner_and_names_no_key(
    asked: signal.Signals, server: EngineServer, engine_python: str, tmp_path: Path
) -> None:
    words = measuring(server, "sglang", engine_python)
    tuner = tune(tmp_path, *words, "--concurrency", "1,4", "--input-tokens", "64", "--output-tokens", "4000")
    started = psutil.Process(tuner.pid)

    def generators() -> list[psutil.Process]:
        return [p for p in started.children(recursive=True) if "sglang.benchmark.serving" in words_of(p)]

    assert eventually(lambda: tuner.poll() is not None or generators()), tuner.communicate()
    (generator,) = generators()
    assert not any(KEY in word for p in started.children(recursive=True) for word in words_of(p))
    assert eventually(lambda: server_runs(server) > 0, 300.0)  # it imports SGLang first
    tuner.send_signal(asked)
    tuner.communicate(timeout=120)
    assert tuner.returncode in {-signal.SIGKILL, 130}
    assert eventually(lambda: not generator.is_running())
    assert eventually(lambda: server_runs(server) == 0)


def server_runs(server: EngineServer) -> int:
    """Requests that it holds."""
    headers = {"Authorization": f"Bearer {KEY}"}
    said = requests.get(f"http://127.0.0.1:{server.port}/v1/loads", headers=headers, timeout=60).json()
    return sum(int(each["num_running_reqs"]) for each in said["loads"])


def test_a_study_is_measured_by_it_and_keeps_what_it_printed_beside_the_servers_log(
    engine_python: str, model: Path, tmp_path: Path
) -> None:
    document = told(
        tmp_path,
        *("--objective", "c1_latency", "--engine", "sglang", "--model", str(model), "--cluster", "1xcpu"),
        *("--engine-command", f"{engine_python} -m sglang.launch_server"),
        *("--engine-args", " ".join((*WITH_TEXT, "--api-key", KEY))),
        *("--trials", "1", "--confirmations", "0", "--no-correctness-probe"),
        *("--concurrency", "1,4", "--input-tokens", "32", "--output-tokens", "8", "--load-generator", "sglang"),
    )
    (trial,) = document["trials"]
    assert trial["outcome"] == "measured"
    assert document["throughput_is_of"] == "whole run, by SGLang's benchmark"
    assert [rung["num_requests"] for rung in trial["rungs"]] == [16, 16]
    assert not any("flushed" in doubt for rung in trial["rungs"] for doubt in rung["doubts"])
    (log,) = tmp_path.rglob("load.log")
    assert (log.parent / "server.log").is_file()
    assert "Serving Benchmark Result" in log.read_text()
    assert holding(tmp_path, KEY) == []
