"""Known answers and laws of the Gaussian process on the residual."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from tuner.residual_process import expected_improvement, posterior, success_probability

LINE = np.arange(8.0)[:, None]


def test_with_nothing_observed_the_prediction_stands_everywhere_alike() -> None:
    believed = posterior(LINE, np.array([], dtype=int), np.array([]), noise=0.03)
    assert np.all(believed.mean == 0.0)
    assert np.ptp(believed.std) == 0.0
    assert believed.std[0] > 0.5


def test_an_offset_common_to_all_trials_is_learnt_for_the_untried_too() -> None:
    believed = posterior(LINE, np.array([0, 3, 6]), np.array([0.4, 0.4, 0.4]), noise=0.03)
    assert believed.mean == pytest.approx(np.full(8, 0.4), abs=0.03)


def test_what_was_measured_is_believed_within_the_noise_and_known_best() -> None:
    observed = np.array([0, 2, 5])
    residuals = np.array([0.3, -0.2, 0.1])
    believed = posterior(LINE, observed, residuals, noise=0.01)
    assert believed.mean[observed] == pytest.approx(residuals, abs=0.03)
    untried = np.setdiff1d(np.arange(8), observed)
    assert believed.std[observed].max() < believed.std[untried].min()


def test_repeats_of_one_layout_are_averaged() -> None:
    believed = posterior(LINE, np.array([2, 2, 2, 2, 5]), np.array([0.1, 0.3, 0.1, 0.3, 0.0]), noise=0.1)
    assert believed.mean[2] == pytest.approx(0.2, abs=0.06)


def test_expected_improvement_is_the_published_formula() -> None:
    """Jones, Schonlau and Welch (1998), equation 15, by numerical integration."""
    mean, std, best = 0.2, 0.5, 0.4
    y = np.linspace(best, mean + 12 * std, 200_001)
    integral = np.trapezoid((y - best) * norm.pdf(y, mean, std), y)
    gain = expected_improvement(np.array([mean]), np.array([std]), best)
    assert gain[0] == pytest.approx(integral, rel=1e-6)


@given(st.floats(-2, 2), st.floats(0.01, 2), st.floats(-2, 2))
def test_expected_improvement_is_never_negative_and_grows_with_the_mean(mean: float, std: float, best: float) -> None:
    gain = expected_improvement(np.array([mean, mean + 0.1]), np.array([std, std]), best)
    assert gain[0] >= -1e-12
    assert gain[1] > gain[0] or gain[1] == pytest.approx(gain[0], abs=1e-12)


@given(st.lists(st.tuples(st.integers(0, 7), st.sampled_from([0.0, 1.0])), max_size=12))
def test_the_chance_of_success_is_a_probability_and_never_nought(tries: list[tuple[int, float]]) -> None:
    tried = np.array([i for i, _ in tries], dtype=int)
    chance = success_probability(LINE, tried, np.array([w for _, w in tries]))
    assert np.all((chance > 0) & (chance <= 1 + 1e-12))


def test_a_failure_weighs_on_its_neighbours_most() -> None:
    chance = success_probability(LINE, np.array([0]), np.array([0.0]))
    assert np.all(np.diff(chance) >= 0)
    assert chance[0] == pytest.approx(1 / 3)
    assert chance[-1] > 0.99
