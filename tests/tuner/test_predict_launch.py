from __future__ import annotations

import json
import math
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
from tuner.predict_sureness import parts_of
from tuner.predict_text import report
from tuner.predict_words import bar, figure, said_time, time_unit

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
        "interval_parts",
        "died",
        "calibration",
    }
    assert sum(inner["memory"]["parts_bytes"].values()) == inner["memory"]["total_bytes"]
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
    [
        (0, "0"),
        (3.9e-6, "<0.0001"),
        (0.0001, "0.0001"),
        (0.0123, "0.012"),
        (0.5, "0.50"),
        (9.994, "9.99"),
        (9.999, "10.0"),
        (99.96, "100"),
        (12345.6, "12,346"),
    ],
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


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0126, "12.6 ms"),
        (9.99, "9,990 ms"),
        (10.0, "10.0 s"),
        (169.4, "169 s"),
        (7199, "7,199 s"),
        (89158.5, "24.8 h"),
    ],
)
def test_long_times_are_told_in_seconds_and_very_long_ones_in_hours(seconds: float, said: str) -> None:
    assert said_time(seconds) == said


def test_a_column_of_times_has_one_unit_by_its_largest_value() -> None:
    assert time_unit((0.01, 9.0)).name == "ms"
    assert time_unit((0.01, 12.0)).name == "s"
    assert time_unit((0.01, 9000.0)).name == "h"
    assert time_unit(()).name == "ms"
    load = Workload(concurrencies=(1, 512))
    shown = predicted("TP8", "EP8", "mem0.9", load=load)
    assert isinstance(shown.estimate, Prediction)
    last = shown.estimate.points[-1]
    assert 10 < last.ttft_s < last.ttft_interval_s.high < 7200
    text = told("TP8", "EP8", "mem0.9", load=load)
    header = next(line for line in text.split("\n") if line.startswith("at once"))
    assert "TTFT s " in header
    assert "TPOT ms " in header
    row = next(line for line in text.split("\n") if line.lstrip().startswith("512  "))
    assert row.split()[1] == figure(last.ttft_s)
    assert document(shown)["prediction"]["points"][-1]["ttft_ms"] == pytest.approx(last.ttft_s * 1e3)


def test_on_the_cpus_of_a_host_no_time_has_more_than_six_digits() -> None:
    server = Server(model=load_model("qwen3-30b-a3b-fp8"), cluster=parse_cluster("2xcpu"))
    text = told("TP2", server=server, load=Workload(concurrencies=(1, 512)))
    assert "TTFT h" in text
    rows = [line for line in text.split("\n") if re.match(r" +(1|512)  ", line)]
    assert len(rows) == 2
    assert not any(re.search(r"\d,\d{3},\d{3}", row) for row in rows)


def test_the_peak_may_lie_above_the_ladder_only_where_more_requests_would_run() -> None:
    full = predicted("TP8", "EP8", "mem0.9", load=Workload(concurrencies=(1, 64, 512)))
    open_ = predicted("TP8", "EP8", "mem0.9", load=Workload(concurrencies=(1, 64)))
    single = predicted("TP8", "EP8", "mem0.9", load=Workload(concurrencies=(1, 64)), asked=(64,))
    for launch, may in ((full, False), (open_, True), (single, False)):
        assert isinstance(launch.estimate, Prediction)
        assert launch.may_peak_above(launch.estimate) is may
        text = "\n".join(map(str, report(launch, 150, is_plain=True)))
        assert ("the top of the ladder: it may lie above" in text) is may
        assert document(launch)["prediction"]["peak"]["may_lie_above"] is may
    assert full.max_concurrency < 512


def test_a_step_that_runs_fewer_requests_than_are_in_flight_says_how_many() -> None:
    launch = predicted("TP8", "EP8", "mem0.9", load=Workload(concurrencies=(1, 512)))
    text = "\n".join(map(str, report(launch, 150, is_plain=True)))
    assert f"decode, {launch.max_concurrency} running" in text
    assert "decode at 512" not in text
    step = document(launch)["prediction"]["peak_decode_step"]
    assert (step["concurrency"], step["running"]) == (512, launch.max_concurrency)
    assert "decode at 64" in told("TP8", "EP8", "mem0.9", load=Workload(concurrencies=(1, 64)))


@pytest.mark.parametrize("words", ["TP8 EP8 mem0.9", "TP8 ADP8 EP8 mem0.9", "TP4 PP2 EP4 mem0.9"])
@pytest.mark.parametrize("name", ["kimi-k2.6", "qwen3-235b-a22b-fp8"])
def test_the_parts_of_how_sure_it_is_make_the_interval(words: str, name: str) -> None:
    server = STORY if name == "kimi-k2.6" else Server(model=load_model(name), cluster=parse_cluster("8xh200"))
    shown = predicted(words, server=server, load=Workload(concurrencies=(1, 64, 1024)))
    assert isinstance(shown.estimate, Prediction)
    assert shown.sweep is not None
    parts = parts_of(shown.estimate, shown.sweep)
    assert parts[0].name.startswith("any model on any GPU")
    peak = shown.estimate.points.index(shown.estimate.peak)
    for place, at in ((0, shown.estimate.points[0]), (1, shown.estimate.points[peak])):
        slower, faster = (
            math.exp(math.hypot(*(math.log(factors[place]) for factors in either)))
            for either in ([part.slower for part in parts], [part.faster for part in parts])
        )
        assert slower == pytest.approx(at.tpot_interval_s.high / at.tpot_s, rel=0.01)
        assert faster == pytest.approx(at.tpot_s / at.tpot_interval_s.low, rel=0.01)
    text = told(words, server=server, load=Workload(concurrencies=(1, 64, 1024)))
    assert "any model on any GPU: x1.4 (campaigns of one kind differ by that)" in text
    assert "they combine as the root of the sum of squares of their logarithms" in text
    assert ("not proven: attention data parallelism: x1.8" in text) is ("ADP" in words)
    assert len(document(shown)["prediction"]["interval_parts"]) == len(parts)


def test_more_requests_than_were_measured_are_a_part_of_how_sure_it_is() -> None:
    server = Server(model=load_model("gpt-oss-120b"), cluster=parse_cluster("4xh100"))
    crowded, calm = (told("TP4", server=server, load=Workload(concurrencies=(1, top))) for top in (1024, 64))
    assert "more than 128 requests at once at one replica: x1.8 (at the peak)" in crowded
    assert "more than 128 requests" not in calm


def test_what_a_variable_of_the_environment_would_change_is_told_with_both_times() -> None:
    plain, on = predicted(LAUNCH), predicted(PCIE_IPC, *LAUNCH.split())
    assert isinstance(plain.estimate, Prediction)
    assert isinstance(on.estimate, Prediction)
    usual, other = (figure(each.estimate.points[0].tpot_s * 1e3) for each in (plain, on))
    assert f"with {PCIE_IPC}: {other} ms instead of {usual} at concurrency 1" in told(LAUNCH)
    assert (on.switched, plain.switched is None) == (None, False)
    assert f"with {PCIE_IPC}" not in told(PCIE_IPC, *LAUNCH.split())
    shown = document(plain)["prediction"]["all_reduce"]["switched"]
    assert (shown["variable"], shown["path"]) == (PCIE_IPC, "pcie_ipc")
    attended_apart = told("TP8 ADP4 EP4 mem0.9")
    assert f"with {PCIE_IPC}: no other time per token at concurrency 1" in attended_apart
    nvlink = Server(model=load_model("qwen3-235b-a22b-fp8"), cluster=parse_cluster("8xh200"))
    assert predicted("TP8 EP8", server=nvlink).switched is None


def test_times_of_another_mechanism_than_the_engines_are_an_estimate_wherever_they_were_measured() -> None:
    text = " ".join(told("TP2", server=probed("2xcpu", "gloo", 2)).split())
    assert "its times: estimated: all_reduce over 2 ranks by gloo, measured here" in text
    assert "shared memory was not measured" in text
    fused = replace(probed("8xrtx-pro-6000", "nccl", 8).cluster, gpu=parse_cluster("8xh200").gpu)
    server = Server(model=load_model("qwen3-235b-a22b-fp8"), cluster=fused)
    assert "its times: estimated: flashinfer_fusion was not measured" in " ".join(
        told("TP8 EP8", server=server).split()
    )
    real = " ".join(told("TP8 mem0.9", server=probed("8xrtx-pro-6000", "nccl", 8)).split())
    assert "its times: all_reduce over 8 ranks by nccl, measured here" in real


def test_where_options_that_are_not_counted_decide_whether_it_fits_nothing_is_told_of_times() -> None:
    server = Server(model=load_model("qwen3-235b-a22b"), cluster=parse_cluster("4xh100"))
    plain = predicted("--tp-size", "4", server=server)
    assert (plain.is_unjudged, document(plain)["fits"]) == (False, False)
    words = ["--tp-size", "4", "--cpu-offload-gb", "40"]
    offloaded = predicted(*words, server=server)
    assert offloaded.is_unjudged
    shown = document(offloaded)
    assert (shown["verdict"], shown["fits"], shown["prediction"], shown["shortfall"]) == ("legal", None, None, None)
    text = told(*words, server=server)
    assert text.startswith("legal")
    assert "no performance is told: whether it fits hangs on what is not counted" in text
    assert "TTFT" not in text
    # The smallest request fits with this fraction, one of this load does not.
    long = Workload(input_tokens=200_000, output_tokens=1000, concurrencies=(1,))
    cases = ("--tp 8 --mem-fraction-static 0.8", False), ("--tp 8 --mem-fraction-static 0.8 --cpu-offload-gb 20", True)
    for line, is_unjudged in cases:
        launch = predicted(line, load=long)
        assert (isinstance(launch.estimate, DoesNotFit), launch.is_unjudged) == (not is_unjudged, is_unjudged)
        assert document(launch)["fits"] is (None if is_unjudged else False)


def test_times_that_know_nothing_of_offloaded_weights_say_so() -> None:
    server = Server(model=load_model("qwen3-235b-a22b"), cluster=parse_cluster("8xh100"))
    assert "the times below are without --cpu-offload-gb 4" in told("--tp-size 8 --cpu-offload-gb 4", server=server)
    assert "the times below are without" not in told("--tp-size 8", server=server)
