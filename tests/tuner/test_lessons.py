"""What an end asks to be tried next."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.layout import Layout
from search_spaces.sglang.versions import NEWEST
from search_spaces.space import enumerate_space
from search_spaces.verdict import Stage
from search_spaces.workload import Workload
from tuner.engine import simulated
from tuner.fault import Fault
from tuner.lessons import Lesson, lessons
from tuner.objective import Objective
from tuner.outcome import Crashed, Direction, Environment, Hung, Outcome, OutOfMemory
from tuner.record import Origin, TrialRecord
from tuner.request import Request
from tuner.sifting import Sifted, sift

CLUSTER = parse_cluster("8xrtx-pro-6000")


@cache
def sifted() -> Sifted:
    engine = simulated(CLUSTER, NEWEST, because="a test", clock_scale=1e6)
    request = Request(
        objective=Objective.PEAK_THROUGHPUT,
        model=load_model("kimi-k2.6"),
        model_path="m",
        cluster=CLUSTER,
        workload=Workload(),
        engine=engine,
        storage_url="",
        tracking_uri="",
        artifact_root="",
        work_dir="",
        trials=4,
    )
    return sift(request, enumerate_space(request.model, CLUSTER, NEWEST, all_reduce_paths=True))


def split(**sizes: int) -> list[Layout]:
    """The layouts of one split that fit, smallest memory fraction first."""
    found = [
        layout
        for layout in sifted().fitting
        if replace(layout, mem_fraction_static=None) == Layout(**sizes)  # type: ignore[arg-type]
    ]
    return sorted(found, key=lambda layout: layout.mem_fraction_static or 0.0)


def record(layout: Layout, outcome: Outcome, origin: Origin = Origin.SAMPLER, number: int = 0) -> TrialRecord:
    fitting = sifted().fitting[layout]
    return TrialRecord(
        number=number,
        requested=layout,
        effective=fitting.effective,
        origin=origin,
        outcome=outcome,
        value=None,
        prediction=fitting.prediction,
        command=(),
        duration_s=1.0,
    )


def found(*records: TrialRecord) -> list[Lesson]:
    return lessons(records, sifted().fitting)


def no_pool(least_fraction: float | None) -> OutOfMemory:
    return OutOfMemory(
        cause="Loaded weights leave no GPU memory for the KV cache",
        stage=Stage.KV_POOL,
        direction=Direction.RAISE_FRACTION,
        exit_code=137,
        least_fraction=least_fraction,
    )


def test_the_fraction_that_the_engine_names_is_tried_next_with_the_same_split() -> None:
    smallest, *larger = split(tp_size=8, ep_size=8)
    least = smallest.mem_fraction_static
    assert least is not None
    (lesson,) = found(record(smallest, no_pool(least + 0.001)))
    assert lesson.layout == larger[0]
    assert lesson.origin is Origin.ADVISED
    assert lesson.told == (
        f"trial 0: the engine wants a memory fraction above {least + 0.001:g}: {larger[0].label} is tried"
    )


def test_it_is_tried_once_and_only_where_the_space_has_it() -> None:
    smallest, *larger = split(tp_size=8, ep_size=8)
    died = record(smallest, no_pool(0.5))
    assert found(died, record(larger[0], no_pool(0.99), Origin.ADVISED, 1)) == []
    assert found(record(smallest, no_pool(0.999))) == []
    assert found(record(smallest, no_pool(None))) == []
    assert found(died, record(larger[0], Crashed(cause="x", stage="s", exit_code=1), number=1)) == []


@pytest.mark.parametrize(
    "end",
    [
        Hung(stage="warm-up", silent_s=1800.0, fault=Fault.COMPILING),
        Crashed(cause="DeepEP error: CPU recv timeout", stage="concurrency 1", exit_code=137, fault=Fault.EXCHANGE),
    ],
)
def test_an_end_that_may_pass_has_its_layout_started_once_more(end: Outcome) -> None:
    layout = split(tp_size=8, ep_size=8)[0]
    (lesson,) = found(record(layout, end))
    assert (lesson.layout, lesson.origin) == (layout, Origin.REPEATED)
    assert found(record(layout, end), record(layout, end, Origin.REPEATED, 1)) == []


def test_other_ends_are_not_repeated() -> None:
    layout = split(tp_size=8, ep_size=8)[0]
    crashed = Crashed(cause="x", stage="concurrency 1", exit_code=137, fault=Fault.ILLEGAL_ACCESS)
    environment = Environment(cause="x", stage="launch", exit_code=1)
    assert found(record(layout, crashed), record(layout, environment)) == []
