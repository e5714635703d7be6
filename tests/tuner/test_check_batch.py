from __future__ import annotations

import io
import json
import time
from typing import Any

import pytest

from search_spaces.sglang.versions import EngineVersion
from tuner.check_batch import answers, write_answers
from tuner.exit_code import Exit

LINE: dict[str, Any] = {"id": "a", "model": "deepseek-v3", "gpu": "h200", "n_gpus": 8, "flags": {"tp-size": 8}}


def answered(*lines: dict[str, Any]) -> list[dict[str, Any]]:
    return [answer.fields for answer in answers(map(json.dumps, lines))]


def test_a_line_is_answered_with_its_id_and_verdict() -> None:
    (told,) = answered(LINE)
    assert (told["id"], told["verdict"], told["fits"]) == ("a", "legal", True)
    assert told["effective"]["moe_tp_size"] == 8


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"name": "deepseek-v3", "arch": "DeepseekV3ForCausalLM"}},
        {"model": "deepseek-ai/DeepSeek-V3"},
        {"gpu": "H200_SXM"},
        {"flags": None, "argv": "--tp-size 8"},
        {"flags": {"tp": 8, "trust-remote-code": True, "enable-mixed-chunk": False}},
        {"env": {"SGLANG_X": 1}},
        {"n_gpus": None},
        {"unknown key": 3},
    ],
)
def test_a_line_may_be_written_in_several_ways(change: dict[str, Any]) -> None:
    (told,) = answered({**LINE, **change})
    assert told["verdict"] == "legal", told


def test_the_environment_decides_capacities() -> None:
    deepep = {
        **LINE,
        "flags": {"tp-size": 8, "attn-dp-size": 8, "moe-a2a-backend": "deepep", "mem-fraction-static": 0.9},
    }
    wide = {**deepep, "env": {"SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK": "1024"}}
    refused, accepted = answered(deepep, wide)
    assert (refused["verdict"], accepted["verdict"]) == ("illegal", "adjusted")
    assert refused["argument_stages"] == "adjusted"


def test_each_line_may_name_its_version() -> None:
    old, new = answered(
        {**LINE, "flags": {"tp-size": 2, "ep-size": 4}, "engine_version": "0.5.20"},
        {**LINE, "flags": {"tp-size": 2, "ep-size": 4}},
    )
    assert old["violations"][0]["exception"] != new["violations"][0]["exception"]
    assert old["engine_version"] == "0.5.20"


def test_without_a_number_of_gpus_what_is_too_large_is_told_by_fits_alone() -> None:
    small = {**LINE, "gpu": "h100"}
    with_number, without = answered(small, {**small, "n_gpus": None})
    assert (with_number["verdict"], with_number["fits"]) == ("illegal", False)
    assert (without["verdict"], without["fits"], without["violations"]) == ("legal", False, [])


BAD = [
    ("not json", "not JSON"),
    ("[1]", "not a JSON object"),
    (json.dumps({**LINE, "model": "nonsense-9b"}), "unknown model"),
    (json.dumps({**LINE, "gpu": "abacus"}), "unknown GPU"),
    (json.dumps({**LINE, "argv": "--tp 8"}), "either flags"),
    (json.dumps({**LINE, "flags": None}), "either flags"),
    (json.dumps({**LINE, "n_gpus": "eight"}), "n_gpus"),
    (json.dumps({**LINE, "engine_version": "9.9.9"}), "not known"),
    (json.dumps({**LINE, "env": "A=1"}), "env"),
    (json.dumps({**LINE, "flags": None, "argv": "'"}), "shell words"),
]


@pytest.mark.parametrize(("line", "said"), BAD)
def test_a_line_that_cannot_be_used_says_why_and_stops_no_other(line: str, said: str) -> None:
    found = list(answers([json.dumps(LINE), line, json.dumps(LINE)]))
    assert [answer.is_answered for answer in found] == [True, False, True]
    assert said in found[1].fields["error"]
    assert found[1].fields["error"].startswith("line 2: ")


def test_flags_that_the_engine_cannot_read_are_a_verdict_and_no_error() -> None:
    (told,) = answered({**LINE, "argv": "--pp 2", "flags": None})
    assert (told["verdict"], told["stage"]) == ("illegal", "argument parsing")


def test_lines_are_written_in_order_and_a_bad_one_ends_in_the_users_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = [json.dumps({**LINE, "id": "first"}), "", "{", json.dumps({**LINE, "id": "last"})]
    assert write_answers(io.StringIO("\n".join(lines))) is Exit.USER
    captured = capsys.readouterr()
    told = [json.loads(line) for line in captured.out.splitlines()]
    assert [line["id"] for line in told] == ["first", None, "last"]
    assert "1 of 3 lines" in captured.err
    assert write_answers(io.StringIO(lines[0])) is Exit.DONE


def test_hundreds_of_lines_are_answered_in_a_second() -> None:
    refused = [
        {**LINE, "flags": {"tp-size": 8, "ep-size": size % 7 + 1, "attn-dp-size": size % 3}} for size in range(200)
    ]
    list(answers([json.dumps(LINE)], EngineVersion(0, 5, 23)))
    began = time.perf_counter()
    answered(*refused)
    assert time.perf_counter() - began < 5
