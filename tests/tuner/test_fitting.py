"""The fit: it finds what made the points, keeps to its prior where they say nothing, and gives the shipped constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from cost_models.constants import DEFAULT, PRIOR, SPREAD, Constants
from cost_models.setting import ServingEngine
from tuner.fitting import FITTED, fit, fit_all
from tuner.validate_predict import Comparison, compare, compare_left_out
from tuner.validate_rows import MeasuredRow, bundled_rows


@pytest.fixture(scope="module")
def rows() -> list[MeasuredRow]:
    return [row for row in bundled_rows() if row.used_for_fitting]


@pytest.fixture(scope="module")
def of_sglang(rows) -> list[MeasuredRow]:
    return [row for row in rows if row.engine is ServingEngine.SGLANG]


def test_at_most_twelve_constants_are_fitted():
    assert len(FITTED) == len(set(FITTED)) <= 12
    assert set(SPREAD) == {*FITTED, "vllm_overhead", "trtllm_overhead"}


def test_the_shipped_constants_are_those_that_the_bundled_points_give(rows):
    found = fit_all(rows)
    for name, spread in SPREAD.items():
        assert getattr(found.constants, name) == pytest.approx(getattr(DEFAULT, name), rel=0.01), name
        assert found.spread[name] == pytest.approx(spread, abs=0.02), name
    for name in set(vars_of(DEFAULT)) - set(SPREAD):
        assert getattr(found.constants, name) == getattr(DEFAULT, name), name


def predicted_times(rows: Sequence[MeasuredRow], constants: Constants) -> list[tuple[float, float]]:
    """Per output token and to first token, in seconds, as `tune validate` predicts them."""
    answers = compare(rows, constants=constants)
    return [(each.point.tpot_s, each.point.ttft_s) for each in answers if isinstance(each, Comparison)]


def vars_of(constants) -> list[str]:
    return list(type(constants).__dataclass_fields__)


def test_constants_that_made_the_points_are_found_again(of_sglang):
    """Points made with constants away from the prior; what they cannot tell stays near it."""
    truth = replace(PRIOR, expert_bandwidth=0.7, kernel_hopper_s=6e-6, kernel_blackwell_s=3e-6, eager_kernel_s=80e-6)
    made = [
        replace(row, tpot_s=tpot_s, ttft_s=ttft_s)
        for row, (tpot_s, ttft_s) in zip(of_sglang, predicted_times(of_sglang, truth), strict=True)
    ]
    found = fit(made).constants
    for name in ("expert_bandwidth", "kernel_hopper_s", "kernel_blackwell_s", "eager_kernel_s"):
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=0.08), name
    for (tpot_s, _), row in zip(predicted_times(made, found), made, strict=True):
        assert tpot_s == pytest.approx(row.tpot_s, rel=0.02)


def test_a_row_without_a_time_per_output_token_fits_nothing(of_sglang):
    alone = [replace(row, tpot_s=None, ttft_s=None, stated_output_tok_per_s=1.0) for row in of_sglang[:5]]
    found = fit([*of_sglang, *alone])
    assert found == fit(of_sglang)
    with pytest.raises(ValueError, match="at least one measured row"):
        fit(alone)


def test_one_stalled_campaign_does_not_move_the_others(of_sglang):
    usual = fit(of_sglang).constants
    slow = [replace(row, tpot_s=20 * row.tpot_s) if row.gpu_name == "B300" else row for row in of_sglang]
    moved = fit(slow).constants
    others = [row for row in of_sglang if row.gpu_name != "B300"]
    for (before, _), (after, _) in zip(predicted_times(others, usual), predicted_times(others, moved), strict=True):
        assert math.log(after / before) == pytest.approx(0, abs=0.06)


def test_a_pair_that_is_left_out_has_no_say_in_its_constants(of_sglang):
    """As `tune validate --leave-one-out` fits them."""
    pair = of_sglang[0].pair
    others = next(row for row in of_sglang if row.pair != pair)
    slow = [replace(row, tpot_s=3 * row.tpot_s) if row.pair == pair else row for row in of_sglang]

    def times(fitted_on: Sequence[MeasuredRow]) -> list[float]:
        answers = compare_left_out([of_sglang[0], others], lambda rows: fit(rows).constants, fitted_on)
        return [each.point.tpot_s for each in answers if isinstance(each, Comparison)]

    before, after = times(of_sglang), times(slow)
    assert before[0] == after[0]
    assert before[1] != after[1]


def test_nothing_measured_is_refused():
    with pytest.raises(ValueError, match="at least one measured row"):
        fit([])
