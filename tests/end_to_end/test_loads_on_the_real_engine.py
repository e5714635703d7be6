"""Ranges, rates and real prompts on the real SGLang, by the command itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import TinyCheckpoint
from tests.engine_support.environment import ARGUMENTS, ENVIRONMENT
from tests.engine_support.sglang_benchmark import make_tokenizer

pytestmark = pytest.mark.engine


def measured(python: str, model: Path, arguments: tuple[str, ...], folder: Path, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tuner", "--engine", "sglang", "--model", str(model), "--cluster", "1xcpu"),
            *("--engine-command", f"{python} -m sglang.launch_server", "--engine-args", " ".join(arguments)),
            *("--trials", "1", "--confirmations", "0", "--json", *words),
        ],
        cwd=folder,
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}:{Path(__file__).parents[2]}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_goodput_of_ranges_under_poisson_arrivals(
    engine_python: str, tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    slo = "ttft_p99=60s,tpot_p99=60s"
    lengths = ("--input-tokens", "16:64", "--output-tokens", "4:16", "--concurrency", "1,2")
    words = ("--objective", "goodput", "--slo", slo, "--request-rate", "4", *lengths)
    told = measured(engine_python, tiny_checkpoint.folder, ARGUMENTS, tmp_path, *words)
    trial = told["trials"][0]
    assert trial["outcome"] == "measured"
    assert [rate["num_requests"] for rate in trial["rates"]] == [240]
    assert {rate["num_failed"] for rate in trial["rates"]} == {0}
    assert {rate["within_limits"] for rate in trial["rates"]} == {1.0}
    assert (trial["value"], trial["unit"]) == (4.0, "requests/s")
    rows = requests_of(tmp_path)
    assert {row["request_rate"] for row in rows} == {None, "4 requests/s"}
    sent_s = sorted(row["start_s"] for row in rows if row["request_rate"] == "4 requests/s")
    assert 40 < sent_s[-1] - sent_s[0] < 90
    assert {row["error"] for row in rows} == {""}
    assert 16 <= min(row["prompt_tokens"] for row in rows) < max(row["prompt_tokens"] for row in rows) <= 64
    assert 4 <= min(row["output_tokens"] for row in rows) < max(row["output_tokens"] for row in rows) <= 16


def requests_of(folder: Path) -> list[dict[str, Any]]:
    """Of the first trial, from its table."""
    found = min(folder.rglob("requests.json"), key=lambda path: path.stat().st_mtime)
    table = json.loads(found.read_text())
    return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]


def test_real_prompts_are_counted_as_the_server_reads_them(
    engine_python: str, tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_checkpoint.folder, model)
    make_tokenizer(engine_python, model)
    prompts = tmp_path / "prompts.jsonl"
    # No word begins as a special token (w0, w1, w2) does, which would be cut off it.
    lines = [{"prompt": " ".join(f"w{300 + 10 * n + i}" for i in range(5 + n)), "output_tokens": 4} for n in range(40)]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = tuple(word for word in ARGUMENTS if word != "--skip-tokenizer-init")
    words = ("--objective", "c1_latency", "--prompts", str(prompts), "--concurrency", "1,4")
    told = measured(engine_python, model, arguments, tmp_path, *words)
    assert told["workload"]["requests"] == "40 prompts of prompts.jsonl"
    assert told["trials"][0]["outcome"] == "measured"
    alone = [row for row in requests_of(tmp_path) if row["concurrency"] == 1]
    # A word is a token, and prompts come in their order.
    assert [row["prompt_tokens"] for row in alone[:4]] == [5, 6, 7, 8]
    assert {row["output_tokens"] for row in alone} == {4}
