from __future__ import annotations

import json
import re
from typing import Any

import pytest

from cost_models.memory_types import DoesNotFit
from cost_models.prediction import Prediction
from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.errors import MalformedError
from search_spaces.workload import Workload
from tuner.checked_launch import check_launch
from tuner.checking import Server
from tuner.launch_words import read_words
from tuner.predict_launch import PredictedLaunch, predict_launch
from tuner.predict_launch_document import document
from tuner.predict_text import report
from tuner.predict_words import bar, figure

STORY = Server(model=load_model("kimi-k2.6"), cluster=parse_cluster("8xrtx-pro-6000"))
LOAD = Workload(concurrencies=(1, 16, 128))
SECTIONS = ("legal: ", "predicted for", "memory on the fullest GPU", "all-reduce: ", "one step, in ms", "at once  TTFT")


def predicted(*words: str, server: Server = STORY, load: Workload = LOAD) -> PredictedLaunch:
    (asked,) = read_words(words)
    return predict_launch(check_launch(asked, server), load)


def told(*words: str, width: int = 150, is_plain: bool = True, **options: Any) -> str:
    lines = report(predicted(*words, **options), width, is_plain=is_plain)
    return "\n".join(map(str, lines))


def test_a_legal_launch_is_told_in_order() -> None:
    text = told("TP8", "EP8", "mem0.9")
    places = [text.index(section) for section in SECTIONS]
    assert places == sorted(places)
    for said in ("KV cache:", "requests at once", "mem fraction: 0.9", "works from", "peak: ", "how sure: a factor"):
        assert said in text
    assert "no layout of these GPUs can exceed" in text
    assert "chosen by the engine" in text


def test_every_time_has_its_interval_beside_it() -> None:
    rows = [line for line in told("TP8", "EP8", "mem0.9").split("\n") if re.match(r" +(1|16|128)  ", line)]
    assert len(rows) == 3
    for row in rows:
        assert len(re.findall(r"\([\d.,]+ to [\d.,]+\)", row)) == 4


def test_what_is_illegal_is_told_as_tune_check_does_and_without_a_time() -> None:
    text = told("--tp", "8", "--ep", "3")
    assert text.startswith("illegal")
    assert "nearest legal" in text
    for word in ("TTFT", "tok/s", "ms per token", "one step"):
        assert word not in text
    refused = predicted("--tp", "8", "--ep", "3")
    assert (refused.estimate, refused.max_concurrency) == (None, 0)
    assert document(refused)["prediction"] is None


def test_what_is_too_large_for_the_gpus_lacks_gibibytes_and_has_no_time() -> None:
    text = told("TP4", "EP2")
    assert text.startswith("illegal at weight load")
    assert "GiB too much" in text
    assert "tok/s" not in text


def test_a_request_that_the_kv_cache_cannot_hold_is_told_with_the_shortfall_and_no_time() -> None:
    load = Workload(input_tokens=200_000, output_tokens=1000, concurrencies=(1,))
    refused = predicted("--tp", "8", "--mem-fraction-static", "0.8", load=load)
    assert isinstance(refused.estimate, DoesNotFit)
    text = told("--tp", "8", "--mem-fraction-static", "0.8", load=load)
    assert "does not fit: dies at KV pool sizing" in text
    assert re.search(r"\d+\.\d GiB short", text)
    assert "TTFT" not in text
    shown = document(refused)
    assert (shown["fits"], shown["prediction"], shown["kv_tokens"]) == (False, None, None)
    assert shown["shortfall"]["bytes"] > 0
    assert shown["shortfall"]["remedy"]


def test_a_load_beyond_the_model_is_the_users_words() -> None:
    with pytest.raises(MalformedError, match="longer than"):
        predicted("TP8 mem0.9", load=Workload(input_tokens=10**7))


def test_the_document_holds_what_the_text_tells() -> None:
    shown = json.loads(json.dumps(document(predicted("TP8", "EP8", "mem0.9")), allow_nan=False))
    assert (shown["model"], shown["cluster"], shown["verdict"], shown["fits"]) == (
        "kimi-k2.6",
        "8xrtx-pro-6000",
        "legal",
        True,
    )
    inner = shown["prediction"]
    assert set(inner) == {
        "memory",
        "mem_fraction_static",
        "max_concurrency",
        "all_reduce",
        "decode_step",
        "peak_decode_step",
        "prefill",
        "points",
        "peak",
        "unproven",
        "calibration",
    }
    assert sum(inner["memory"]["parts"].values()) == inner["memory"]["total_bytes"]
    for step in ("decode_step", "peak_decode_step", "prefill"):
        assert sum(inner[step]["parts_ms"].values()) == pytest.approx(inner[step]["total_ms"])
    fractions = inner["mem_fraction_static"]
    assert fractions["smallest"] <= fractions["used"] <= fractions["largest"]
    assert [point["concurrency"] for point in inner["points"]] == [1, 16, 128]
    for point in inner["points"]:
        for metric in ("ttft_ms", "tpot_ms", "output_tok_s", "tok_s_per_user"):
            low, high = point["interval"][metric]
            assert 0 < low <= point[metric] <= high
        assert point["output_tok_s_per_gpu"] == pytest.approx(point["output_tok_s"] / 8)
        assert point["tok_s_per_user"] == pytest.approx(1e3 / point["tpot_ms"])
        assert 0 < point["share_of_limit"] < 1
    assert inner["peak"]["output_tok_s"] == max(point["output_tok_s"] for point in inner["points"])


@pytest.mark.parametrize("width", [40, 80, 100, 150])
def test_the_tables_are_no_wider_than_the_terminal(width: int) -> None:
    lines = told("TP8", "EP8", "mem0.9", width=width).split("\n")
    begin = next(place for place, line in enumerate(lines) if line.strip().startswith("at once"))
    assert all(len(line) <= width for line in lines[begin : begin + 4])


def test_nothing_but_ascii_is_drawn_where_that_is_all_there_is() -> None:
    assert told("TP8", "EP8", "mem0.9").isascii()
    assert "█" in told("TP8", "EP8", "mem0.9", is_plain=False)


def test_one_gpu_has_no_all_reduce() -> None:
    alone = Server(model=load_model("qwen3-30b-a3b-fp8"), cluster=parse_cluster("1xh200"))
    shown = predicted("TP1", server=alone)
    assert isinstance(shown.estimate, Prediction)
    assert shown.all_reduce is None
    assert document(shown)["prediction"]["all_reduce"] is None
    assert "all-reduce:" not in told("TP1", server=alone)


@pytest.mark.parametrize("name", ["8xh200", "2x8xh200", "4xb200"])
@pytest.mark.parametrize("words", ["TP4", "TP4 PP2", "TP8 ADP8", "TP2 DP2 mem0.85"])
def test_any_layout_can_be_told(words: str, name: str) -> None:
    server = Server(model=load_model("gpt-oss-120b"), cluster=parse_cluster(name))
    assert told(words, server=server)
    json.dumps(document(predicted(words, server=server)), allow_nan=False)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (0.0123, "0.012"), (0.5, "0.50"), (9.994, "9.99"), (9.999, "10.0"), (99.96, "100"), (12345.6, "12,346")],
)
def test_a_figure_has_three_digits_or_all_before_the_point(value: float, shown: str) -> None:
    assert figure(value) == shown


def test_a_bar_is_as_long_as_its_share_and_never_longer_than_all() -> None:
    assert bar(0.5, 10, is_plain=True) == "#####"
    assert bar(2.0, 4, is_plain=True) == "####"
    assert bar(-0.1, 4, is_plain=True) == bar(0, 4, is_plain=False) == ""
    assert bar(0.001, 4, is_plain=True) == "#"
    assert bar(0.001, 4, is_plain=False) == "▏"
    assert bar(0.53, 10, is_plain=False) == "█████▎"
