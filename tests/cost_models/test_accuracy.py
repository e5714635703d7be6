"""How far predictions lie from the bundled public measurements, by the figures that `tune validate` prints.

Each bound stands just above what the model reaches: a change that makes it worse fails here. In percent.
"""

from __future__ import annotations

from functools import cache

import pytest

from tuner.validate_job import ValidateRequest, validated
from tuner.validate_metrics import Errors
from tuner.validate_report import Report, Summary


@cache
def report(**request: object) -> Report:
    return validated(ValidateRequest(**request))


def part(name: str) -> Summary:
    """Of the points of all engines, under the constants as they come."""
    found = report()
    return (found.by_use | found.by_engine)[name]


def sizes(errors: Errors | None) -> tuple[float, float, float]:
    assert errors is not None
    return errors.median_ape, errors.mean_ape, errors.p90_ape


def assert_within(errors: Errors | None, bounds: tuple[float, float, float]) -> None:
    assert all(size <= bound for size, bound in zip(sizes(errors), bounds, strict=True)), (sizes(errors), bounds)


@pytest.mark.parametrize(
    ("name", "median", "mean", "p90"),
    [
        ("sglang, used for fitting", 7.5, 10.5, 20.5),
        ("sglang, held out", 5.5, 7.5, 20.0),
        ("vllm", 8.0, 22.5, 38.5),
        ("trtllm", 22.5, 24.5, 45.0),
    ],
)
def test_time_per_output_token(name, median, mean, p90):
    assert_within(part(name).tpot, (median, mean, p90))


@pytest.mark.parametrize(
    ("name", "median"),
    [("sglang, used for fitting", 8.0), ("sglang, held out", 6.0), ("vllm", 7.5), ("trtllm", 20.0)],
)
def test_throughput(name, median):
    assert sizes(part(name).output_tok_s)[0] <= median


@pytest.mark.parametrize(
    ("name", "median"),
    [("sglang, used for fitting", 28.5), ("sglang, held out", 24.0), ("vllm", 21.5), ("trtllm", 42.0)],
)
def test_time_to_first_token(name, median):
    assert sizes(part(name).ttft)[0] <= median


def test_points_of_one_layout_come_in_the_measured_order():
    within = part("sglang").within
    assert within.curves >= 8
    assert within.mean is not None
    assert within.mean >= 0.99


def test_layouts_of_one_campaign_come_in_the_measured_order_as_often_as_by_the_trivial_rule():
    timed = [each for each in report(engine="sglang").by_campaign.values() if each.tpot is not None]
    between = [each.per_gpu for each in timed if each.per_gpu.pairs]
    assert sum(each.pairs for each in between) >= 10
    assert all(each.predicted.order_accuracy == each.trivial_rule.order_accuracy == 100 for each in between)


def test_points_with_a_throughput_alone():
    """Nothing was fitted on them, and they are of releases before 0.5.7, under ShareGPT's lengths."""
    assert_within(part("sglang, throughput alone").output_tok_s, (29.0, 95.0, 180.5))


def test_intervals_of_a_throughput_alone_hold_most_of_them():
    """Measured below their intervals: gpt-oss, GLM-4.6-FP8 on H100, and DeepSeek-V3.2 in plain TP8."""
    errors = part("sglang, throughput alone").output_tok_s
    assert errors is not None
    assert errors.coverage >= 75
    assert errors.interval_factor <= 2.1


def test_layouts_with_a_throughput_alone_come_in_the_measured_order_more_often_than_by_the_trivial_rule():
    between = part("sglang, throughput alone").per_gpu
    assert between.pairs >= 7
    predicted, rule = between.predicted.order_accuracy, between.trivial_rule.order_accuracy
    assert predicted is not None
    assert rule is not None
    assert predicted >= max(85, rule + 25)


def test_a_model_on_a_gpu_that_constants_never_saw_lies_in_its_interval():
    overall = report(engine="sglang", leave_one_out=True).overall
    assert_within(overall.tpot, (11.0, 12.5, 24.5))
    assert overall.tpot is not None
    assert overall.tpot.coverage >= 90
    assert overall.tpot.interval_factor <= 1.6


def test_two_points_of_each_layout_and_length_fix_the_others():
    overall = report(engine="sglang", calibrate=2).overall
    assert_within(overall.tpot, (3.5, 5.0, 7.5))
    assert overall.tpot is not None
    assert overall.tpot.coverage >= 85
    assert overall.tpot.interval_factor <= 1.3


def test_intervals_hold_what_they_say():
    """Also of points with attention data parallelism, whose intervals are wide."""
    tpot = part("sglang").tpot
    assert tpot is not None
    assert tpot.coverage >= 90
    assert tpot.interval_factor <= 1.6
