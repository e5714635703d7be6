from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cost_models.estimate import predict
from cost_models.prediction import Prediction
from cost_models.setting import Setting
from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.errors import CannotRunError, MalformedError, UserError
from search_spaces.notation import read_notation
from search_spaces.sglang.versions import NEWEST
from search_spaces.space import MEM_FRACTIONS, enumerate_space
from search_spaces.workload import Workload
from tuner import predict_ranking_document, predict_ranking_text
from tuner.objective import Objective
from tuner.predict_beyond import doubled
from tuner.predict_figure import check_plot_path, write_figure
from tuner.predict_plot import curves, leading, terminal_plot
from tuner.predict_space import Ranking, pareto_front, rank_space
from tuner.predict_tried import at_every_fraction
from tuner.predict_words import said_time

MODEL, CLUSTER = load_model("qwen3-235b-a22b-fp8"), parse_cluster("8xh200")
LOAD = Workload(concurrencies=(1, 8, 64, 256))


def ranked(objective: Objective = Objective.PEAK_THROUGHPUT, **options: Any) -> Ranking:
    return rank_space(MODEL, CLUSTER, NEWEST, LOAD, objective, **options)


@pytest.fixture(scope="module")
def ranking() -> Ranking:
    return ranked()


def test_the_best_comes_first_by_either_objective(ranking: Ranking) -> None:
    for first, second in pairwise(ranking.ranked):
        assert first.value >= second.value / 1.0005
    quick = ranked(Objective.C1_LATENCY)
    for first, second in pairwise(quick.ranked):
        assert first.value <= second.value * 1.0005
    assert {each.candidate.requested.changed(mem_fraction_static=None) for each in quick.ranked} == {
        each.candidate.requested.changed(mem_fraction_static=None) for each in ranking.ranked
    }


def test_a_shape_is_shown_once_at_a_fraction_that_no_other_beats(ranking: Ranking) -> None:
    shapes = [each.candidate.requested.changed(mem_fraction_static=None) for each in ranking.ranked]
    assert len(set(shapes)) == len(shapes)
    best = ranking.best
    shape = best.candidate.requested.changed(mem_fraction_static=None)
    for candidate in ranking.space.candidates:
        if candidate.requested.changed(mem_fraction_static=None) == shape:
            other = predict(MODEL, CLUSTER, candidate.effective, LOAD, setting=Setting(version=NEWEST))
            if isinstance(other, Prediction):
                assert other.peak.output_tok_per_s <= best.value * 1.001


@pytest.mark.parametrize("name", ["8xh200", "4xrtx-pro-6000"])
@pytest.mark.parametrize("key", ["qwen3-30b-a3b-fp8", "kimi-k2.6", "gpt-oss-120b"])
def test_what_is_weighed_is_what_the_rules_make_of_every_fraction(key: str, name: str) -> None:
    model, cluster = load_model(key), parse_cluster(name)
    fractions = (None, *MEM_FRACTIONS)
    judged = enumerate_space(model, cluster, NEWEST, mem_fractions=fractions).candidates
    own = enumerate_space(model, cluster, NEWEST, mem_fractions=(None,)).candidates
    assert {(c.requested, c.effective) for c in at_every_fraction(own)} == {(c.requested, c.effective) for c in judged}


def test_where_fractions_make_no_difference_the_engines_own_is_shown() -> None:
    quick = ranked(Objective.C1_LATENCY, pins={"tp_size": 8, "ep_size": 1, "attn_dp_size": 1, "attn_cp_size": 1})
    assert any(each.candidate.requested.mem_fraction_static is None for each in quick.ranked)


def test_a_fraction_that_ties_is_chosen_by_the_other_objective() -> None:
    story = load_model("kimi-k2.6"), parse_cluster("8xrtx-pro-6000")
    load = Workload(concurrencies=(1, 128, 512))
    quick = rank_space(*story, NEWEST, load, Objective.C1_LATENCY, pins={"tp_size": 8})
    for each in quick.ranked:
        assert not each.prediction.memory.is_tight
        for fraction in MEM_FRACTIONS:
            other = predict(*story, each.candidate.effective.changed(mem_fraction_static=fraction), load)
            if isinstance(other, Prediction) and not other.memory.is_tight:
                assert other.peak.output_tok_per_s <= each.prediction.peak.output_tok_per_s * 1.0006


@pytest.mark.parametrize("objective", list(Objective))
def test_the_limit_is_that_at_the_concurrency_which_decides(objective: Objective) -> None:
    told = ranked(objective)
    at = told.best.prediction.peak.concurrency if objective.maximise else 1
    limit = next(each for each in told.best.prediction.limits if each.concurrency == at)
    text = " ".join(predict_ranking_text.report(told, 150, 5))
    assert f"can exceed {limit.output_tok_per_s:,.0f} tok/s at concurrency {at} (" in text
    is_at_the_top = objective.maximise and at == LOAD.concurrencies[-1]
    assert ("the top of the ladder: it may lie above" in text) == is_at_the_top


@pytest.mark.parametrize(
    ("key", "name", "lengths", "top"),
    [
        ("deepseek-v3", "8xh200", (1024, 512), 512),
        ("kimi-k2.6", "8xrtx-pro-6000", (1024, 512), 512),
        ("deepseek-v3", "8xh200", (2000, 8000), 16),
    ],
)
def test_who_comes_first_with_more_requests_in_flight_is_said_with_the_ladder_that_shows_it(
    key: str, name: str, lengths: tuple[int, int], top: int
) -> None:
    facts = load_model(key), parse_cluster(name), NEWEST
    load = Workload(input_tokens=lengths[0], output_tokens=lengths[1], concurrencies=(1, 8, top))
    told = rank_space(*facts, load, Objective.PEAK_THROUGHPUT)
    found = told.beyond
    assert found is not None
    assert not found.is_first
    ladder = (1, top, found.point.concurrency)
    again = rank_space(*facts, replace(load, concurrencies=ladder), Objective.PEAK_THROUGHPUT)
    assert again.best.prediction.layout.changed(mem_fraction_static=None) == found.prediction.layout.changed(
        mem_fraction_static=None
    )
    assert again.best.value == pytest.approx(found.point.output_tok_per_s, rel=1e-3)
    text = " ".join(part.strip() for part in predict_ranking_text.report(told, 150, 1))
    low, high = found.point.output_tok_per_s_interval.low, found.point.output_tok_per_s_interval.high
    assert (
        f"with more requests in flight another comes first: {found.candidate.requested.label}, "
        f"{found.point.output_tok_per_s:,.0f} tok/s ({low:,.0f} to {high:,.0f}) at {ladder[-1]}, "
        f"with a time to first token of {said_time(found.point.ttft_s)} (--concurrency {','.join(map(str, ladder))})"
    ) in text
    shape = told.best.candidate.requested.changed(mem_fraction_static=None)
    (same,) = [each for each in again.ranked if each.candidate.requested.changed(mem_fraction_static=None) == shape]
    assert found.is_like_first is same.is_like_best
    assert ("; not distinguishable from the first there" in text) is found.is_like_first
    shown = predict_ranking_document.document(told)["beyond_ladder"]
    assert shown["is_first"] is False
    assert shown["label"] == found.candidate.requested.label != told.best.candidate.requested.label
    assert shown["output_tok_s"] == found.point.output_tok_per_s


def test_a_first_that_stays_the_first_with_more_requests_in_flight_is_said_to() -> None:
    facts = load_model("qwen3-30b-a3b-fp8"), parse_cluster("4xh100"), NEWEST
    told = rank_space(*facts, Workload(concurrencies=(1, 512)), Objective.PEAK_THROUGHPUT)
    assert told.beyond is not None
    assert told.beyond.is_first
    longer = rank_space(*facts, Workload(concurrencies=(1, 512, *told.beyond.concurrencies)), Objective.PEAK_THROUGHPUT)
    assert longer.best.value <= max(told.best.value, told.beyond.point.output_tok_per_s) * 1.001
    text = predict_ranking_text.report(told, 150, 1)
    assert f"with more requests in flight, up to {told.beyond.concurrencies[-1]}, it stays the first" in text
    assert predict_ranking_document.document(told)["beyond_ladder"]["is_first"] is True


def test_nothing_is_said_of_more_requests_where_the_first_peaks_below_the_top_or_none_runs_more() -> None:
    facts = load_model("deepseek-v3"), parse_cluster("8xh200"), NEWEST
    quick = rank_space(*facts, LOAD, Objective.C1_LATENCY)
    peaked = rank_space(*facts, Workload(concurrencies=(1, 4096, 8192)), Objective.PEAK_THROUGHPUT)
    assert peaked.deciding_concurrency >= 4096
    long = Workload(input_tokens=100_000, output_tokens=10_000, concurrencies=(1, 512))
    full = rank_space(*facts, long, Objective.PEAK_THROUGHPUT)
    for told in (quick, peaked, full):
        assert told.beyond is None
        assert predict_ranking_document.document(told)["beyond_ladder"] is None
        assert not any("more requests in flight" in line for line in predict_ranking_text.report(told, 150, 1))


def test_the_first_may_peak_above_the_ladder_only_where_it_runs_more_and_more_than_one_was_asked_for() -> None:
    facts = load_model("kimi-k2.6"), parse_cluster("8xrtx-pro-6000"), NEWEST
    pins = {"tp_size": 8, "ep_size": 8, "attn_dp_size": 1, "attn_cp_size": 1}

    def told(ladder: tuple[int, ...], **options: Any) -> Ranking:
        return rank_space(*facts, Workload(concurrencies=ladder), Objective.PEAK_THROUGHPUT, pins=pins, **options)

    full, open_, single = told((1, 64, 512)), told((1, 64)), told((1, 64), asked=(64,))
    assert full.best.prediction.memory.max_concurrency(full.workload) < 512
    for ranking_, may in ((full, False), (open_, True), (single, False)):
        assert ranking_.peaks_at_the_top is may
        text = " ".join(predict_ranking_text.report(ranking_, 150, 3))
        assert ("it may lie above" in text) is may
    assert single.beyond is None
    assert not any("in flight" in line for line in predict_ranking_text.report(single, 150, 3))


def test_of_a_plateau_the_fewest_requests_are_the_peak() -> None:
    facts = load_model("kimi-k2.6"), parse_cluster("8xrtx-pro-6000"), NEWEST
    pins = {"tp_size": 8, "ep_size": 8, "attn_dp_size": 1, "attn_cp_size": 1}
    load = Workload(concurrencies=(1, 512, 1024, 4096))
    told = rank_space(*facts, load, Objective.PEAK_THROUGHPUT, pins=pins)
    assert told.best.prediction.memory.max_concurrency(load) < 512
    assert told.deciding_concurrency == 512
    assert told.beyond is None
    assert not told.peaks_at_the_top


@pytest.mark.parametrize(
    ("name", "attn_dp_size", "is_told"),
    [("8xrtx-pro-6000", 1, True), ("8xrtx-pro-6000", 4, False), ("8xh200", 1, False)],
)
def test_what_the_environment_would_do_for_the_first_is_said_where_it_does_anything(
    name: str, attn_dp_size: int, is_told: bool
) -> None:
    facts = load_model("kimi-k2.6"), parse_cluster(name)
    pins = {"tp_size": 8, "attn_dp_size": attn_dp_size}
    told = rank_space(*facts, NEWEST, LOAD, Objective.PEAK_THROUGHPUT, pins=pins)
    text = " ".join(" ".join(predict_ranking_text.report(told, 150, 3)).split())
    variable = "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE"
    assert (f"the first with {variable}=1: " in text) is is_told
    assert (told.switched is not None) is (name == "8xrtx-pro-6000")
    if told.switched is not None:
        setting = Setting(environment=((variable, "1"),))
        with_it = predict(*facts, told.best.prediction.layout, LOAD, setting=setting)
        assert isinstance(with_it, Prediction)
        usual = told.best.prediction.points[0].tpot_s
        assert (told.switched.tpot_s, told.switched.usual_tpot_s) == (with_it.points[0].tpot_s, usual)


def test_titles_are_explained_where_they_are_shown(ranking: Ranking) -> None:
    for width in (50, 60, 80, 100, 150):
        lines = predict_ranking_text.report(ranking, width, 3)
        text = " ".join(" ".join(lines).split())
        titles = lines[lines.index("") + 1].split()
        assert ("at: concurrency of the peak" in text) is ("at" in titles)
        assert ("c1: concurrency 1" in text) is ("c1" in titles)


def test_a_ladder_is_doubled_on_until_no_shape_runs_more() -> None:
    assert doubled(512, 4096) == (1024, 2048, 4096)
    assert doubled(600, 4096) == (1200, 2400, 4096)
    assert doubled(512, 700) == (1024,)
    assert doubled(512, 512) == doubled(8192, 4096) == ()


def test_of_one_shape_nothing_is_said_of_others() -> None:
    pins = {"tp_size": 8, "ep_size": 8, "attn_dp_size": 1, "attn_cp_size": 1, "moe_a2a_backend": "none"}
    told = ranked(pins=pins)
    assert len(told.ranked) == 1
    lines = predict_ranking_text.report(told, 150, 5)
    assert not any("told apart" in line or "distinguishable" in line or "comes first" in line for line in lines)
    row = next(line for line in lines if line.startswith("1 "))
    assert "=" not in row


def test_of_those_alike_the_one_that_rests_least_on_what_is_not_proven_is_named_with_its_command() -> None:
    story = load_model("kimi-k2.6"), parse_cluster("8xrtx-pro-6000")
    told = rank_space(*story, NEWEST, LOAD, Objective.PEAK_THROUGHPUT)
    safest = told.safest
    assert safest.is_like_best
    assert safest.prediction.unproven_deviation < told.best.prediction.unproven_deviation
    assert all(
        each.prediction.unproven_deviation >= safest.prediction.unproven_deviation
        for each in told.ranked
        if each.is_like_best
    )
    lines = predict_ranking_text.report(told, 150, 5)
    place = next(
        place for place, line in enumerate(lines) if line.startswith("of those alike, the one that rests least")
    )
    assert safest.candidate.requested.label in lines[place]
    flags = predict_ranking_document.document(told)["safest"]["flags"]
    assert [line for line in lines[place:] if line.startswith("  --")] == [f"  {flags}"]
    plain = ranked(pins={"tp_size": 8, "attn_dp_size": 1, "attn_cp_size": 1})
    assert plain.safest is plain.best
    assert not any("rests least" in line for line in predict_ranking_text.report(plain, 150, 5))


def test_a_safer_one_need_not_rest_on_nothing_unproven() -> None:
    """Of these pipelines and data-parallel attentions none is proven; a pipeline is nearer to it."""
    story = load_model("kimi-k2.6"), parse_cluster("8xrtx-pro-6000")
    wide = rank_space(*story, NEWEST, LOAD, Objective.PEAK_THROUGHPUT, pins={"tp_size": 4})
    assert wide.safest.prediction.unproven_deviation > 0
    assert wide.safest.candidate.requested.attn_dp_size == 1
    assert wide.best.candidate.requested.attn_dp_size > 1


@pytest.mark.parametrize(("key", "name"), [("deepseek-v3", "8xh200"), ("kimi-k2.6", "8xrtx-pro-6000")])
def test_every_label_of_the_ranking_is_a_launch_of_itself(key: str, name: str) -> None:
    space = enumerate_space(
        load_model(key), parse_cluster(name), NEWEST, mem_fractions=(None, 0.9), all_reduce_paths=True
    )
    assert len({each.requested.moe_a2a_backend for each in space.candidates}) > (key == "deepseek-v3")
    for each in space.candidates:
        assert read_notation(each.requested.label).literal == each.requested


def test_of_those_that_no_measurement_tells_apart_the_one_that_rests_on_least_comes_first() -> None:
    order = ranked(Objective.C1_LATENCY).ranked
    moved = [(first, second) for first, second in pairwise(order) if first.value > second.value]
    assert moved
    for first, second in moved:
        assert first.prediction.unproven_deviation < second.prediction.unproven_deviation
    for first, second in pairwise(order):
        if first.value == second.value:
            assert first.prediction.unproven_deviation <= second.prediction.unproven_deviation


def test_a_backend_that_exchanges_nothing_is_ranked_only_where_the_plain_layout_is_not() -> None:
    facts = load_model("qwen3-30b-a3b-fp8"), parse_cluster("2xh100"), NEWEST, LOAD, Objective.PEAK_THROUGHPUT
    told = rank_space(*facts)
    for each in told.ranked:
        assert each.candidate.requested.moe_a2a_backend == "none" or each.prediction.layout.ep_size > 1
    backends = {each.candidate.requested.moe_a2a_backend for each in told.ranked}
    assert "megamoe" in backends
    alone = rank_space(*facts, pins={"tp_size": 1, "moe_a2a_backend": "megamoe"})
    assert {each.candidate.requested.tp_size for each in alone.ranked} == {1}


def test_alike_means_that_what_they_do_not_share_may_turn_their_order(ranking: Ranking) -> None:
    """Each interval holds the campaign's factor, which moves both alike: so they tell more apart than by overlap."""
    best = ranking.best
    assert best.is_like_best
    overlapping = [each for each in ranking.ranked if each.interval.high >= best.interval.low]
    told_apart = [each for each in overlapping if not each.is_like_best]
    assert told_apart
    assert all(each.is_like_best for each in ranking.ranked if each.value > best.value / 1.1)
    assert all(each.value < best.value / 1.2 for each in told_apart)


def test_pins_hold_and_a_load_that_is_too_long_is_refused() -> None:
    pinned = ranked(pins={"tp_size": 4, "dp_size": 2})
    assert {(e.candidate.requested.tp_size, e.candidate.requested.dp_size) for e in pinned.ranked} == {(4, 2)}
    with pytest.raises(UserError, match="no layout uses all 8 GPUs"):
        ranked(pins={"tp_size": 3})
    with pytest.raises(MalformedError, match="longer than"):
        rank_space(MODEL, CLUSTER, NEWEST, Workload(input_tokens=10**7), Objective.PEAK_THROUGHPUT)


def test_a_model_that_fits_nowhere_is_refused_with_the_nearest() -> None:
    with pytest.raises(CannotRunError, match=r"does not fit on 8xh100 in any of .*at least 16 of these GPUs"):
        rank_space(load_model("deepseek-v3"), parse_cluster("8xh100"), NEWEST, LOAD, Objective.PEAK_THROUGHPUT)


def test_no_point_beats_one_of_the_pareto_front_in_both(ranking: Ranking) -> None:
    front = pareto_front(ranking.ranked)
    assert front
    for x, y, _, _ in front:
        for each in ranking.ranked:
            for point in each.prediction.points:
                user, gpu = 1 / point.tpot_s, point.output_tok_per_s / each.prediction.layout.num_gpus
                assert not (user > x and gpu > y)
    assert all(a[0] <= b[0] and a[1] >= b[1] for a, b in pairwise(front))


def test_the_plot_has_a_curve_for_the_best_and_the_front(ranking: Ranking) -> None:
    drawn = curves(ranking)
    assert drawn[0].name.startswith("Pareto front")
    assert ranking.best in leading(ranking)
    assert len(drawn) == 1 + len(leading(ranking))
    assert all(len(curve.x) == len(curve.y) == len(LOAD.concurrencies) for curve in drawn[1:])


def test_the_drawn_curves_differ_and_the_first_lies_above_the_others(ranking: Ranking) -> None:
    drawn = curves(ranking)[1:]
    assert len(drawn) == 5
    for place, one in enumerate(drawn):
        for other in drawn[:place]:
            assert max(abs(a / b - 1) for a, b in zip(one.x + one.y, other.x + other.y, strict=True)) > 0.02
    text = terminal_plot(ranking, 100, is_plain=True, in_colour=False)
    assert any("the best 5 shapes whose curves differ" in line for line in text)
    canvas = "".join(line for line in text if line.startswith("||"))
    alone = [curve for curve in ("a", "b", "c", "d", "e") if curve in canvas]
    assert "a" in alone
    assert canvas.count("a") > 10
    assert "*" in canvas


@pytest.mark.parametrize("width", [20, 60, 100, 300])
def test_a_plot_without_colour_is_drawn_in_letters_and_in_ascii_where_that_is_all_there_is(
    ranking: Ranking, width: int
) -> None:
    plain = terminal_plot(ranking, width, is_plain=True, in_colour=False)
    assert all(line.isascii() for line in plain)
    assert any(letter in line for line in plain if line.startswith("||") for letter in "abcde")
    assert any("*  Pareto front of all" in line for line in plain)
    assert max(map(len, plain[2:21])) <= max(width, 40)
    assert not any("\x1b" in line for line in terminal_plot(ranking, width, is_plain=False, in_colour=False))


def test_a_plot_grows_with_the_terminal_and_its_legend_is_no_wider(ranking: Ranking) -> None:
    for width in (40, 80, 100, 150, 300):
        for in_colour in (False, True):
            lines = terminal_plot(ranking, width, is_plain=False, in_colour=in_colour)
            bare = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in lines]
            assert max(map(len, bare)) <= width, width
            frame = next(len(line) for line in bare if line.startswith("┌"))
            assert frame == min(width - 16, 120) + 2
            assert "no other point is faster for the user and per GPU" in " ".join(" ".join(bare).split())


def test_a_curve_says_how_many_others_lie_on_it(ranking: Ranking) -> None:
    drawn = curves(ranking)[1:]
    points = [
        (
            [1 / point.tpot_s for point in each.prediction.points],
            [point.output_tok_per_s / each.prediction.layout.num_gpus for point in each.prediction.points],
        )
        for each in ranking.ranked
    ]
    left = list(points)
    for curve in drawn:
        on_it = [
            each
            for each in left
            if all(abs(a / b - 1) <= 0.02 for a, b in zip((*each[0], *each[1]), (*curve.x, *curve.y), strict=True))
        ]
        assert curve.num_alike == len(on_it) - 1
        left = [each for each in left if each not in on_it]
    assert replace(drawn[0], num_alike=0).legend == drawn[0].name
    assert replace(drawn[0], num_alike=1).legend == f"{drawn[0].name} and 1 other that lies on it"
    assert replace(drawn[0], num_alike=3).legend == f"{drawn[0].name} and 3 others that lie on it"


def test_a_plot_in_colour_ends_every_colour_it_begins(ranking: Ranking) -> None:
    coloured = "\n".join(terminal_plot(ranking, 80, is_plain=False, in_colour=True))
    assert "\x1b[34m" in coloured
    assert "█" in coloured


@pytest.mark.parametrize("width", [40, 80, 150])
def test_the_table_is_no_wider_than_the_terminal(ranking: Ranking, width: int) -> None:
    lines = predict_ranking_text.report(ranking, width, 5)
    table = lines[lines.index("") + 1 :][:6]
    assert all(len(line) <= width for line in table), table
    assert "layout" in table[0]
    assert [line.split()[0] for line in table[1:]] == ["1", "2", "3", "4", "5"]


def test_limits_are_said_and_kept(ranking: Ranking) -> None:
    assert any("more: --all shows them" in line for line in predict_ranking_text.report(ranking, 150, 2))
    assert not any("--all shows" in line for line in predict_ranking_text.report(ranking, 150, None))
    assert predict_ranking_text.report(ranking, 150, 0)


def test_the_document_is_json_with_the_promised_keys(ranking: Ranking) -> None:
    told = json.loads(json.dumps(predict_ranking_document.document(ranking), allow_nan=False))
    assert set(told) >= {"model", "cluster", "engine_version", "objective", "workload", "coverage", "layouts"}
    assert [row["rank"] for row in told["layouts"]] == list(range(1, len(ranking.ranked) + 1))
    for row in told["layouts"]:
        assert set(row) >= {"flags", "label", "value", "interval", "is_like_best", "memory", "points", "unproven"}
        path = row["all_reduce"]
        assert (path is None) is (row["label"].split()[0] == "TP1")
        assert path is None or set(path) == {"path", "reason", "source"}
        low, high = row["interval"]
        assert low <= row["value"] <= high
        assert sum(row["memory"]["parts_bytes"].values()) == row["memory"]["total_bytes"]


@pytest.mark.parametrize(("name", "begins"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.html", b"<!doctype")])
def test_the_plot_is_written_in_three_kinds(ranking: Ranking, tmp_path: Path, name: str, begins: bytes) -> None:
    path = check_plot_path(str(tmp_path / name))
    write_figure(ranking, path)
    assert path.read_bytes().startswith(begins)
    if name != "a.png":
        assert "qwen3-235b-a22b-fp8" in path.read_text()
        assert "where 95 % of measurements of the first should lie" in path.read_text()


@pytest.mark.parametrize("word", ["a.pdf", "a", "", "/no/such/folder/a.png"])
def test_a_plot_file_of_another_kind_is_refused(word: str) -> None:
    with pytest.raises(MalformedError, match="--plot"):
        check_plot_path(word)
