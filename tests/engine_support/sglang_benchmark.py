"""SGLang's own load generator (`sglang.benchmark.serving`), run beside ours on the same server."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.engine_support.environment import ENVIRONMENT, HERE
from tuner.load import Load

_LIMIT_S = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    output_tok_per_s: float
    ttft_s: float
    tpot_s: float


def make_tokenizer(python: str, folder: Path) -> None:
    subprocess.run(
        [python, HERE / "make_tokenizer.py", folder], check=True, capture_output=True, env={**os.environ, **ENVIRONMENT}
    )


def sglang_benchmark(
    python: str, url: str, load: Load, *, tokenizer: Path, output: Path, core: int | None = None, rust: bool = False
) -> Said:
    """Means of all requests of `load`, as the benchmark reports them; on one core where `core` is given."""
    output.unlink(missing_ok=True)
    words = [
        *(["taskset", "-c", str(core)] if core is not None else []),
        *(python, "-m", "sglang.benchmark.serving"),
        *_words(url, load, tokenizer, output),
        *(["--rust-client"] if rust else []),
    ]
    ran = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=_LIMIT_S, env={**os.environ, **ENVIRONMENT}
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return _said(load, output)


@contextlib.contextmanager
def running_benchmark(python: str, url: str, *, tokenizer: Path, folder: Path) -> Iterator[Callable[[Load], Said]]:
    """The same by one process that is there from the start, so that starting it disturbs no run."""
    output, errors = folder / "said.jsonl", folder / "benchmark.log"
    with errors.open("w") as log:
        process = subprocess.Popen(
            [python, HERE / "benchmark_side.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **ENVIRONMENT},
        )
    assert process.stdin is not None
    assert process.stdout is not None

    def run(load: Load) -> Said:
        assert process.stdin is not None
        assert process.stdout is not None
        output.unlink(missing_ok=True)
        process.stdin.write(json.dumps(_words(url, load, tokenizer, output)) + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n", errors.read_text()[-3000:]
        return _said(load, output)

    try:
        yield run
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def _words(url: str, load: Load, tokenizer: Path, output: Path) -> list[str]:
    return [
        *("--backend", "sglang", "--base-url", url),
        *("--model", "paced", "--tokenizer", str(tokenizer)),
        *("--dataset-name", "random-ids", "--tokenize-prompt", "--random-range-ratio", "1.0"),
        *("--random-input-len", str(load.input_tokens), "--random-output-len", str(load.output_tokens)),
        *("--num-prompts", str(load.num_requests), "--max-concurrency", str(load.concurrency)),
        *("--seed", str(load.seed), "--warmup-requests", "0", "--disable-tqdm", "--output-file", str(output)),
    ]


def _said(load: Load, output: Path) -> Said:
    said = json.loads(output.read_text())
    assert said["completed"] == load.num_requests, said
    return Said(
        output_tok_per_s=said["output_throughput"],
        ttft_s=said["mean_ttft_ms"] / 1e3,
        tpot_s=said["mean_tpot_ms"] / 1e3,
    )
