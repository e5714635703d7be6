from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from cost_models.memory_types import DoesNotFit
from cost_models.prediction import Prediction
from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.errors import MalformedError
from search_spaces.hardware import CollectiveOp, Fabric, MeasuredCurve
from search_spaces.sglang.all_reduce import AllReducePath
from search_spaces.workload import Workload
from tuner import check_text
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


def predicted(
    *words: str, server: Server = STORY, load: Workload = LOAD, asked: tuple[int, ...] = ()
) -> PredictedLaunch:
    (launch,) = read_words(words)
    served = replace(server, env={**server.env, **launch.env})
    return predict_launch(check_launch(launch, served), load, asked=asked)


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


PCIE_IPC = "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1"
LAUNCH = "python -m sglang.launch_server --tp 8 --mem-fraction-static 0.9"


@pytest.mark.parametrize(
    "words",
    [
        (f"{PCIE_IPC} {LAUNCH}",),
        (f"env {PCIE_IPC} {LAUNCH}",),
        (f"export {PCIE_IPC}\n{LAUNCH}",),
        (f"docker run --gpus all -e {PCIE_IPC} lmsysorg/sglang:v0.5.23 {LAUNCH}",),
        (f"docker run --env={PCIE_IPC} lmsysorg/sglang:v0.5.23 bash -c '{LAUNCH}'",),
        (f"[Service]\nEnvironment={PCIE_IPC}\nExecStart=/usr/bin/{LAUNCH}\n",),
        (PCIE_IPC, "--tp", "8", "--mem-fraction-static", "0.9"),
        (PCIE_IPC, *LAUNCH.split()),
    ],
)
def test_the_environment_of_a_launch_chooses_the_way_of_its_all_reduces(words: tuple[str, ...]) -> None:
    plain, switched = predicted(LAUNCH), predicted(*words)
    assert isinstance(plain.estimate, Prediction)
    assert isinstance(switched.estimate, Prediction)
    assert (plain.estimate.all_reduce, switched.estimate.all_reduce) == (AllReducePath.NCCL, AllReducePath.PCIE_IPC)
    assert switched.all_reduce is not None
    assert switched.all_reduce.path is AllReducePath.PCIE_IPC
    assert switched.estimate.points[0].tpot_s != plain.estimate.points[0].tpot_s


def test_switches_that_no_prediction_heeds_are_said() -> None:
    words = "NCCL_P2P_LEVEL=SYS", "HOME=/root", "TP8", "mem0.9"
    text = told(*words)
    assert "NCCL_P2P_LEVEL=SYS is not taken into account" in text
    assert "HOME" not in text
    assert len(document(predicted(*words))["prediction"]["all_reduce"]["not_heeded"]) == 1


def test_a_tight_launch_is_legal_and_its_headline_says_what_may_happen() -> None:
    text = told("TP8", "mem0.95")
    headline, advice, *_ = text.split("\n")
    assert headline.startswith("legal, but likely to run out of memory while graphs are captured: --tp-size 8")
    most = predicted("TP8", "mem0.95").fractions.largest
    assert most is not None
    assert advice.startswith(f"note: lower --mem-fraction-static to at most {most:.3f}: ")
    assert told("TP8", f"mem{most}").startswith("legal: ")
    (asked,) = read_words(("TP8", "mem0.95"))
    checked = check_launch(asked, STORY)
    assert not checked.checked.verdict.violations
    assert str(check_text.report(checked)[0]) == headline


@pytest.mark.parametrize("words", [("TP8", "EP8"), ("TP8", "EP8", "mem0.98")])
def test_where_the_fraction_alone_is_wrong_one_that_works_is_a_command(words: tuple[str, ...]) -> None:
    refused = predicted(*words)
    assert refused.estimate is None
    assert refused.works_as is not None
    command = "--tp-size 8 --ep-size 8 --mem-fraction-static 0.9"
    lines = told(*words).split("\n")
    assert lines[1:3] == ["it works with --mem-fraction-static 0.9", f"  {command}"]
    assert document(refused)["works_as"] == command
    assert isinstance(predicted(*command.split()).estimate, Prediction)


def test_a_load_that_needs_a_larger_pool_gets_a_fraction_that_holds_it() -> None:
    load = Workload(input_tokens=60_000, output_tokens=1000, concurrencies=(1,))
    refused = predicted("TP8", "mem0.78", load=load)
    assert isinstance(refused.estimate, DoesNotFit)
    assert refused.works_as is not None
    assert isinstance(predicted("TP8", f"mem{refused.works_as.mem_fraction_static}", load=load).estimate, Prediction)


def test_what_fits_no_fraction_of_these_gpus_names_how_many_it_needs() -> None:
    refused = predicted("TP4", server=Server(model=STORY.model, cluster=parse_cluster("4xrtx-pro-6000")))
    assert refused.works_as is None
    assert "needs at least 8 of these GPUs where 4xrtx-pro-6000 has 4" in "\n".join(
        map(str, report(refused, 200, is_plain=True))
    )
    assert "of these GPUs" not in told("TP4")


def test_only_the_concurrencies_that_were_asked_for_are_shown() -> None:
    shown = predicted("TP8", "EP8", "mem0.9", asked=(16, 128))
    rows = [line.split()[0] for line in map(str, report(shown, 150, is_plain=True)) if re.match(r" +\d+  ", line)]
    assert rows == ["16", "128"]
    inner = document(shown)
    assert inner["workload"]["concurrencies"] == [16, 128]
    assert [point["concurrency"] for point in inner["prediction"]["points"]] == [16, 128]


def probed(gpus: str, backend: str, ranks: int) -> Server:
    curve = MeasuredCurve(
        op=CollectiveOp.ALL_REDUCE, backend=backend, num_ranks=ranks, size_bytes=(1024, 2**20), seconds=(3e-5, 2e-4)
    )
    fabric = Fabric(source="tune probe, 2026-01-31: a box", curves=(curve,))
    model = STORY.model if ranks > 2 else load_model("qwen3-30b-a3b-fp8")
    return Server(model=model, cluster=replace(parse_cluster(gpus), fabric=fabric))


@pytest.mark.parametrize(
    ("gpus", "backend", "ranks", "words"), [("8xrtx-pro-6000", "nccl", 8, "TP8 mem0.9"), ("2xcpu", "gloo", 2, "TP2")]
)
def test_times_that_were_measured_on_this_machine_say_where_and_when(
    gpus: str, backend: str, ranks: int, words: str
) -> None:
    text = " ".join(told(words, server=probed(gpus, backend, ranks)).split())
    assert f"all_reduce over {ranks} ranks by {backend}, measured here (tune probe, 2026-01-31: a box)" in text
    assert f"note: links of {gpus}: tune probe, 2026-01-31: a box" in text
    assert "assumed" not in text
    assert "measured here" not in told("TP8 mem0.9")


def test_on_80_columns_the_intervals_of_tpot_and_throughput_stay_and_sentences_are_wrapped() -> None:
    lines = told("TP8", "EP8", "mem0.9", width=80).split("\n")
    begin = next(place for place, line in enumerate(lines) if line.strip().startswith("at once"))
    assert ["TPOT ms" in lines[begin], "tok/s" in lines[begin]] == [True, True]
    assert all(len(re.findall(r"\([\d.,]+ to [\d.,]+\)", line)) == 2 for line in lines[begin + 1 : begin + 4])
    assert max(map(len, lines[1:])) <= 80
    whole = told("TP8", "EP8", "mem0.9").split("\n")
    sentences = [line for line in whole[1:] if not re.match(r"at once| +\d+  ", line)]
    assert 80 < max(map(len, sentences)) <= 100
