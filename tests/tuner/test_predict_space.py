from __future__ import annotations

import json
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
from tuner import predict_ranking_text
from tuner.objective import Objective
from tuner.predict_beyond import doubled
from tuner.predict_figure import check_plot_path, write_figure
from tuner.predict_plot import curves, leading, terminal_plot
from tuner.predict_space import Ranking, at_every_fraction, pareto_front, rank_space

MODEL, CLUSTER = load_model("qwen3-235b-a22b-fp8"), parse_cluster("8xh200")
LOAD = Workload(concurrencies=(1, 8, 64, 256))


def ranked(objective: Objective = Objective.PEAK_THROUGHPUT, **options: Any) -> Ranking:
    return rank_space(MODEL, CLUSTER, NEWEST, LOAD, objective, **options)


@pytest.fixture(scope="module")
def ranking() -> Ranking:
    return ranked()


def test_the_best_comes_first_by_either_objective(ranking: Ranking) -> None:
    for first, second in pairwise(ranking.ranked):
        assert first.value >= second.value
    quick = ranked(Objective.C1_LATENCY)
    for first, second in pairwise(quick.ranked):
        assert first.value <= second.value
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
        f"{found.point.output_tok_per_s:,.0f} tok/s ({low:,.0f} to {high:,.0f}) at {ladder[-1]} "
        f"(--concurrency {','.join(map(str, ladder))})"
    ) in text
    shape = told.best.candidate.requested.changed(mem_fraction_static=None)
    (same,) = [each for each in again.ranked if each.candidate.requested.changed(mem_fraction_static=None) == shape]
    assert found.is_like_first is same.is_like_best
    assert ("; not distinguishable from the first there" in text) is found.is_like_first
    shown = predict_ranking_text.document(told)["beyond_ladder"]
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
    assert predict_ranking_text.document(told)["beyond_ladder"]["is_first"] is True


def test_nothing_is_said_of_more_requests_where_the_first_peaks_below_the_top_or_none_runs_more() -> None:
    facts = load_model("deepseek-v3"), parse_cluster("8xh200"), NEWEST
    quick = rank_space(*facts, LOAD, Objective.C1_LATENCY)
    peaked = rank_space(*facts, Workload(concurrencies=(1, 4096, 8192)), Objective.PEAK_THROUGHPUT)
    assert peaked.deciding_concurrency >= 4096
    long = Workload(input_tokens=100_000, output_tokens=10_000, concurrencies=(1, 512))
    full = rank_space(*facts, long, Objective.PEAK_THROUGHPUT)
    for told in (quick, peaked, full):
        assert told.beyond is None
        assert predict_ranking_text.document(told)["beyond_ladder"] is None
        assert not any("more requests in flight" in line for line in predict_ranking_text.report(told, 150, 1))


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


def test_the_best_proven_layout_is_named_with_its_command_where_the_first_is_not_proven() -> None:
    story = load_model("kimi-k2.6"), parse_cluster("8xrtx-pro-6000")
    told = rank_space(*story, NEWEST, LOAD, Objective.PEAK_THROUGHPUT)
    proven = told.best_proven
    assert proven is not None
    assert proven is not told.best
    assert proven.prediction.unproven_deviation == 0 < told.best.prediction.unproven_deviation
    lines = predict_ranking_text.report(told, 150, 5)
    place = next(place for place, line in enumerate(lines) if line.startswith("best of the proven layouts: "))
    assert proven.candidate.requested.label in lines[place]
    assert [line for line in lines[place:] if line.startswith("  --")] == [
        "  --tp-size 8 --ep-size 4 --mem-fraction-static 0.9"
    ]
    plain = ranked(pins={"tp_size": 8, "attn_dp_size": 1, "attn_cp_size": 1})
    assert plain.best_proven is plain.best
    assert not any("proven layouts" in line for line in predict_ranking_text.report(plain, 150, 5))


@pytest.mark.parametrize(("key", "name"), [("deepseek-v3", "8xh200"), ("kimi-k2.6", "8xrtx-pro-6000")])
def test_every_label_of_the_ranking_is_a_launch_of_itself(key: str, name: str) -> None:
    space = enumerate_space(
        load_model(key), parse_cluster(name), NEWEST, mem_fractions=(None, 0.9), all_reduce_paths=True
    )
    assert len({each.requested.moe_a2a_backend for each in space.candidates}) > (key == "deepseek-v3")
    for each in space.candidates:
        assert read_notation(each.requested.label).literal == each.requested


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
    told = json.loads(json.dumps(predict_ranking_text.document(ranking), allow_nan=False))
    assert set(told) >= {"model", "cluster", "engine_version", "objective", "workload", "coverage", "layouts"}
    assert [row["rank"] for row in told["layouts"]] == list(range(1, len(ranking.ranked) + 1))
    for row in told["layouts"]:
        assert set(row) >= {"flags", "label", "value", "interval", "is_like_best", "memory", "points", "unproven"}
        low, high = row["interval"]
        assert low <= row["value"] <= high
        assert sum(row["memory"]["parts"].values()) == row["memory"]["total_bytes"]


@pytest.mark.parametrize(("name", "begins"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.html", b"<!doctype")])
def test_the_plot_is_written_in_three_kinds(ranking: Ranking, tmp_path: Path, name: str, begins: bytes) -> None:
    path = check_plot_path(str(tmp_path / name))
    write_figure(ranking, path)
    assert path.read_bytes().startswith(begins)
    if name != "a.png":
        assert "qwen3-235b-a22b-fp8" in path.read_text()


@pytest.mark.parametrize("word", ["a.pdf", "a", "", "/no/such/folder/a.png"])
def test_a_plot_file_of_another_kind_is_refused(word: str) -> None:
    with pytest.raises(MalformedError, match="--plot"):
        check_plot_path(word)
