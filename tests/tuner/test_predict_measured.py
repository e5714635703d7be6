"""What a line of `--measured` says of how it was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cost_models.calibration import Observation
from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.errors import UserError
from search_spaces.workload import Workload
from tuner.checking import Server
from tuner.predict_measured import measured_in_file

SWITCH = "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE"
KIMI = Server(model=load_model("kimi-k2.6"), cluster=parse_cluster("8xrtx-pro-6000"))
LINE: dict[str, Any] = {"argv": "TP8 mem0.9", "concurrency": 1, "tpot_ms": 38.4}


def read(tmp_path: Path, line: dict[str, Any], server: Server = KIMI) -> Observation:
    path = tmp_path / "measured.jsonl"
    path.write_text(json.dumps(line) + "\n", encoding="utf-8")
    (found,) = measured_in_file(str(path), server, Workload(concurrencies=(1, 16)))
    return found


@pytest.mark.parametrize(
    "said",
    [
        {"env": {SWITCH: "1"}},
        {"argv": f"{SWITCH}=1 python3 -m sglang.launch_server --tp-size 8 --mem-fraction-static 0.9"},
    ],
    ids=["env", "argv"],
)
def test_a_line_was_measured_in_the_environment_that_it_says(tmp_path: Path, said: dict[str, Any]) -> None:
    assert read(tmp_path, LINE | said).environment == ((SWITCH, "1"),)


def test_a_line_knows_nothing_of_the_environment_that_is_asked_about(tmp_path: Path) -> None:
    asked_about = Server(model=KIMI.model, cluster=KIMI.cluster, env={SWITCH: "1"})
    assert read(tmp_path, LINE, asked_about).environment == ()


def test_an_environment_of_another_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="line 1: env is an object"):
        read(tmp_path, LINE | {"env": [f"{SWITCH}=1"]})


def test_what_was_measured_fitted_whatever_the_memory_model_says(tmp_path: Path) -> None:
    large = Server(model=load_model("qwen3-235b-a22b"), cluster=parse_cluster("4xh100"))
    assert read(tmp_path, LINE | {"argv": "--tp-size 4 --cpu-offload-gb 40"}, large).layout.tp_size == 4
    assert read(tmp_path, LINE | {"argv": "--tp-size 4"}, large).layout.tp_size == 4


def test_a_rate_is_read_beside_the_times(tmp_path: Path) -> None:
    assert read(tmp_path, LINE | {"output_tok_s": 25}).output_tok_per_s == 25.0


@pytest.mark.parametrize("rate", [0, -1, True, "25", 1e12])
def test_a_rate_that_is_none_is_refused(tmp_path: Path, rate: Any) -> None:
    with pytest.raises(UserError, match="output_tok_s is a rate above 0"):
        read(tmp_path, LINE | {"output_tok_s": rate})


def test_a_line_without_a_time_per_token_says_what_is_missing(tmp_path: Path) -> None:
    line = {name: value for name, value in LINE.items() if name != "tpot_ms"}
    with pytest.raises(UserError, match="tpot_ms is missing: the mean time per output token"):
        read(tmp_path, line | {"output_tok_s": 25})
