"""`tune validate`: its document, its table and how it ends."""

from __future__ import annotations

import json

import pytest

from search_spaces.errors import MalformedError
from tuner.app import run
from tuner.validate_job import ValidateRequest, validated
from tuner.validate_rows import bundled_lines, bundled_rows

POINT = {
    "engine": "sglang", "engine_version": "0.5.9", "model": "Qwen/Qwen3-235B-A22B", "gpu": "H200 SXM 141GB",
    "precision": "bf16", "isl": 1000, "osl": 500, "concurrency": 16, "world_tp": 8, "tpot_ms": 20.0, "ttft_ms": 400.0,
}  # fmt: skip
METRICS = {"n", "median_ape", "mean_ape", "p90_ape", "median_error", "coverage", "interval_factor"}
LACKS_ALL = "engine, model, gpu, isl, osl, concurrency, tp and tpot_ms are missing"
PARTS = ("by_use", "by_engine", "by_gpu", "by_model", "by_campaign")


def sweep(**changes: object) -> list[str]:
    return [
        json.dumps({**POINT, "concurrency": c, "tpot_ms": t, **changes})
        for c, t in ((1, 11.0), (4, 14.0), (16, 20.0), (64, 37.0))
    ]


@pytest.fixture
def file(tmp_path):
    def write(*lines: str | bytes):
        path = tmp_path / "sweep.jsonl"
        path.write_bytes(b"\n".join(each.encode() if isinstance(each, str) else each for each in lines))
        return str(path)

    return write


def document(capsys, *words: str) -> dict:
    assert run(["validate", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_document_has_every_figure_overall_and_by_part(capsys, file):
    found = document(capsys, file(*sweep(), *sweep(world_tp=4), *sweep(engine="vllm", gpu="B200"), json.dumps({})))
    assert found["stated_coverage"] == 95
    assert {name: len(found[name]) for name in PARTS} == {
        "by_use": 0, "by_engine": 2, "by_gpu": 2, "by_model": 1, "by_campaign": 2,
    }  # fmt: skip
    parts = [found["overall"], *(part for name in PARTS for part in found[name].values())]
    for part in parts:
        assert {"n", "skipped", "coverage", "interval_factor", "within_layout_spearman", "rule_disagrees"} <= set(part)
        assert all(set(part[metric]) == METRICS for metric in ("tpot", "ttft", "output_tok_s"))
        for between in (part["between_layouts"], part["between_layouts_tpot"]):
            choice = {"order_accuracy", "regret_mean", "regret_max"}
            assert {"groups", "pairs", *choice} <= set(between)
            assert set(between["trivial_rule"]) == choice
    assert found["overall"]["n"] == 12
    assert found["overall"]["skipped"] == {"missing or bad value": 1}
    assert found["skipped_lines"] == [{"line": 13, "reason": "missing or bad value", "message": LACKS_ALL}]
    assert found["by_engine"]["sglang"]["n"] == 8
    assert found["by_gpu"]["B200"]["n"] == 4
    assert found["overall"]["within_layout_spearman"] == 1
    assert found["overall"]["between_layouts"]["groups"] == 4


def test_a_prediction_twice_the_measurement_is_an_error_of_a_hundred_percent(capsys, file):
    name = file(*sweep())
    errors = document(capsys, name)["overall"]["tpot"]
    twice = [
        json.dumps(json.loads(line) | {"tpot_ms": json.loads(line)["tpot_ms"] / 2, "ttft_ms": None}) for line in sweep()
    ]
    halved = document(capsys, file(*twice))["overall"]
    assert halved["tpot"]["median_error"] == pytest.approx(2 * (100 + errors["median_error"]) - 100, abs=0.01)
    assert (halved["ttft"], halved["output_tok_s"]) == (None, None)


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["--engine", "vLLM"], 1),
        (["--moe-only"], 3),
        (["--max-tp", "4"], 3),
        (["--engine", "sglang", "--moe-only", "--max-tp", "4"], 1),
        ([], 4),
    ],
)
def test_filters_leave_lines_out_without_calling_them_skipped(capsys, file, words, left):
    name = file(
        json.dumps(POINT),
        json.dumps({**POINT, "world_tp": 4}),
        json.dumps({**POINT, "engine": "vllm", "world_tp": 4}),
        json.dumps({**POINT, "model": "Qwen/Qwen3-32B", "world_tp": 2}),
    )
    found = document(capsys, name, *words)
    assert (found["overall"]["n"], found["left_out_by_filters"], found["overall"]["skipped"]) == (left, 4 - left, {})


def test_flagged_lines_count_by_their_flag_unless_they_are_asked_for(capsys, file):
    name = file(json.dumps(POINT), json.dumps({**POINT, "flag": "stalled"}))
    assert document(capsys, name)["overall"]["skipped"] == {"flagged: stalled": 1}
    assert document(capsys, name, "--with-flagged")["overall"]["n"] == 2


def test_a_layout_that_the_rules_forbid_is_predicted_and_counted(capsys, file):
    found = document(capsys, file(json.dumps({**POINT, "world_tp": 6, "moe_ep": 6}), json.dumps(POINT)))
    assert (found["overall"]["n"], found["overall"]["rule_disagrees"]) == (2, 1)


def test_a_model_that_cannot_fit_is_skipped_with_the_memory_models_word(capsys, file):
    found = document(capsys, file(json.dumps({**POINT, "world_tp": 1}), json.dumps(POINT)))
    assert found["overall"]["skipped"] == {"does not fit, says the memory model": 1}


def test_two_points_of_each_curve_fix_its_factor(capsys, file):
    slow = [json.dumps(json.loads(line) | {"tpot_ms": 1.7 * json.loads(line)["tpot_ms"]}) for line in sweep()]
    name = file(*slow, json.dumps({**POINT, "world_tp": 4}))
    before, after = document(capsys, name), document(capsys, name, "--calibrate", "2")
    assert after["overall"]["n"] == 2
    assert after["overall"]["skipped"] == {"used to calibrate": 2, "too few points to calibrate with": 1}
    assert after["overall"]["tpot"]["median_ape"] < before["overall"]["tpot"]["median_ape"] / 3
    assert after["overall"]["interval_factor"] < before["overall"]["interval_factor"]


def test_a_point_that_is_left_out_is_predicted_by_constants_that_never_saw_it(capsys, file):
    name = file(*sweep())
    as_they_come, left_out = document(capsys, name), document(capsys, name, "--leave-one-out")
    assert left_out["overall"]["n"] == 4
    assert left_out["overall"]["tpot"] != as_they_come["overall"]["tpot"]


def alone(**changes: object) -> str:
    kept = {name: value for name, value in POINT.items() if name not in {"tpot_ms", "ttft_ms"}}
    return json.dumps({**kept, "output_tok_s": 600.0, **changes})


def test_a_throughput_alone_is_a_part_of_its_own(capsys, file):
    found = document(capsys, file(*sweep(), alone(), alone(world_tp=4, output_tok_s=500.0)))
    part = found["by_use"]["sglang, throughput alone"]
    assert (part["n"], part["tpot"], part["ttft"], part["output_tok_s"]["n"]) == (2, None, None, 2)
    assert part["between_layouts"]["pairs"] == 1
    assert (found["overall"]["tpot"]["n"], found["overall"]["output_tok_s"]["n"]) == (4, 6)


def test_a_throughput_alone_has_a_table_of_its_own(capsys, file):
    assert run(["validate", file(*sweep(), *sweep(gpu="H100"), alone(gpu="B200")), "--by", "campaign"]) == 0
    shown = capsys.readouterr().out
    table = shown[shown.index("by campaign: throughput alone") :].splitlines()
    assert "tok/s median mean" in table[0]
    assert table[1].startswith("Qwen3-235B-A22B B200 bf16 sglang 0.5.9")
    assert run(["validate", file(alone())]) == 0
    assert "\nthroughput alone  n  tok/s median mean" in capsys.readouterr().out


def test_a_throughput_alone_calibrates_nothing_but_is_compared_where_others_do(capsys, file):
    name = file(*sweep(), alone(concurrency=128), alone(world_tp=4), alone(world_tp=4, concurrency=64))
    found = document(capsys, name, "--calibrate", "2")["overall"]
    assert (found["n"], found["tpot"]["n"], found["output_tok_s"]["n"]) == (3, 2, 3)
    assert found["skipped"] == {"used to calibrate": 2, "too few points to calibrate with": 2}


def test_a_throughput_alone_is_left_out_as_well(capsys, file):
    found = document(capsys, file(alone()), "--leave-one-out")["overall"]
    assert found["n"] == 1
    assert found["output_tok_s"] != document(capsys, file(alone()))["overall"]["output_tok_s"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no line of it can be compared: it has none"),
        (b"\n \n", "it has none"),
        (b"\xef\xbb\xbf", "line 1: unreadable line"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "line 1: unreadable line"),
        (
            b'{"engine": "sglang"}',
            "line 1: missing or bad value: model, gpu, isl, osl, concurrency, tp and tpot_ms are",
        ),
        (
            b'{"flags": {"tp-size": 8}, "concurrency": 1, "tpot_ms": 9.0}',
            "are missing: a line for `tune predict --measured`",
        ),
        ((json.dumps(POINT) + "\n").encode("utf-16"), "sweep.jsonl looks like UTF-16: save it as UTF-8"),
        ((json.dumps(POINT) + "\n").encode("utf-16-le"), "sweep.jsonl looks like UTF-16: save it as UTF-8"),
        (json.dumps({**POINT, "gpu": "TPU"}).encode(), "unknown GPU"),
    ],
)
def test_a_file_without_a_point_is_an_error_that_says_why(capsys, file, content, message):
    assert run(["validate", file(content)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.jsonl"], "nowhere.jsonl cannot be read: No such file or directory"),
        (["."], "cannot be read: Is a directory"),
        ([""], "FILE is a file of JSON lines"),
        (["--engine", "lmdeploy"], "unknown engine 'lmdeploy'. Known: sglang, vllm, trtllm"),
        (["--leave-one-out", "--calibrate", "2"], "name one of them"),
        (["--max-tp", "0"], "max-tp"),
        (["--by", "rack"], "unknown part 'rack'. Known: campaign, gpu, model"),
        (["--engine", "vllm", "--max-tp", "1", "--moe-only", "--calibrate", "64"], "can be compared"),
    ],
)
def test_words_that_cannot_be_used_end_with_one_line(capsys, words, message):
    assert run(["validate", *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1


def test_an_error_is_a_document_too(capsys):
    assert run(["validate", "nowhere.jsonl", "--json"]) == 2
    assert "cannot be read" in json.loads(capsys.readouterr().out)["error"]


def test_people_get_tables_that_fit_and_reasons(capsys, file):
    name = file(*sweep(), *sweep(world_tp=4), "not json", json.dumps({**POINT, "world_tp": 6, "moe_ep": 6}))
    assert run(["validate", name, "--by", "gpu", "--by", "campaign"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("9 measured points of ")
    assert "layouts of one campaign" in shown
    assert "fewer GPUs, TP before EP and PP" in shown
    assert "of layouts that the rules here forbid: 1 point\n" in shown
    assert "unreadable line (line 9: not JSON" in shown
    assert max(map(len, shown.splitlines())) <= 150


def test_words_that_no_release_has_are_told_with_what_they_are_read_as(capsys, file):
    own = [*sweep(engine_version="main"), json.dumps({**POINT, "engine_version": "99.99"})]
    named = file(*own, *sweep(gpu="B200"), *sweep(engine="vllm", engine_version="main"))
    assert run(["validate", named]) == 0
    said = "\n5 lines name a release that is not known: main read as 0.5.9, 99.99 read as 0.5.23\n"
    assert said in capsys.readouterr().out
    assert document(capsys, named)["unknown_releases"] == [
        {"engine_version": "main", "read_as": "0.5.9", "n": 4},
        {"engine_version": "99.99", "read_as": "0.5.23", "n": 1},
    ]
    assert run(["validate", file(*sweep())]) == 0
    assert "release that is not known" not in capsys.readouterr().out


def test_intervals_of_a_release_that_is_not_known_are_wider(capsys, file):
    known, guessed = (document(capsys, file(*sweep(engine_version=word))) for word in ("0.5.9", "main"))
    assert guessed["overall"]["tpot"]["median_ape"] == known["overall"]["tpot"]["median_ape"]
    assert guessed["overall"]["interval_factor"] > known["overall"]["interval_factor"]


def test_no_value_that_is_read_and_no_word_of_the_file_makes_a_table_wide(capsys, file):
    extremes = [
        json.dumps({**POINT, "tpot_ms": tpot, "ttft_ms": ttft, "output_tok_s": rate, "concurrency": c})
        for c, (tpot, ttft, rate) in enumerate([(1e-3, 1e-3, 1e-3), (1e9, 1e9, 1e9), (20.0, 400.0, None)], start=1)
    ]
    for version in ("x" * 10_000, "main \n\u001b[31m\r" * 500, "release " * 1000):
        words = {"engine_version": version, "flag": version}
        name = file(
            *extremes, *sweep(**words), *sweep(gpu="B200", engine_version=version), "{}", *sweep(engine=version)
        )
        assert run(["validate", name, "--by", "campaign", "--by", "gpu"]) == 0
        shown = capsys.readouterr().out
        assert max(map(len, shown.splitlines())) <= 260
        assert "\x1b" not in shown
        table = shown[shown.index("by gpu") : shown.index("lines not compared")].splitlines()
        assert all(len(word) <= 9 for row in table if row.startswith(("H200", "B200")) for word in row.split())


def test_how_a_line_was_measured_decides_its_time_to_first_token(file):
    """docs/validate.md: without `source` and `client`, the sweeps that come with the tool are taken for closed loops."""
    told = [json.loads(line) for line in bundled_lines()]
    untold = [{name: value for name, value in line.items() if name not in {"source", "client"}} for line in told]
    both = [validated(ValidateRequest(file=file(*map(json.dumps, lines)), engine="sglang")) for lines in (told, untold)]
    known, unknown = (each.overall.ttft for each in both)
    assert known is not None
    assert unknown is not None
    assert known.n == unknown.n
    assert unknown.median_ape > 1.5 * known.median_ape
    assert unknown.median_error < -40 < known.median_error


def test_without_a_file_the_bundled_sweeps_are_compared():
    found = validated(ValidateRequest())
    assert found.overall.n > 600
    assert set(found.by_engine) == {"sglang", "vllm", "trtllm"}
    assert "sglang, held out" in found.by_use


def test_points_held_out_are_told_to_be_of_pairs_that_were_fitted(capsys, file):
    """Constants saw the same model on the same GPU at other points; another GPU is new to them."""
    rows = bundled_rows()
    pairs = {row.pair for row in rows if row.used_for_fitting}
    new = [row for row in rows if row.tpot_s is not None and not row.used_for_fitting]
    found = validated(ValidateRequest()).held_out
    assert found is not None
    assert (found.n, found.of_fitted_pairs) == (len(new), sum(row.pair in pairs for row in new))
    assert found.of_fitted_pairs > 0.8 * found.n

    seen = sweep(used_for_fitting=True)
    name = file(*seen, *sweep(world_tp=4), *sweep(gpu="B200"))
    assert document(capsys, name)["held_out"] == {"n": 8, "of_fitted_pairs": 4}
    assert run(["validate", name]) == 0
    said = "held out: 4 of 8 are other points of pairs of model and GPU that were fitted; for new pairs see --leave-one-out"
    assert said in capsys.readouterr().out
    assert run(["validate", file(*seen, *sweep(world_tp=4))]) == 0
    assert "held out: other points of pairs" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("--leave-one-out",), ("--calibrate", "2")])
def test_nothing_is_said_of_pairs_where_the_constants_are_others(capsys, file, words):
    name = file(*sweep(used_for_fitting=True), *sweep(world_tp=4))
    assert document(capsys, name, *words)["held_out"] is None
    assert document(capsys, file(*sweep()))["held_out"] is None


def test_a_point_can_be_asked_for_from_python_too(file):
    with pytest.raises(MalformedError, match="no line of it can be compared"):
        validated(ValidateRequest(file=file("{}")))
