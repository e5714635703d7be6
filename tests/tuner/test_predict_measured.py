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
from tuner.predict_measured import MeasuredLines, measured_in_files

SWITCH = "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE"
KIMI = Server(model=load_model("kimi-k2.6"), cluster=parse_cluster("8xrtx-pro-6000"))
LINE: dict[str, Any] = {"argv": "TP8 mem0.9", "concurrency": 1, "tpot_ms": 38.4}


SMALL = Server(model=load_model("qwen3-30b-a3b-fp8"), cluster=parse_cluster("2xh100"))
FAST: dict[str, Any] = {"argv": "TP2", "concurrency": 1, "tpot_ms": 5.0}
LOAD = Workload(concurrencies=(1, 16))


def read_all(tmp_path: Path, *lines: dict[str, Any], server: Server = SMALL) -> MeasuredLines:
    path = tmp_path / "measured.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return measured_in_files([str(path)], server, LOAD)


def read(tmp_path: Path, line: dict[str, Any], server: Server = KIMI) -> Observation:
    (found,) = read_all(tmp_path, line, server=server).observations
    return found


def why_refused(tmp_path: Path, line: dict[str, Any]) -> str:
    with pytest.raises(UserError) as error:
        read(tmp_path, line, SMALL)
    return str(error.value)


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
    assert read(tmp_path, LINE | {"argv": "--tp-size 4"}, large).layout.tp_size == 4


def test_a_rate_is_read_beside_the_times(tmp_path: Path) -> None:
    assert read(tmp_path, LINE | {"output_tok_s": 25}).output_tok_per_s == 25.0


@pytest.mark.parametrize("rate", [0, -1, True, "25", 1e12, 5e-324])
def test_a_rate_that_is_none_is_refused(tmp_path: Path, rate: Any) -> None:
    with pytest.raises(UserError, match="output_tok_s is a number of tokens per second from"):
        read(tmp_path, LINE | {"output_tok_s": rate})


def test_a_line_without_a_time_per_token_says_what_is_missing(tmp_path: Path) -> None:
    line = {name: value for name, value in LINE.items() if name != "tpot_ms"}
    with pytest.raises(UserError, match="tpot_ms is missing: the mean time per output token"):
        read(tmp_path, line | {"output_tok_s": 25})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"output_tok_s": 1e8}, "no layout of 2xh100 can exceed"),
        (
            {"output_tok_s": 600},
            "more than its own times allow with 1 at once, which is 200: input tokens counted too?",
        ),
        ({"output_tok_s": 190, "ttft_ms": 900}, "more than its own times allow with 1 at once, which is 148"),
    ],
)
def test_a_rate_above_what_the_gpus_or_its_own_times_allow_is_refused(
    tmp_path: Path, more: dict[str, Any], said: str
) -> None:
    assert said in why_refused(tmp_path, FAST | more)
    assert read(tmp_path, FAST | {"output_tok_s": 205}, SMALL).output_tok_per_s == 205.0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"tpot_ms": 5e-324}, "tpot_ms is a time in ms from 0.001"),
        ({"ttft_ms": 5e-324}, "ttft_ms is a time in ms from 0.001"),
        ({"ttft_ms": 9e8}, "times what is predicted"),
        ({"ttft_ms": 0.05}, "is 1/9"),
        ({"tpot_ms": 5000}, "times what is predicted (4."),
    ],
)
def test_a_time_that_is_none_or_beyond_sense_is_refused(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    why = why_refused(tmp_path, FAST | more)
    assert why.startswith("--measured, line 1: ")
    assert said in why


def test_a_wait_of_more_than_an_hour_is_refused_though_a_long_one_is_predicted(tmp_path: Path) -> None:
    crowd = FAST | {"concurrency": 8192, "tpot_ms": 100.0}
    assert "more than an hour, and " in why_refused(tmp_path, crowd | {"ttft_ms": 2e7})
    assert read(tmp_path, crowd | {"ttft_ms": 1e6}, SMALL).ttft_s == 1000.0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"tp": 2, "argv": "--no-such-flag"}, "unrecognized arguments: --no-such-flag"),
        ({"tp": 2, "argv": None, "flags": {"moe-runner-backend": "nonsense"}}, "invalid choice: 'nonsense'"),
        ({"tp": 2, "argv": "TP1"}, "the line says tp_size 2, and its launch 1"),
        ({"tp": 2, "argv": "--tp-size 1"}, "the line says tp_size 2, and its launch 1"),
        ({"argv": "TP2", "moe_ep": 2}, "the line says ep_size 2, and its launch 1"),
        (
            {"argv": "TP2 mem0.8", "mem_fraction_static": 0.5},
            "the line says mem_fraction_static 0.5, and its launch 0.8",
        ),
        ({"argv": "--tp 2 --mem-fraction-static 0.8", "mem_fraction_static": 0.5}, "and its launch 0.8"),
        ({"argv": "TP2 --kv-cache-dtype fp8_e5m2", "kv_cache_dtype": "fp8"}, "the line says kv_cache_dtype fp8_e4m3"),
        ({"argv": "TP2", "mem_fraction_static": 1.5}, "mem_fraction_static is a share"),
        ({"argv": "TP2", "kv_cache_dtype": "fp9"}, "kv_cache_dtype is one of"),
        ({"tp": 2, "moe_ep": 3, "argv": None}, "moe_ep must divide tp"),
        ({"argv": "--tp 2 --device cpu"}, "--device cpu"),
        ({"argv": "TP2 --cpu-offload-gb 4"}, "predictions here are of servers without it"),
    ],
)
def test_a_launch_that_is_broken_or_contradicts_what_stands_beside_it_is_refused(
    tmp_path: Path, line: dict[str, Any], said: str
) -> None:
    assert said in why_refused(tmp_path, FAST | line)


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ({"argv": "TP2", "tp": 2, "moe_ep": 0}, "tp_size", 2),
        ({"argv": "TP2 EP2", "tp": 2}, "ep_size", 2),
        ({"argv": "--attention-backend triton", "tp": 2, "moe_ep": 2}, "ep_size", 2),
        ({"argv": "--attention-backend triton", "tp": 2}, "attention_backend", "triton"),
        ({"argv": "--dp-size 2 --tp-size 2 --enable-dp-attention", "attention_dp": 2}, "attn_dp_size", 2),
        ({"argv": "TP2", "mem_fraction_static": 0.5}, "mem_fraction_static", 0.5),
        ({"argv": "--tp 2", "mem_fraction_static": 0.5}, "mem_fraction_static", 0.5),
        ({"argv": None, "tp": 2, "mem_fraction_static": 0.5}, "mem_fraction_static", 0.5),
        ({"argv": None, "tp": 2, "kv_cache_dtype": "fp8"}, "kv_cache_dtype", "fp8_e4m3"),
        ({"argv": "TP2", "kv_cache_dtype": "fp8_e5m2"}, "kv_cache_dtype", "fp8_e5m2"),
    ],
)
def test_what_stands_beside_a_launch_counts_where_the_launch_leaves_it_open(
    tmp_path: Path, line: dict[str, Any], field: str, value: Any
) -> None:
    assert getattr(read(tmp_path, FAST | line, SMALL).layout, field) == value


def test_sizes_that_need_all_nodes_are_spread_over_them(tmp_path: Path) -> None:
    two = Server(model=load_model("deepseek-v3"), cluster=parse_cluster("2x8xh100"))
    line = {"tp": 16, "moe_ep": 16, "concurrency": 1, "tpot_ms": 20.0}
    assert read(tmp_path, line, two).layout.nnodes == 2


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"n_gpus": 4}, "measured on 4 GPUs, and what is asked for is 2xh100"),
        ({"engine_version": "0.5.12"}, "say --engine-version 0.5.12"),
        ({"engine_version": "0.5.6.post2"}, "say --engine-version 0.5.9"),
        ({"isl": 1024, "osl": 512, "random_range_ratio": 0.8}, "1024, 922 in the mean, and what is asked for has 1024"),
        ({"random_range_ratio": 0.8}, "isl is missing"),
    ],
)
def test_a_line_of_another_box_release_or_length_is_refused(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    assert said in why_refused(tmp_path, FAST | more)


def test_lines_that_agree_with_what_is_asked_for_are_taken(tmp_path: Path) -> None:
    said = {"n_gpus": 2, "engine_version": "0.5.23", "client": "steady", "flag": "", "layout_status": "ok"}
    drawn = {"isl": 1280, "osl": 640, "random_range_ratio": 0.6}
    for more in (said, drawn, {"engine_version": "main"}):
        assert len(read_all(tmp_path, FAST | more).observations) == 1


def test_what_a_line_sets_aside_itself_is_counted_only(tmp_path: Path) -> None:
    away = [{"flag": "stalled"}, {"flag": "stalled", "tpot_ms": 6.0}, {"layout_status": "guessed"}, {"mode": "disagg"}]
    found = read_all(tmp_path, FAST, *(FAST | more for more in away))
    assert len(found.observations) == 1
    assert found.left_out.set_aside == {
        "flagged: stalled": 2, "layout_status is guessed": 1, "prefill and decode apart": 1
    }  # fmt: skip
    assert found.left_out.told[0] == "set aside: 2 lines, flagged: stalled"


def test_the_same_line_twice_is_one_measurement_also_in_another_file(tmp_path: Path) -> None:
    for name, line in (("a", FAST), ("b", dict(reversed(FAST.items())))):
        (tmp_path / name).write_text(json.dumps(line))
    found = measured_in_files([str(tmp_path / "a"), str(tmp_path / "b")], SMALL, LOAD)
    assert len(found.observations) == found.left_out.repeated == 1
    assert "repeated: 1 line" in found.left_out.told[0]
    again = read_all(tmp_path, FAST | {"id": 1}, FAST | {"id": 2})
    assert len(again.observations) == 2


@pytest.mark.parametrize(("client", "counts"), [("steady", True), ("burst", False)])
def test_times_to_first_token_of_a_load_that_is_not_kept_up_do_not_count(
    tmp_path: Path, client: str, counts: bool
) -> None:
    found = read_all(tmp_path, FAST | {"client": client, "ttft_ms": 60.0, "output_tok_s": 150.0})
    (seen,) = found.observations
    assert (seen.ttft_s is not None) is (seen.output_tok_per_s is not None) is counts
    assert dict(found.left_out.by_client) == ({} if counts else {"burst": 1})


def test_a_name_twice_on_a_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.jsonl"
    path.write_text('{"argv": "TP2", "concurrency": 1, "tpot_ms": 5, "tpot_ms": 6}')
    with pytest.raises(UserError, match="line 1: tpot_ms stands twice"):
        measured_in_files([str(path)], SMALL, LOAD)
