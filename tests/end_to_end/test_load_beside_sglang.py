"""The load client beside SGLang's own benchmark: on a server of known pace, and on the real engine on the CPU."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvloop
from scipy import stats

from tests.benchmarks.paced import Truth, paced_server
from tests.end_to_end.conftest import TinyCheckpoint
from tests.engine_support.environment import ARGUMENTS
from tests.engine_support.server import engine_server
from tests.engine_support.sglang_benchmark import Said, make_tokenizer, running_benchmark, sglang_benchmark
from tuner.load import Load, Traffic, wall_clock
from tuner.measurement import Rung

pytestmark = pytest.mark.engine

TRIES = 4
LATEST_S = 5e-3
"""A server whose ticks came later than this was not on its pace: the run says nothing of any client."""
LEAST_PAIRS, MOST_PAIRS = 12, 30
WIDEST = 0.15
WIDE_ENOUGH = 0.12
"""No further pairs once every interval is narrower than this each way."""
SURE = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    share: float
    ttft_s: float


@pytest.fixture(scope="session")
def tokenizer(engine_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer(engine_python, folder)
    return folder


def ours(url: str, load: Load, core: int | None = None) -> Said:
    """By our client, in this process, on one core where `core` is given."""
    cores = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        timings = uvloop.run(Traffic(url, clock=wall_clock, silence_limit_s=120.0).run(load))
    finally:
        os.sched_setaffinity(0, cores)
    rung = Rung.of(load.concurrency, timings)
    assert rung.run_output_tok_per_s is not None
    return Said(output_tok_per_s=rung.run_output_tok_per_s, ttft_s=rung.ttft_s.mean, tpot_s=rung.tpot_s.mean)


@pytest.mark.parametrize(
    ("concurrency", "limits"),
    [
        (1, Limits(share=0.01, ttft_s=5e-3)),
        (32, Limits(share=0.01, ttft_s=5e-3)),
        (128, Limits(share=0.01, ttft_s=5e-3)),
        (512, Limits(share=0.02, ttft_s=20e-3)),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)
def test_a_known_pace_is_reported_as_it_is(
    concurrency: int, limits: Limits, engine_python: str, tokenizer: Path, tmp_path: Path
) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("a server of known pace and a client need a core each")
    load = Load(
        concurrency=concurrency,
        num_requests=max(4, 3 * concurrency),
        input_tokens=64,
        output_tokens=128,
        vocab_size=1000,
        seed=0,
    )
    rows: list[tuple[str, Said, Truth]] = []
    for name in ("ours", "sglang", "sglang --rust-client"):
        for _ in range(TRIES):
            with paced_server(cores[1]) as truth:
                if name == "ours":
                    said = ours(truth.url, load, cores[0])
                else:
                    said = sglang_benchmark(
                        engine_python,
                        truth.url,
                        load,
                        tokenizer=tokenizer,
                        output=tmp_path / "said.jsonl",
                        core=cores[0],
                        rust="rust" in name,
                    )
            rows.append((name, said, truth))
            if truth.latest_s <= LATEST_S:
                break
    sys.stdout.write(
        f"\n{'client':22}{'streams':>8}{'tok/s':>9}{'of truth':>10}{'TPOT':>9}{'TTFT ms':>9}{'more by':>9}{'server late':>13}"
    )
    for name, said, truth in rows:
        sys.stdout.write(
            f"\n{name:22}{concurrency:8}{said.output_tok_per_s:9.0f}{said.output_tok_per_s / truth.output_tok_per_s:10.4f}"
            f"{said.tpot_s / truth.tpot_s:9.4f}{said.ttft_s * 1e3:9.1f}{(said.ttft_s - truth.ttft_s) * 1e3:9.1f}"
            f"{truth.latest_s * 1e3:10.1f} ms"
        )
    _, said, truth = next(row for row in reversed(rows) if row[0] == "ours")
    assert truth.num_requests == load.num_requests
    assert is_within(said, truth, limits)


def is_within(said: Said, truth: Truth, limits: Limits) -> bool:
    return (
        abs(said.output_tok_per_s / truth.output_tok_per_s - 1) <= limits.share
        and abs(said.tpot_s / truth.tpot_s - 1) <= limits.share
        and abs(said.ttft_s - truth.ttft_s) <= limits.ttft_s
    )


def test_throughput_of_the_real_engine_agrees_with_sglang_s_own_benchmark(
    engine_python: str, tiny_checkpoint: TinyCheckpoint, tokenizer: Path, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(tiny_checkpoint.folder, checkpoint)
    shutil.copytree(tokenizer, checkpoint, dirs_exist_ok=True)
    arguments = tuple(word for word in ARGUMENTS if word != "--skip-tokenizer-init")
    ratios: dict[int, list[float]] = {1: [], 4: [], 16: []}
    with engine_server(engine_python, checkpoint, log=tmp_path / "log", arguments=arguments) as server:
        server.wait_until_ready()
        url = f"http://127.0.0.1:{server.port}"
        with running_benchmark(engine_python, url, tokenizer=tokenizer, folder=tmp_path) as theirs:
            clients: tuple[Callable[[Load], Said], ...] = (lambda load: ours(url, load), theirs)
            for pair in range(MOST_PAIRS + 1):
                for concurrency, found in ratios.items():
                    rates = [0.0, 0.0]
                    for which in (0, 1) if pair % 2 else (1, 0):
                        rates[which] = clients[which](beside(concurrency, pair)).output_tok_per_s
                    if pair:  # the first of all is warm-up
                        found.append(rates[0] / rates[1])
                        sys.stdout.write(f"\n{concurrency:8}{rates[0]:9.1f}{rates[1]:9.1f}{found[-1]:9.4f}")
                        sys.stdout.flush()
                if pair >= LEAST_PAIRS and all(width(found) <= WIDE_ENOUGH for found in ratios.values()):
                    break
    sys.stdout.write(f"\n{'streams':>8}{'pairs':>7}{'ours / sglang':>15}{f'{SURE:.0%} interval':>20}")
    for concurrency, found in ratios.items():
        low, high = interval(found)
        told = f"{low:.4f} to {high:.4f}"
        sys.stdout.write(f"\n{concurrency:8}{len(found):7}{statistics.median(found):15.4f}{told:>20}")
    for found in ratios.values():
        low, high = interval(found)
        assert low <= 1 <= high
        assert width(found) <= WIDEST


def beside(concurrency: int, pair: int) -> Load:
    """Short, so that the two of a pair see the same machine, and long enough that connecting is nothing beside it; no
    prompts twice."""
    return Load(
        concurrency=concurrency,
        num_requests=2 * concurrency,
        input_tokens=64,
        output_tokens=128,
        vocab_size=2048,
        seed=1 + 100 * pair + concurrency,
    )


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Of the median, whatever the distribution: between two of the sorted ratios, by the sign test.

    A machine that others use too gives a few pairs of any size, which a mean would follow.
    """
    ranked = sorted(ratios)
    place = max(1, int(stats.binom.ppf((1 - SURE) / 2, len(ranked), 0.5)))
    return ranked[place - 1], ranked[-place]


def width(ratios: Sequence[float]) -> float:
    """The longer way from the median to an end of its interval."""
    low, high = interval(ratios)
    middle = statistics.median(ratios)
    return max(high / middle, middle / low) - 1
