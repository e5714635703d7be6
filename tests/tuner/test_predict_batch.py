from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import pytest

from cost_models.prediction import COVERAGE
from tuner.batch_lines import KEYS
from tuner.exit_code import Exit
from tuner.predict_batch import answers, write_answers

LINE: dict[str, Any] = {
    "id": "a",
    "model": "qwen3-235b-a22b-fp8",
    "gpu": "h200",
    "n_gpus": 8,
    "flags": {"tp-size": 8, "ep-size": 8},
    "isl": 1024,
    "osl": 512,
    "concurrency": 16,
}
TIMES = ("ttft_ms", "tpot_ms", "output_tok_s", "interval", "limit_tok_s", "kv_tokens", "max_concurrency")


def answered(*lines: dict[str, Any]) -> list[dict[str, Any]]:
    return [answer.fields for answer in answers(map(json.dumps, lines))]


def one(**changes: Any) -> dict[str, Any]:
    (told,) = answered({**LINE, **changes})
    return told


def test_a_line_is_answered_with_all_that_is_promised() -> None:
    told = one()
    assert (told["id"], told["verdict"], told["fits"]) == ("a", "legal", True)
    assert told["weight_bytes_per_gpu"] > 2**30
    assert told["kv_tokens"] > told["max_concurrency"] > 16
    assert set(told["interval"]) >= {"ttft_ms", "tpot_ms", "output_tok_s"}
    for metric in ("ttft_ms", "tpot_ms", "output_tok_s"):
        low, high = told["interval"][metric]
        assert 0 < low <= told[metric] <= high
    assert told["limit_tok_s"] > told["output_tok_s"]
    assert told["shortfall"] is None
    assert COVERAGE == 0.95


def test_throughput_is_what_the_times_make_of_the_requests() -> None:
    told = one()
    per_request_s = (told["ttft_ms"] + 511 * told["tpot_ms"]) / 1e3
    assert told["output_tok_s"] == pytest.approx(16 * 512 / per_request_s, rel=0.02)


def test_lengths_may_be_called_input_and_output_tokens() -> None:
    other = {key: value for key, value in LINE.items() if key not in {"isl", "osl"}}
    assert answered({**other, "input_tokens": 1024, "output_tokens": 512}) == [one()]
    assert one(input_tokens=1024) == one()
    assert "isl is 1024 and input_tokens 7: they are the same thing" in one(input_tokens=7)["error"]


def test_the_environment_of_a_line_or_of_its_command_chooses_the_way_of_the_all_reduces() -> None:
    switch = "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE"
    story = {"model": "kimi-k2.6", "gpu": "rtx-pro-6000", "flags": None, "argv": "--tp 8 --mem-fraction-static 0.9"}
    command = f"env {switch}=1 python -m sglang.launch_server {story['argv']}"
    plain, by_field, by_command, off = answered(
        *({**LINE, **story, **more} for more in ({}, {"env": {switch: 1}}, {"argv": command}, {"env": {switch: "0"}}))
    )
    assert [each["all_reduce"] for each in (plain, by_field, by_command, off)] == [
        "nccl",
        "pcie_ipc",
        "pcie_ipc",
        "nccl",
    ]
    assert by_field["tpot_ms"] == by_command["tpot_ms"] != plain["tpot_ms"] == off["tpot_ms"]
    assert "notes" not in by_field
    assert "NCCL_P2P_LEVEL=SYS is not taken into account" in one(env={"NCCL_P2P_LEVEL": "SYS"})["notes"][0]


def test_a_line_may_name_a_cluster_file(tmp_path: Path) -> None:
    file = tmp_path / "box.json"
    curve = {"op": "all_reduce", "backend": "nccl", "num_ranks": 8, "size_bytes": [1024, 2**20]}
    fabric = {"source": "a box", "curves": [{**curve, "seconds": [1e-3, 2e-3]}]}
    file.write_text(json.dumps({"gpu": "rtx-pro-6000", "gpus_per_node": 8, "fabric": fabric}))
    line = {**LINE, "gpu": None, "n_gpus": None, "flags": {"tp-size": 8, "ep-size": 8, "mem-fraction-static": 0.9}}
    slow, usual = answered({**line, "cluster": str(file)}, {**line, "cluster": "8xrtx-pro-6000"})
    assert slow["tpot_ms"] > 2 * usual["tpot_ms"]
    (broken,) = answered({**line, "cluster": "./none.json"})
    assert "none.json" in broken["error"]


def test_what_is_illegal_has_its_rule_and_no_time() -> None:
    told = one(flags={"tp-size": 8, "ep-size": 3})
    assert told["verdict"] == "illegal"
    assert told["violations"][0]["rule"]
    assert all(told[name] is None for name in TIMES)


@pytest.mark.parametrize(
    "change",
    [
        {"flags": None, "argv": "TP16 EP16"},
        {"flags": {"tp-size": 16, "ep-size": 16}},
        {"model": "deepseek-v3", "flags": None, "argv": "TP16"},
        {"model": "deepseek-v3", "flags": {"tp-size": 8, "pp-size": 2}},
        {"flags": {"tp-size": 8, "ep-size": 3}},
        {"flags": {"tp-size": "many"}},
    ],
)
def test_what_ends_before_memory_is_filled_neither_fits_nor_does_not(change: dict[str, Any]) -> None:
    told = one(**change)
    assert (told["verdict"], told["fits"]) == ("illegal", None)


def test_where_options_that_are_not_counted_decide_it_neither_fits_nor_does_not() -> None:
    large = {"model": "qwen3-235b-a22b", "gpu": "h100", "n_gpus": 4, "flags": None}
    plain, offloaded = answered(
        {**LINE, **large, "argv": "--tp-size 4"}, {**LINE, **large, "argv": "--tp-size 4 --cpu-offload-gb 40"}
    )
    assert (plain["verdict"], plain["fits"], plain["shortfall"] is None) == ("illegal", False, False)
    assert (offloaded["verdict"], offloaded["fits"], offloaded["shortfall"]) == ("legal", None, None)
    assert all(offloaded[name] is None for name in TIMES)
    assert "memory is not judged" in offloaded["notes"][0]
    long = {"model": "kimi-k2.6", "gpu": "rtx-pro-6000", "isl": 200_000, "osl": 2000, "flags": None}
    told = one(**long, argv="--tp-size 8 --mem-fraction-static 0.8 --cpu-offload-gb 20")
    assert (told["verdict"], told["fits"], told["shortfall"], told["tpot_ms"]) == ("legal", None, None, None)


def test_what_is_too_large_has_a_shortfall_and_no_time() -> None:
    small = {"model": "deepseek-v3", "gpu": "h100", "flags": {"tp-size": 8}}
    told, without_number = answered({**LINE, **small}, {**LINE, **small, "n_gpus": None})
    assert (told["verdict"], told["fits"]) == ("illegal", False)
    assert all(told[name] is None for name in TIMES)
    assert (without_number["verdict"], without_number["fits"]) == ("legal", False)
    assert told["shortfall"] == without_number["shortfall"]
    assert without_number["shortfall"]["bytes"] > 0
    assert without_number["shortfall"]["message"]


def test_a_request_that_the_kv_cache_cannot_hold_does_not_fit() -> None:
    told = one(
        model="kimi-k2.6", gpu="rtx-pro-6000", isl=200_000, osl=2000, flags={"tp-size": 8, "mem-fraction-static": 0.8}
    )
    assert (told["verdict"], told["fits"], told["tpot_ms"]) == ("legal", False, None)
    assert told["shortfall"]["stage"] == "KV pool sizing"


@pytest.mark.parametrize(
    "change",
    [
        {"gpu": "H200 SXM 141GB"},
        {"model": "Qwen/Qwen3-235B-A22B-FP8"},
        {"model": "Qwen/Qwen3-235B-A22B", "precision": "fp8"},
        {"gpu": None, "n_gpus": None, "cluster": "8xh200"},
        {"flags": None, "argv": "TP8 EP8"},
        {"flags": None, "argv": "--tp 8 --ep 8"},
        {"flags": None, "argv": ["--tp", "8", "--ep", "8"]},
        {"engine": "SGLang"},
        {"note": "a key of its own"},
    ],
)
def test_a_line_may_be_written_in_several_ways(change: dict[str, Any]) -> None:
    told = one(**change)
    assert told["tpot_ms"] == pytest.approx(one()["tpot_ms"], rel=1e-9), told


@pytest.mark.parametrize(
    "launch",
    [
        {"flags": {"tp-size": 8}},
        {"flags": {"tp-size": 8, "mem_fraction_static": 0.5}},
        {"flags": None, "argv": "--tp 8"},
        {"flags": None, "argv": "--tp 8 --mem-fraction-static 0.5"},
        {"flags": None, "argv": ["--tp", "8"]},
        {"flags": None, "argv": "TP8"},
    ],
)
def test_the_lines_memory_fraction_wins_over_its_launchs(launch: dict[str, Any]) -> None:
    asked = one(flags={"tp-size": 8, "mem-fraction-static": 0.7})
    assert one(**launch, mem_fraction_static=0.7)["kv_tokens"] == asked["kv_tokens"]


def test_other_engines_are_predicted_without_a_verdict() -> None:
    own, other = one(), one(engine="vllm")
    assert (other["verdict"], other["fits"], other["engine"]) == (None, True, "vllm")
    assert other["tpot_ms"] > 0
    assert other["tpot_ms"] != own["tpot_ms"]
    assert "vllm" in other["notes"][0]


def test_what_sglang_refuses_another_engine_may_run() -> None:
    odd = {"model": "qwen3-30b-a3b-fp8", "flags": {"tp-size": 8}}
    own, other = one(**odd), one(**odd, engine="trtllm")
    assert (own["verdict"], own["tpot_ms"]) == ("illegal", None)
    assert other["tpot_ms"] > 0


def test_a_line_alone_and_among_others_is_predicted_alike() -> None:
    lines = [
        {**LINE, "id": f"{tp} {ep} {c} {isl}", "flags": {"tp-size": tp, "ep-size": ep}, "concurrency": c, "isl": isl}
        for tp in (4, 8)
        for ep in (2, 4)
        for c in (1, 7, 64)
        for isl in (512, 4096)
    ]
    for line, told in zip(lines, answered(*lines), strict=True):
        (alone,) = answered(line)
        assert told["id"] == alone["id"] == line["id"]
        assert told["tpot_ms"] == pytest.approx(alone["tpot_ms"], rel=1e-9)
        assert told["ttft_ms"] == pytest.approx(alone["ttft_ms"], rel=1e-9)


def test_speculation_is_a_stated_length() -> None:
    assert one(acceptance_length=1)["tpot_ms"] == one()["tpot_ms"]
    assert "error" in one(acceptance_length=0.5)
    assert "error" in one(acceptance_length="2")


BAD = [
    ({"isl": None}, "isl is a count"),
    ({"osl": 1}, "at least 1 input token and 2 output tokens"),
    ({"isl": 1.5}, "isl is a count"),
    ({"isl": True}, "isl is a count"),
    ({"isl": 10**12}, "isl is a count"),
    ({"isl": 10**6}, "longer than"),
    ({"concurrency": 0}, "concurrency is a count"),
    ({"concurrency": 10**6}, "at most"),
    ({"engine": "ollama"}, "unknown engine"),
    ({"engine": 3}, "unknown engine"),
    ({"client": "curl"}, "unknown client"),
    ({"precision": 8}, "precision is a word"),
    ({"precision": "fp3"}, "fp3"),
    ({"mem_fraction_static": "0.9"}, "mem_fraction_static is a number"),
    ({"model": "nonsense-9b"}, "unknown model"),
    ({"gpu": "abacus"}, "unknown GPU"),
    ({"gpu": None}, "a line says gpu"),
    ({"cluster": "8xh200"}, "either gpu and n_gpus, or cluster"),
    ({"flags": None}, "either flags"),
    ({"flags": None, "argv": "vllm serve m"}, "starts vLLM"),
    ({"concurency": 3}, "did you mean concurrency"),
    ({"engine_version": "9.9.9"}, "not known"),
]


@pytest.mark.parametrize(("change", "said"), BAD)
def test_a_line_that_cannot_be_used_says_why_and_stops_no_other(change: dict[str, Any], said: str) -> None:
    found = list(answers(map(json.dumps, [LINE, {**LINE, **change}, LINE])))
    assert [answer.is_answered for answer in found] == [True, False, True]
    assert said in found[1].fields["error"]
    assert found[1].fields["error"].startswith("line 2: ")
    assert found[1].fields["id"] == "a"


@pytest.mark.parametrize("line", ["not json", "[1]", '{"id": NaN}', '{"id": 1e999}', b'{"id": "\xff"}', "{" * 100_000])
def test_what_is_no_json_object_costs_only_its_own_line(line: str | bytes) -> None:
    found = list(answers([json.dumps(LINE), line, json.dumps(LINE)]))
    assert [answer.is_answered for answer in found] == [True, False, True]


@pytest.mark.parametrize("fraction", [0.0, 1.0, 1.5, -0.1, 1e300])
def test_a_memory_fraction_that_is_none_has_no_time_and_is_json(fraction: float) -> None:
    told = one(mem_fraction_static=fraction)
    json.dumps(told, allow_nan=False)
    assert told.get("tpot_ms") is None


@pytest.mark.parametrize("changes", [{"flags": {"tp-size": 0}}, {"flags": {"tp-size": 10**9}}, {"n_gpus": 4096}])
def test_absurd_sizes_are_answered(changes: dict[str, Any]) -> None:
    told = one(**changes)
    json.dumps(told, allow_nan=False)


def test_blocks_do_not_show_in_what_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [{**LINE, "id": number, "concurrency": number + 1} for number in range(7)]
    whole = answered(*lines)
    monkeypatch.setattr("tuner.predict_batch.BLOCK", 3)
    assert answered(*lines) == whole


def test_lines_are_written_in_order_and_a_bad_one_ends_in_the_users_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = [json.dumps({**LINE, "id": "first"}), "", "{", json.dumps({**LINE, "id": "last"})]
    assert write_answers(io.StringIO("\n".join(lines))) is Exit.USER
    captured = capsys.readouterr()
    assert [json.loads(line)["id"] for line in captured.out.splitlines()] == ["first", None, "last"]
    assert "1 of 3 lines" in captured.err
    assert write_answers(io.StringIO(lines[0])) is Exit.DONE


def test_thousands_of_lines_are_answered_together() -> None:
    """A bound that only answering line by line, each judged and predicted anew, would miss."""
    lines = [
        json.dumps({**LINE, "flags": {"tp-size": 8, "ep-size": 2 ** (n % 4)}, "concurrency": n % 64 + 1})
        for n in range(2000)
    ]
    list(answers(lines[:1]))
    began = time.perf_counter()
    assert all(answer.is_answered for answer in answers(lines))
    assert time.perf_counter() - began < 10


def test_every_key_of_a_checked_line_is_a_key_here() -> None:
    for key in KEYS:
        assert "unknown key" not in one(**{key: LINE.get(key)}).get("error", "")


def test_other_engines_take_nine_tenths_of_the_memory_unless_a_line_says_otherwise() -> None:
    """vLLM 0.11.0 served this on one A100; SGLang's own fraction of 0.83 leaves too little for it."""
    line = {"model": "qwen3-32b", "gpu": "a100", "n_gpus": 1, "flags": {"tp": 1}, "isl": 32000, "osl": 100}
    (told,) = answered({**line, "concurrency": 100, "engine": "vllm"})
    assert told["fits"] is True
    (tight,) = answered({**line, "concurrency": 100, "engine": "vllm", "mem_fraction_static": 0.8})
    assert tight["fits"] is False


def test_an_engine_of_another_maker_has_versions_of_its_own() -> None:
    assert one(engine="vllm", engine_version="0.11.0")["tpot_ms"] == one(engine="vllm")["tpot_ms"]
    assert "not known" in one(engine_version="0.11.0")["error"]


def test_sixteen_gpus_on_nvlink_are_two_nodes() -> None:
    line = {"model": "deepseek-v3", "n_gpus": 16, "flags": {"tp-size": 16}}
    told = one(**line, gpu="h200")
    assert any("several nodes" in reason for reason in told["unproven"])
    # Sixteen PCIe cards do stand in one host.
    assert not any("several nodes" in reason for reason in one(**line, gpu="rtx-pro-6000")["unproven"])


@pytest.mark.parametrize("accepted", [4.5, 64])
def test_no_more_tokens_are_gained_than_verified(accepted: float) -> None:
    flags = {
        "tp-size": 8,
        "speculative-algorithm": "EAGLE",
        "speculative-num-steps": 3,
        "speculative-eagle-topk": 1,
        "speculative-num-draft-tokens": 4,
    }
    line = {"model": "deepseek-v3", "flags": flags}
    assert one(**line, acceptance_length=4)["tpot_ms"] > 0
    assert "verifies 4 tokens" in one(**line, acceptance_length=accepted)["error"]


def test_a_number_of_hundreds_of_digits_costs_its_own_line_alone() -> None:
    first, second = answered({**LINE, "acceptance_length": 10**400}, LINE)
    assert "acceptance_length" in first["error"]
    assert second["tpot_ms"] > 0
