"""Where layouts stand, how sure that is, and which of them is measured again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from scipy import stats

from cost_models.estimate import predict
from cost_models.prediction import Prediction
from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.layout import Layout
from search_spaces.workload import Workload
from tuner.confirming import next_to_confirm
from tuner.objective import Objective
from tuner.outcome import Crashed, Interrupted
from tuner.record import Origin, TrialRecord
from tuner.report_judged import tie_line
from tuner.standing import finalists, is_tie, runner_up, standings

PEAK = Objective.PEAK_THROUGHPUT
A, B, C = (
    Layout(tp_size=8, ep_size=ep, mem_fraction_static=0.9, chunked_prefill_size=8192, cuda_graph_max_bs_decode=64)
    for ep in (1, 4, 8)
)


@cache
def prediction() -> Prediction:
    found = predict(load_model("kimi-k2.6"), parse_cluster("8xrtx-pro-6000"), A, Workload())
    assert isinstance(found, Prediction)
    return found


def record(number: int, layout: Layout, value: float | None, origin: Origin = Origin.SAMPLER) -> TrialRecord:
    return TrialRecord(
        number=number,
        requested=layout,
        effective=layout,
        origin=origin,
        outcome=Crashed(cause="x", stage="s", exit_code=1)
        if value is None
        else Interrupted(cause="stands for a value"),
        value=value,
        prediction=prediction(),
        command=(),
        duration_s=1.0,
    )


def records(values: dict[Layout, Sequence[float]]) -> list[TrialRecord]:
    pairs = [(layout, value) for layout, found in values.items() for value in found]
    return [record(i, layout, value) for i, (layout, value) in enumerate(pairs)]


def test_the_interval_is_student_s_t_on_logarithms_pooled_over_repeated_layouts() -> None:
    """The same by scipy's own: one mean, standard error s / sqrt(3), degrees of freedom of both layouts together."""
    a, b = (100.0, 102.0, 99.0), (90.0, 93.0, 91.0)
    best, second = standings(records({A: a, B: b}), PEAK)
    logs_a, logs_b = np.log(a), np.log(b)
    pooled = math.sqrt((logs_a.var(ddof=1) * 2 + logs_b.var(ddof=1) * 2) / 4)
    low, high = stats.t.interval(0.95, df=4, loc=logs_a.mean(), scale=pooled / math.sqrt(3))
    assert best.value == pytest.approx(math.exp(logs_a.mean()))
    assert best.interval == pytest.approx((math.exp(low), math.exp(high)))
    assert second.interval is not None
    assert second.interval[0] < second.value < second.interval[1]


def test_a_single_run_has_no_interval() -> None:
    assert [s.interval for s in standings(records({A: [100.0], B: [90.0, 91.0]}), PEAK)] == [
        None,
        pytest.approx((84.36, 97.08), abs=0.01),  # 12.706 standard errors of 0.55 %
    ]


def test_intervals_hold_what_they_promise() -> None:
    """Of a thousand made-up studies of two layouts of equal speed, about 5 % tell them apart."""
    rng = np.random.default_rng(5)
    apart = 0
    for _ in range(1000):
        runs = np.exp(rng.normal(5.0, 0.02, size=(2, 3)))
        apart += not is_tie(*standings(records({A: runs[0].tolist(), B: runs[1].tolist()}), PEAK))
    assert 30 <= apart <= 75


def test_a_tie_is_called_a_tie_and_a_difference_is_not() -> None:
    tied = standings(records({A: (100.0, 103.0, 98.0), B: (99.0, 101.0, 97.0)}), PEAK)
    assert is_tie(*tied)
    assert tie_line(*tied) == f"{A.label} and {B.label} tie: the difference is within the noise of 3 and 3 runs"
    clear = standings(records({A: (100.0, 100.5, 99.8), B: (95.0, 95.3, 94.9)}), PEAK)
    assert not is_tie(*clear)
    assert tie_line(*clear) == ""


def test_single_runs_closer_than_repeats_differ_tie() -> None:
    found = standings(records({A: [100.0], B: [98.0]}), PEAK)
    assert is_tie(*found)
    assert tie_line(*found).endswith("tie: the difference is within what single runs differ by")
    assert not is_tie(*standings(records({A: [100.0], B: [90.0]}), PEAK))


def test_a_value_of_nothing_stands_nowhere() -> None:
    (best,) = standings(records({A: [0.0, 0.0], B: [2.0]}), PEAK)
    assert best.requested == B
    assert finalists((best,), PEAK) == (best,)
    assert standings(records({A: [0.0]}), PEAK) == ()


def test_another_memory_fraction_is_no_runner_up() -> None:
    twin = A.changed(mem_fraction_static=0.8)
    found = standings(records({A: [100.0], twin: [99.0], B: [90.0]}), PEAK)
    second = runner_up(found)
    assert second is not None
    assert second.requested == B


def confirmed(
    values: dict[Layout, list[float]], runs: dict[Layout, list[float | None]], rounds: int = 2
) -> list[Layout]:
    """The order in which layouts are measured again. values: of the search; runs: what each further run will give."""
    found = records(values)  # type: ignore[arg-type]
    order = []
    while (layout := next_to_confirm(found, PEAK, rounds=rounds, may_run=lambda _: True)) is not None:
        order.append(layout)
        found.append(record(len(found), layout, runs[layout].pop(0), Origin.CONFIRMATION))
    return order


def test_finalists_are_measured_in_turn_as_often_as_asked() -> None:
    runs: dict[Layout, list[float | None]] = {A: [101.0, 99.0], B: [100.0, 98.5]}
    assert confirmed({A: [100.0], B: [99.0], C: [50.0]}, runs) == [A, B, A, B]


def test_two_runs_each_are_enough_where_they_tell_the_finalists_apart() -> None:
    assert confirmed({A: [100.0], B: [90.0]}, {A: [100.1], B: [90.1]}) == [A, B]


def test_a_leader_that_nobody_comes_near_is_measured_once_more() -> None:
    assert confirmed({A: [100.0], B: [50.0]}, {A: [101.0]}) == [A]


def test_a_leader_that_falls_back_makes_room_for_the_next() -> None:
    runs: dict[Layout, list[float | None]] = {A: [60.0], B: [99.0, 100.0], C: [97.0, 98.0]}
    order = confirmed({A: [110.0], B: [100.0], C: [98.0]}, runs)
    assert order[:2] == [A, B]
    assert C in order


def test_a_finalist_that_fails_when_measured_again_is_not_tried_for_ever() -> None:
    runs: dict[Layout, list[float | None]] = {A: [None, None], B: [99.0, 98.0]}
    assert confirmed({A: [100.0], B: [99.0]}, runs) == [A, B, A, B]


def test_no_confirmation_where_none_is_asked_for() -> None:
    assert confirmed({A: [100.0], B: [99.0]}, {}, rounds=0) == []
