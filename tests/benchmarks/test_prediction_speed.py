"""How fast layouts are predicted, printed beside a peer on the same machine in the same run (`pytest -s`).

Absolute figures are printed and never asserted. The peer is aiconfigurator 0.12.0 in an environment of its own, whose
Python is named by LAYOUT_TUNE_PEER_PYTHON.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cost_models.estimate import predict_all, surface
from cost_models.memory import fit
from cost_models.memory_types import Memory
from cost_models.setting import Setting
from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.sglang.versions import NEWEST
from search_spaces.space import enumerate_space
from search_spaces.workload import Workload

PEER = "LAYOUT_TUNE_PEER_PYTHON"
MODEL, CLUSTER, PEERS_MODEL, PEERS_SYSTEM = "qwen3-235b-a22b-fp8", "8xh200", "Qwen/Qwen3-235B-A22B-FP8", "h200_sxm"
LADDERS = {"many concurrencies": tuple(range(1, 257, 4)), "those of the product": Workload().concurrencies}
TRIES = 3


def best_s(action: Callable[[], object]) -> float:
    def once() -> float:
        began = time.perf_counter()
        action()
        return time.perf_counter() - began

    return min(once() for _ in range(TRIES))


def cold_start_s(caches: Path) -> float:
    """`tune predict` for the whole space, from a new process to its last line, compiled once as an installation is."""
    command = [sys.executable, "-m", "tuner", "predict", "--model", MODEL, "--cluster", CLUSTER]
    own = {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONPYCACHEPREFIX": str(caches)}
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return best_s(lambda: subprocess.run(command, env={**usual, **own}, check=True, capture_output=True))


@contextmanager
def on_one_core() -> Iterator[None]:
    """As far as the system lets one choose."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@pytest.mark.parametrize("ladder", LADDERS.values(), ids=LADDERS)
def test_how_many_predictions_a_second_one_core_makes_over_a_whole_space(ladder: tuple[int, ...]) -> None:
    model, cluster = load_model(MODEL), parse_cluster(CLUSTER)
    load, setting = Workload(concurrencies=ladder), Setting(version=NEWEST)
    layouts = [candidate.effective for candidate in enumerate_space(model, cluster, NEWEST).candidates]
    judged = [(layout, fit(model, cluster, layout, load)) for layout in layouts]
    fitting = [(layout, held) for layout, held in judged if isinstance(held, Memory)]
    num = len(fitting) * len(ladder)
    with on_one_core():
        arrays_s = best_s(lambda: surface(model, cluster, fitting, load, setting=setting))
        values_s = best_s(lambda: predict_all(model, cluster, layouts, load, setting=setting))
    print(  # noqa: T201
        f"\n{len(fitting)} layouts x {len(ladder)} concurrencies on one core: {num / arrays_s:,.0f} predictions/s as "
        f"arrays, {num / values_s:,.0f} with memory, limits and every value with its interval"
    )
    assert len(fitting) > 100


def test_a_whole_space_is_predicted_sooner_than_by_the_peer(tmp_path: Path) -> None:
    own_s = cold_start_s(tmp_path)
    print(f"\ntune predict --model {MODEL} --cluster {CLUSTER}: {own_s:.2f} s from a cold start")  # noqa: T201
    peer = os.environ.get(PEER)
    if peer is None:
        pytest.skip(f"set {PEER} to the Python of an environment with aiconfigurator 0.12.0 to compare with it")
    lengths = ("--isl", "1024", "--osl", "512", "--ttft", "100000", "--tpot", "1000")
    command = [Path(peer).parent / "aiconfigurator", "cli", "default", "--model-path", PEERS_MODEL]
    command += ["--total-gpus", "8", "--system", PEERS_SYSTEM, "--backend", "sglang", "--serving-mode", "agg", *lengths]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    peer_s = time.perf_counter() - began
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.search(r"Top Configurations", done.stdout)
    ratio = peer_s / own_s
    print(f"aiconfigurator for the same model, GPUs and lengths: {peer_s:.2f} s, {ratio:.1f} times as long")  # noqa: T201
    assert own_s < peer_s
