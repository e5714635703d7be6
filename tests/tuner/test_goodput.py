"""Limits on waiting, and the most requests per second at which they hold."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from cost_models.prediction import Interval, Prediction, ServingPoint
from search_spaces.errors import UserError
from tuner.goodput import Goodput
from tuner.latency_limits import limits_of, share_within
from tuner.measurement import Measurement, RateRung, RequestTiming, Rung
from tuner.objective import Objective, aim_of
from tuner.outcome import Environment, Measured, StoppedEarly

GOODPUT = Goodput(limits=limits_of("ttft_p99=2s,tpot_p50=50ms"), output_tokens=11)


def request(ttft_s: float, tpot_s: float = 0.04, start_s: float = 0.0, error: str = "") -> RequestTiming:
    return RequestTiming(
        start_s=start_s,
        first_token_s=start_s + ttft_s,
        end_s=start_s + ttft_s + 10 * tpot_s,
        prompt_tokens=8,
        output_tokens=11,
        first_chunk_tokens=1,
        cached_tokens=0,
        error=error,
    )


def rung(concurrency: int, ttft_s: float) -> Rung:
    return Rung.of(concurrency, [request(ttft_s)] * concurrency)


def measured(*rungs: Rung, rates: tuple[RateRung, ...] = ()) -> Measured:
    return Measured(measurement=Measurement(rungs=rungs, simulated=False, startup_s=1.0, kv_tokens=1, rates=rates))


def test_limits_are_read_with_their_units_and_told_again() -> None:
    ttft, tpot = GOODPUT.limits
    assert (ttft.metric, ttft.statistic, ttft.most_s) == ("ttft", "p99", 2.0)
    assert (tpot.metric, tpot.statistic, tpot.most_s) == ("tpot", "p50", 0.05)
    assert GOODPUT.limits_told == "ttft_p99=2s,tpot_p50=50ms"
    assert limits_of(GOODPUT.limits_told) == GOODPUT.limits
    near = limits_of("ttft_p99=1.2345678s,tpot_p50=0.001ms")
    assert limits_of(",".join(map(str, near))) == near


def test_the_narrowest_limits_still_promise_something() -> None:
    narrow = Goodput(limits=limits_of("ttft_p99=0.001ms"), output_tokens=11)
    assert narrow.promise(prediction((1, 1e3, 0.06, 1e-3))) > 0.0


@pytest.mark.parametrize(
    "words",
    [
        *("", "ttft_p99", "ttft_p99=2", "ttft_p98=2s", "e2e_p99=2s", "ttft_p99=0s", "ttft=2s"),
        *(f"ttft_p99={'9' * 400}s", f"ttft_p99=0.{'0' * 319}1s", "ttft_p99=0.0009ms", "ttft_p99=1000001s"),
        "ttft_p99=\uff12s",
    ],
)
def test_limits_without_a_unit_or_of_an_unknown_name_are_refused(words: str) -> None:
    with pytest.raises(UserError):
        limits_of(words)


def test_naming_a_limit_twice_is_refused() -> None:
    with pytest.raises(UserError, match="twice"):
        limits_of("ttft_p99=2s,ttft_p99=3s")


def test_the_value_is_the_most_requests_per_second_of_the_rungs_that_hold() -> None:
    outcome = measured(rung(1, 0.6), rung(4, 1.6), rung(16, 2.1))
    # Four requests of 1.6 + 10 * 0.04 seconds each, side by side.
    assert GOODPUT.value_of(outcome) == pytest.approx(4 / 2.0)
    best = GOODPUT.best_of(outcome.measurement)
    assert isinstance(best, Rung)
    assert best.concurrency == 4


def test_limits_that_hold_nowhere_are_worth_nothing_and_an_unfinished_ladder_says_nothing() -> None:
    outcome = measured(rung(1, 2.5), rung(4, 3.0))
    assert GOODPUT.value_of(outcome) == 0.0
    assert GOODPUT.value_of(StoppedEarly(measurement=outcome.measurement, reason="the budget ended")) is None
    assert GOODPUT.value_of(Environment(cause="port", stage="launch", exit_code=None)) is None


def test_on_a_ladder_of_rates_it_is_the_highest_rate_and_none_at_which_requests_fail() -> None:
    def at(rate: float, ttft_s: float, **last: Any) -> RateRung:
        return RateRung.of(rate, [request(ttft_s, start_s=i) for i in range(9)] + [request(ttft_s, start_s=9, **last)])

    outcome = measured(rung(1, 0.1), rates=(at(1.0, 0.1), at(2.0, 0.3), at(4.0, 0.5, error="HTTP 500"), at(8.0, 9.0)))
    assert GOODPUT.value_of(outcome) == 2.0
    failing = outcome.measurement.rates[2]
    assert (failing.num_requests, failing.num_failed) == (10, 1)
    assert failing.doubts == ("1 of 10 requests failed: HTTP 500",)


def sent_at(rate: float, ends_per_s: float, count: int = 240) -> RateRung:
    """Requests sent evenly, each of which takes at least a second; only so many end in a second, in turn."""
    ends_s = [max(1.0 + i / rate, (i + 1) / ends_per_s) for i in range(count)]
    timings = [
        RequestTiming(
            start_s=i / rate,
            first_token_s=end_s - 0.4,
            end_s=end_s,
            prompt_tokens=8,
            output_tokens=11,
            first_chunk_tokens=1,
            cached_tokens=0,
        )
        for i, end_s in enumerate(ends_s)
    ]
    return RateRung.of(rate, timings)


def test_a_rate_that_the_server_does_not_keep_up_with_does_not_hold_however_lax_the_limits() -> None:
    lax = Goodput(limits=limits_of("ttft_p99=1000s"), output_tokens=11)
    kept, burst, beyond = sent_at(4.0, 5.0), sent_at(1e3, 5.0), sent_at(8.0, 5.0)
    assert [lax.holds(each) for each in (kept, burst, beyond)] == [True, False, False]
    outcome = measured(rung(1, 0.1), rates=(kept, beyond, burst))
    assert lax.value_of(outcome) == 4.0
    assert kept.doubts == ()
    assert kept.ended_per_s == pytest.approx(4.0, rel=0.05)
    assert beyond.ended_per_s == pytest.approx(5.0, rel=0.05)
    (doubt,) = beyond.doubts
    assert doubt == (
        "the server does not keep up: in 14.9 s 120 requests were sent and 75 ended, those in flight grew from 46 to 91"
    )


def test_a_rate_in_a_study_that_did_not_ask_whether_it_was_kept_up_with_is_still_read() -> None:
    rate = dataclasses.replace(sent_at(4.0, 5.0), keeping_up=None)
    assert rate.is_kept_up
    assert rate.ended_per_s is None


def test_a_rate_of_which_every_request_failed_has_no_figures() -> None:
    with pytest.raises(ValueError, match="no request succeeded"):
        RateRung.of(1.0, [request(0.1, error="HTTP 500")])


def test_the_share_within_counts_requests_that_keep_every_limit() -> None:
    requests = [request(0.1), request(2.5), request(0.1, tpot_s=0.06), request(0.1, error="HTTP 500")]
    assert share_within(requests, GOODPUT.limits) == 0.25
    assert share_within(requests, ()) is None


def prediction(*points: tuple[int, float, float, float]) -> Prediction:
    any_interval = Interval(low=0.0, high=1.0)
    served = tuple(
        ServingPoint(
            concurrency=concurrency,
            ttft_s=ttft_s,
            tpot_s=tpot_s,
            output_tok_per_s=rate,
            ttft_interval_s=any_interval,
            tpot_interval_s=any_interval,
            output_tok_per_s_interval=any_interval,
        )
        for concurrency, ttft_s, tpot_s, rate in points
    )
    found = object.__new__(Prediction)  # the objective looks at the points alone
    object.__setattr__(found, "points", served)
    return found


def test_a_prediction_promises_the_best_point_within_limits_and_less_the_farther_all_are_from_it() -> None:
    some = prediction((1, 0.1, 0.02, 40.0), (4, 0.5, 0.04, 110.0), (16, 3.0, 0.06, 300.0))
    assert GOODPUT.predicted_by(some) == GOODPUT.promise(some) == pytest.approx(10.0)
    near, far = prediction((1, 0.1, 0.06, 22.0)), prediction((1, 0.1, 0.12, 22.0))
    assert GOODPUT.predicted_by(near) == 0.0
    assert 2.0 > GOODPUT.promise(near) > GOODPUT.promise(far) > 0.0
    by_rate = Goodput(limits=GOODPUT.limits, output_tokens=11, highest_rate=4.0)
    assert by_rate.predicted_by(some) == 4.0


def test_goodput_needs_limits_and_others_take_none() -> None:
    goodput = aim_of("goodput", "ttft_p99=2s", output_tokens=512, request_rates=(1.0, 2.0))
    assert goodput == Goodput(limits=limits_of("ttft_p99=2s"), output_tokens=512, highest_rate=2.0)
    assert goodput.identity != aim_of("goodput", "ttft_p99=3s", output_tokens=512, request_rates=()).identity
    assert aim_of("c1-latency", None, output_tokens=2, request_rates=()) is Objective.C1_LATENCY
    for word, slo in (("goodput", None), ("peak_throughput", "ttft_p99=2s"), ("fastest", None)):
        with pytest.raises(UserError):
            aim_of(word, slo, output_tokens=2, request_rates=())
