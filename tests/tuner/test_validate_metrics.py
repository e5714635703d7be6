"""Each metric on a handful of points, worked out by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.prediction import Interval, ServingPoint
from tuner.validate_metrics import (
    between_layouts_per_gpu,
    between_layouts_per_user,
    errors_of,
    quantile,
    spearman,
    within_layouts,
)
from tuner.validate_predict import Compared, Comparison, spread
from tuner.validate_rows import MeasuredRow, read_rows


def compared(measured: float, predicted: float, low: float = 0.5, high: float = 2.0) -> Compared:
    return Compared(
        measured=measured, predicted=predicted, interval=Interval(low=low * predicted, high=high * predicted)
    )


def speed(tok_s: float, *, predicted: float, tp: int = 8, ep: int = 1, dp: int = 1, pp: int = 1, **said: object):
    """A throughput alone."""
    line = {
        "engine": "sglang", "model": "deepseek-r1", "gpu": "h200", "isl": 200, "osl": 100, "concurrency": 64,
        "world_tp": tp, "moe_ep": ep, "attention_dp": dp, "pp": pp, "output_tok_s": tok_s, **said,
    }  # fmt: skip
    (row,) = read_rows([json.dumps(line)])
    assert isinstance(row, MeasuredRow)
    wide = Interval(low=0.0, high=math.inf)
    answer = ServingPoint(
        concurrency=64,
        ttft_s=1.0,
        tpot_s=1.0,
        output_tok_per_s=predicted,
        ttft_interval_s=wide,
        tpot_interval_s=wide,
        output_tok_per_s_interval=Interval(low=0.5 * predicted, high=2 * predicted),
    )
    return Comparison(row=row, point=answer)


def point(*, tpot_ms: float, predicted_ms: float, tp: int = 8, ep: int = 1, dp: int = 1, concurrency: int = 1):
    """One output token after the first, and nothing before it: the throughput is twice the reverse of the time."""
    line = {
        "engine": "sglang", "model": "deepseek-r1", "gpu": "h200", "isl": 100, "osl": 2, "concurrency": concurrency,
        "world_tp": tp, "moe_ep": ep, "attention_dp": dp, "tpot_ms": tpot_ms,
    }  # fmt: skip
    (row,) = read_rows([json.dumps(line)])
    assert isinstance(row, MeasuredRow)
    row = replace(row, ttft_s=0.0)
    wide = Interval(low=0.0, high=math.inf)
    predicted = ServingPoint(
        concurrency=concurrency,
        ttft_s=1e-12,
        tpot_s=predicted_ms / 1e3,
        output_tok_per_s=concurrency * 2 / (predicted_ms / 1e3),
        ttft_interval_s=wide,
        tpot_interval_s=wide,
        output_tok_per_s_interval=wide,
    )
    return Comparison(row=row, point=predicted)


def test_errors_are_in_percent_of_what_was_measured():
    found = errors_of([compared(100, 110), compared(100, 80), compared(100, 100), None, compared(100, 170)])
    assert found is not None
    assert found.n == 4
    assert found.median_ape == pytest.approx(15)
    assert found.mean_ape == pytest.approx(25)
    assert found.p90_ape == pytest.approx(20 + 0.7 * (70 - 20))
    assert found.median_error == pytest.approx(5)


def test_coverage_and_width_are_those_of_the_stated_intervals():
    found = errors_of([compared(100, 100), compared(100, 100, low=0.25, high=4), compared(100, 300), compared(100, 30)])
    assert found is not None
    assert found.coverage == 50
    assert found.interval_factor == pytest.approx(2)


def test_without_a_measured_value_there_are_no_errors():
    assert errors_of([None, None]) is None


@pytest.mark.parametrize(
    ("values", "share", "expected"), [([7], 0.9, 7), ([0, 10], 0.9, 9), ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 0.9, 9)]
)
def test_a_quantile_lies_between_the_nearest_values(values, share, expected):
    assert quantile(values, share) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1, 2, 3], [10, 20, 30], 1.0),
        ([1, 2, 3], [3, 2, 1], -1.0),
        ([1, 2, 3, 4, 5], [5, 6, 7, 8, 7], 0.8207826816681233),  # scipy.stats.spearmanr
        ([1, 2, 3, 4], [1, 3, 2, 4], 0.8),
        ([1, 2, 3], [5, 5, 5], None),
    ],
)
def test_spearman_is_the_correlation_of_ranks_with_ties_in_the_middle(first, second, expected):
    assert spearman(first, second) == (None if expected is None else pytest.approx(expected))


@given(st.lists(st.tuples(st.floats(0.1, 1e3), st.floats(0.1, 1e3)), min_size=3, max_size=8))
def test_spearman_lies_between_minus_one_and_one_and_is_symmetric(pairs):
    first, second = zip(*pairs, strict=True)
    found = spearman(first, second)
    assert found is None or -1 - 1e-9 <= found <= 1 + 1e-9
    assert spearman(second, first) == (None if found is None else pytest.approx(found))


def test_rank_order_is_taken_over_concurrency_within_each_curve_of_three_points():
    rising = [point(tpot_ms=t, predicted_ms=t, concurrency=c) for c, t in ((1, 10), (4, 20), (16, 30))]
    swapped = [
        point(tpot_ms=t, predicted_ms=p, tp=4, concurrency=c) for c, t, p in ((1, 10, 20), (4, 20, 10), (16, 30, 30))
    ]
    short = [point(tpot_ms=t, predicted_ms=-t + 50, tp=2, concurrency=c) for c, t in ((1, 10), (4, 20))]
    found = within_layouts([*rising, *swapped, *short])
    assert found.curves == 2
    assert found.mean == pytest.approx(0.75)
    assert found.least == pytest.approx(0.5)


def test_without_a_curve_there_is_no_rank_order():
    found = within_layouts([point(tpot_ms=10, predicted_ms=10)])
    assert (found.curves, found.mean, found.least) == (0, None, None)


def test_a_throughput_alone_counts_as_a_throughput_and_in_no_other_metric():
    found = [speed(100, predicted=110), speed(100, predicted=300), speed(100, predicted=90, concurrency=32)]
    errors = errors_of(each.output_tok_s for each in found)
    assert errors is not None
    assert (errors.n, errors.median_ape) == (3, pytest.approx(10))
    assert errors.coverage == pytest.approx(200 / 3)
    assert errors_of(each.tpot for each in found) is None
    assert errors_of(each.ttft for each in found) is None
    assert within_layouts(found).curves == 0
    assert between_layouts_per_user(found).pairs == 0


def test_layouts_with_a_throughput_alone_are_ordered_too_and_the_rule_puts_pipelines_last():
    """Measured tp8 ep8 > tp8 > tp4 pp2; predicted tp8 > tp8 ep8 > tp4 pp2: one pair of three wrong, as by the rule."""
    points = [
        speed(1000, predicted=1200),
        speed(1200, predicted=1000, ep=8),
        speed(500, predicted=500, tp=4, pp=2),
    ]
    found = between_layouts_per_gpu(points)
    assert (found.groups, found.pairs) == (1, 3)
    assert found.predicted.order_accuracy == pytest.approx(200 / 3)
    assert found.trivial_rule.order_accuracy == pytest.approx(200 / 3)
    assert found.predicted.regret_max == pytest.approx(100 * (1 - 1000 / 1200))


@pytest.mark.parametrize(
    ("said", "groups"),
    [({}, 1), ({"osl": 101}, 1), ({"isl": 203}, 1), ({"osl": 110}, 0), ({"flags": {"page-size": 64}}, 0)],
)
def test_only_layouts_of_nearly_the_same_lengths_and_other_flags_are_compared(said, groups):
    assert between_layouts_per_gpu([speed(100, predicted=1), speed(200, predicted=2, ep=8, **said)]).groups == groups


def test_layouts_of_one_load_are_ordered_by_throughput_per_gpu():
    """Per GPU, measured 2000/ms/GPUs: 25 (tp8), 20 (tp8 ep8), 25 x 2 / 1.6 = 31.25 (tp4); predicted 25, 31.25, 25 x 2 / 2.5 = 20.

    Pairs tp8 - ep8: wrong; tp8 - tp4: wrong; ep8 - tp4: wrong. The prediction takes ep8: 20 of 31.25.
    The rule takes tp4 before tp8 before tp8 ep8: all right.
    """
    points = [
        point(tpot_ms=10, predicted_ms=10),
        point(tpot_ms=12.5, predicted_ms=8, ep=8),
        point(tpot_ms=16, predicted_ms=25, tp=4),
    ]
    found = between_layouts_per_gpu(points)
    assert (found.groups, found.pairs) == (1, 3)
    assert found.predicted.order_accuracy == 0
    assert found.predicted.regret_max == pytest.approx(100 * (1 - 20 / 31.25))
    assert found.trivial_rule.order_accuracy == 100
    assert found.trivial_rule.regret_mean == 0


def test_layouts_of_one_load_are_ordered_by_time_per_token():
    """The fastest is tp8; predicted are tp8 ep8, tp8, tp4. Two of three pairs come right, and ep8 has 10/12.5 of the speed."""
    points = [
        point(tpot_ms=10, predicted_ms=10),
        point(tpot_ms=12.5, predicted_ms=8, ep=8),
        point(tpot_ms=16, predicted_ms=25, tp=4),
    ]
    found = between_layouts_per_user(points)
    assert found.predicted.order_accuracy == pytest.approx(200 / 3)
    assert found.predicted.regret_mean == pytest.approx(20)
    assert found.trivial_rule.order_accuracy == 100


def test_what_was_measured_alike_is_no_pair_but_counts_for_regret():
    found = between_layouts_per_user([point(tpot_ms=10, predicted_ms=10), point(tpot_ms=10.2, predicted_ms=9, ep=8)])
    assert (found.groups, found.pairs) == (1, 0)
    assert found.predicted.order_accuracy is None
    assert found.predicted.regret_max == pytest.approx(100 * (1 - 10 / 10.2))


def test_a_pair_that_an_order_leaves_open_counts_half_and_its_regret_is_the_mean():
    found = between_layouts_per_user([point(tpot_ms=10, predicted_ms=9), point(tpot_ms=20, predicted_ms=9, ep=8)])
    assert found.predicted.order_accuracy == 50
    assert found.predicted.regret_mean == pytest.approx(25)


def test_points_of_other_concurrencies_are_not_compared():
    found = between_layouts_per_gpu(
        [point(tpot_ms=10, predicted_ms=10), point(tpot_ms=20, predicted_ms=9, ep=8, concurrency=4)]
    )
    assert (found.groups, found.pairs, found.predicted.order_accuracy) == (0, 0, None)


@pytest.mark.parametrize(
    ("total", "num", "places"), [(5, 2, (0, 4)), (5, 1, (0,)), (5, 3, (0, 2, 4)), (3, 3, (0, 1, 2))]
)
def test_points_to_calibrate_with_lie_from_the_lowest_to_the_highest_concurrency(total, num, places):
    assert spread(total, num) == places


@given(st.integers(2, 12), st.integers(1, 12))
def test_points_to_calibrate_with_are_different_ones(total, num):
    if num < total:
        assert len(set(spread(total, num))) == num
