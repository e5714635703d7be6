"""Whether the number in flight grows by more than noise."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.keeping_up import KeepingUp


def served(rate: float, per_s: float, seconds: float, seed: int) -> KeepingUp:
    """Poisson arrivals at one server, which takes them in turn for equal times."""
    arrivals_s = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, size=round(rate * seconds)))
    ends_s, free_s = [], 0.0
    for arrival_s in arrivals_s:
        free_s = max(free_s, arrival_s) + 1 / per_s
        ends_s.append(free_s)
    return KeepingUp.of(arrivals_s.tolist(), ends_s)


@pytest.mark.parametrize("load", [0.2, 0.5, 0.8])
def test_a_queue_with_room_is_kept_up_with_whatever_the_arrivals(load: float) -> None:
    kept = sum(served(20.0 * load, 20.0, 60.0, seed).is_kept_up for seed in range(100))
    assert kept >= 90


@pytest.mark.parametrize("load", [1.2, 2.0, 50.0])
def test_a_queue_that_gets_more_than_it_can_do_is_not(load: float) -> None:
    assert not any(served(20.0 * load, 20.0, 60.0, seed).is_kept_up for seed in range(100))


def test_near_the_edge_it_is_blunt() -> None:
    found = {
        load: sum(not served(20.0 * load, 20.0, 60.0, seed).is_kept_up for seed in range(100)) for load in (0.9, 1.1)
    }
    assert found == {0.9: 13, 1.1: 91}


def test_places_without_end_keep_up_however_long_a_request_takes_within_half_of_the_sending() -> None:
    rng = np.random.default_rng(0)
    kept = 0
    for _ in range(100):
        starts_s = np.cumsum(rng.exponential(0.1, size=600))
        kept += KeepingUp.of(starts_s.tolist(), (starts_s + rng.uniform(5.0, 25.0, size=600)).tolist()).is_kept_up
    assert kept >= 95


def test_what_was_sent_and_did_not_end_is_in_flight() -> None:
    seen = KeepingUp.of([0.0, 1.0, 2.0, 3.0, 4.0], [1.5, 2.5, 9.0, 9.0, 9.0])
    assert seen == KeepingUp(span_s=2.0, sent=2, ended=1, in_flight_before=2, in_flight_after=3)
    assert seen.doubts == ()


def test_one_request_says_nothing_against_a_server() -> None:
    assert KeepingUp.of([3.0], [9.0]).is_kept_up
