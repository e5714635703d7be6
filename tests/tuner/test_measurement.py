"""Figures of a rung from the timings of its requests."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from tuner.client_share import ClientShare
from tuner.climb import peak_passed
from tuner.measurement import Measurement, RequestTiming, Rung, relative_error, steady_window
from tuner.server_seen import ServerSeen


def request(start_s: float, end_s: float, **more: int) -> RequestTiming:
    return RequestTiming(
        start_s=start_s,
        first_token_s=start_s + 1.0,
        end_s=end_s,
        prompt_tokens=8,
        output_tokens=11,
        first_chunk_tokens=1,
        cached_tokens=more.get("cached_tokens", 0),
        retractions=more.get("retractions", 0),
    )


def test_the_last_requests_alone_do_not_lower_the_steady_figure() -> None:
    # Two places; the second stands empty from 22 on, while the first is busy until 33.
    requests = [request(0, 11), request(0, 11), request(11, 22), request(11, 22), request(22, 33)]
    rung = Rung.of(2, requests)
    assert steady_window(requests, 2) == (11, 22)
    assert rung.window_s == 11
    assert rung.output_tok_per_s == pytest.approx(2.0)
    assert rung.run_output_tok_per_s == pytest.approx(55 / 33)


def test_too_few_requests_have_no_steady_window() -> None:
    rung = Rung.of(2, [request(0, 11), request(0, 11), request(11, 22)])
    assert rung.window_s is None
    assert rung.output_tok_per_s == rung.run_output_tok_per_s == pytest.approx(33 / 22)


def test_the_error_is_that_of_waves_and_unknown_with_one() -> None:
    assert relative_error([request(0, 11), request(0, 12)], 2) == float("inf")
    assert relative_error([request(0, 11), request(0, 13), request(0, 13), request(0, 11)], 2) == 0.0
    assert relative_error([request(0, 10), request(0, 12)], 1) == pytest.approx(1 / 11)


def test_what_may_not_be_the_layout_s_own_is_said() -> None:
    rung = Rung.of(
        8,
        [request(0, 11, cached_tokens=5), request(0, 11, retractions=2)],
        client=ClientShare(core=0.97, late_p99_s=0.1),
        server=ServerSeen(samples=9, most_running=4, most_waiting=0, most_token_usage=0.5, generated_tokens=44),
    )
    assert len(rung.doubts) == 6
    assert not Rung.of(1, [request(0, 11)], client=ClientShare(core=0.2, late_p99_s=0.001)).doubts


def rungs(*rates: float) -> list[Rung]:
    """Of as many tokens in ever less time: `rates` in tokens per second."""
    return [Rung.of(n, [request(0, 11 / rate)]) for n, rate in enumerate(rates, start=1)]


def test_a_peak_is_passed_after_two_rungs_lower_by_more_than_noise() -> None:
    passed = peak_passed(rungs(1.0, 2.0, 1.8, 1.7))
    assert passed is not None
    assert passed.concurrency == 2
    assert peak_passed(rungs(1.0, 2.0, 1.8)) is None
    assert peak_passed(rungs(1.0, 2.0, 1.99, 1.98)) is None
    assert peak_passed([]) is None


def test_a_measurement_that_was_stored_before_the_steady_window_is_still_read() -> None:
    spread = {"mean": 1.0, "p50": 1.0, "p99": 2.0}
    rung = {
        "concurrency": 1,
        "num_requests": 4,
        "duration_s": 9.0,
        "output_tok_per_s": 5.0,
        "ttft_s": spread,
        "tpot_s": spread,
        "cached_tokens": 0,
    }
    stored = {"rungs": [rung], "simulated": False, "startup_s": 1.0, "kv_tokens": 9}
    read = TypeAdapter(Measurement).validate_python(stored)
    assert read.peak.output_tok_per_s == 5.0
    assert read.peak.run_output_tok_per_s is None
    assert read.peak.requests_per_s == pytest.approx(4 / 9)
    assert (read.rates, read.ended) == ((), "")


def test_requests_per_second_are_those_of_the_steady_window() -> None:
    # Two places and requests of 11 s: one ends every 5.5 s, which the last one alone does not change.
    requests = [request(0, 11), request(0, 11), request(11, 22), request(11, 22), request(22, 33)]
    assert Rung.of(2, requests).requests_per_s == pytest.approx(2 / 11)
