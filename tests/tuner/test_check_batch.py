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
        {"flags": None, "argv": "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8"},
        {"flags": None, "model": None, "argv": "sglang serve deepseek-ai/DeepSeek-V3 --tp 8"},
        {"flags": None, "argv": "TP8 EP8"},
        {"gpu": None, "n_gpus": None, "cluster": "8xh200"},
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


def test_a_line_is_judged_for_the_gpus_that_its_server_may_see() -> None:
    (told,) = answered({**LINE, "env": {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}})
    assert told["violations"][0]["rule"] == "cluster.too_small"


def test_a_cluster_is_all_there_is() -> None:
    (told,) = answered({**LINE, "gpu": None, "n_gpus": None, "cluster": "8xh100"})
    assert (told["verdict"], told["fits"]) == ("illegal", False)


def test_a_stray_word_before_flags_is_what_the_engine_makes_of_it() -> None:
    (told,) = answered({**LINE, "flags": None, "argv": "word --tp 8"})
    assert told["violations"][0]["rule"] == "flag.unknown"


BAD = [
    (json.dumps({**LINE, "cluster": "8xh200"}), "either gpu and n_gpus, or cluster"),
    (json.dumps({**LINE, "gpu": None}), "a line says gpu"),
    (json.dumps({**LINE, "flags": None, "argv": "vllm serve m"}), "starts vLLM"),
    (json.dumps({**LINE, "env": {"CUDA_VISIBLE_DEVICES": ""}}), "no GPU"),
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


@pytest.mark.parametrize(
    ("num_gpus", "argv", "room"),
    [
        (7, "--tp 8 --nnodes 2", "2 nodes of 3 GPUs"),
        (1, "--tp 4 --nnodes 4", "1 GPUs"),
        (13, "--tp 16 --nnodes 4", "4 nodes of 3 GPUs"),
        (15, "--tp 16 --nnodes 2", "2 nodes of 7 GPUs"),
    ],
)
def test_gpus_that_are_left_over_make_no_node_larger(num_gpus: int, argv: str, room: str) -> None:
    (told,) = answered({**LINE, "flags": None, "argv": argv, "n_gpus": num_gpus})
    found = {broken["rule"]: broken["message"] for broken in told["violations"]}
    assert found["cluster.too_small"].endswith(f"do not fit {room}")


def test_as_many_gpus_on_each_node_as_the_launch_needs_have_room_for_it() -> None:
    (told,) = answered({**LINE, "flags": None, "argv": "--tp 16 --nnodes 2", "n_gpus": 17})
    assert told["verdict"] == "legal"


@pytest.mark.parametrize("num_gpus", [0, -1, 8.0, True, 5000, 10**30])
def test_a_number_of_gpus_that_is_none_is_an_error(num_gpus: Any) -> None:
    (told,) = answered({**LINE, "n_gpus": num_gpus})
    assert "n_gpus is a count from 1 to 4096" in told["error"]


@pytest.mark.parametrize("flags", [{"dp-size": 5000}, {"tp-size": 10**9}, {"pp-size": 10**6}, {"nnodes": 10**5}])
def test_a_launch_larger_than_any_says_so_where_nothing_is_said_of_the_gpus(flags: dict[str, Any]) -> None:
    alone, on_eight = answered({**LINE, "n_gpus": None, "flags": flags}, {**LINE, "flags": flags})
    assert "no launch is taken to have more than 4096" in alone["error"]
    assert "cluster.too_small" in {broken["rule"] for broken in on_eight["violations"]}


@pytest.mark.parametrize("word", ["nan", "inf", "-inf", "1e308"])
@pytest.mark.parametrize("flag", ["mem-fraction-static", "schedule-conservativeness"])
def test_an_answer_is_json_whatever_number_was_asked_for(flag: str, word: str) -> None:
    (told,) = answered({**LINE, "flags": {"tp-size": 8, flag: word}})
    json.dumps(told, allow_nan=False)
    assert told["verdict"] == (
        "legal" if (flag, word[0]) in {("schedule-conservativeness", c) for c in "i1"} else "illegal"
    )


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_what_is_no_number_of_json_is_an_error(word: str) -> None:
    (told,) = answers([f'{{"id": {word}}}'])
    assert "not JSON" in told.fields["error"]


def test_bytes_that_are_no_text_cost_only_their_own_line() -> None:
    line = json.dumps({**LINE, "id": "\u00e9"}, ensure_ascii=False).encode()
    told = [answer.fields for answer in answers([b"\xef\xbb\xbf" + line, b'{"id": "\xff"}', line])]
    assert [each["id"] for each in told] == ["\u00e9", None, "\u00e9"]
    assert "not UTF-8" in told[1]["error"]


def test_a_switch_may_have_its_value_as_a_string() -> None:
    flags = {"tp-size": 8, "dp-size": 8}
    on, off, plain = answered(
        {**LINE, "flags": {**flags, "enable-dp-attention": "true"}},
        {**LINE, "flags": {"tp-size": 8, "enable-dp-attention": "False"}},
        LINE,
    )
    assert on["effective"]["attn_dp_size"] == 8
    assert (off["verdict"], off["effective"]) == (plain["verdict"], plain["effective"])


@pytest.mark.parametrize(
    ("key", "meant"), [("ngpus", "n_gpus"), ("flag", "flags"), ("Model", "model"), ("envs", "env")]
)
def test_a_misspelled_key_is_an_error_with_the_nearest(key: str, meant: str) -> None:
    (told,) = answered({**LINE, key: 4})
    assert told["id"] == "a"
    assert f"unknown key {key!r}; did you mean {meant}?" in told["error"]


def test_a_line_may_carry_keys_of_its_own() -> None:
    (told,) = answered({**LINE, "note": "seen", "rule": "x"})
    assert told["verdict"] == "legal"


def test_a_line_whose_launch_names_another_model_says_which_is_judged() -> None:
    line = {**LINE, "flags": None, "argv": "--model-path Qwen/Qwen3-30B-A3B --tp 8"}
    (told,) = answered(line)
    assert told["notes"] == [
        "the launch names Qwen/Qwen3-30B-A3B; it is judged for deepseek-v3, as the line's model says"
    ]
    (same,) = answered({**line, "argv": "--model-path deepseek-ai/DeepSeek-V3 --tp 8"})
    assert "notes" not in same


def test_no_gpus_is_a_right_count_for_a_launch_that_asks_for_none() -> None:
    (told,) = answered({**LINE, "flags": {"tp-size": 0}, "n_gpus": 0})
    assert told["verdict"] == "illegal"
    assert told["violations"][0]["rule"] == "size.positive"
