"""The finished trials of a study, as measurements that the cost model can be calibrated by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cost_models.calibration import Observation
from search_spaces.errors import UserError
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.workload import Workload
from tuner.objective import Objective
from tuner.outcome import Crashed, Direction, Hung, Illegal, Outcome, OutOfMemory, WrongAnswers, measurement_of
from tuner.predict_trials import Died, MeasuredBest, Trials, shape_of
from tuner.record import TrialRecord
from tuner.standing import standings
from tuner.study_store import StoredStudy, stored_study

_EVERY_FRACTION = (0.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStudy:
    """observations: every rung of every finished trial. is_simulated: whether a simulated server gave any."""

    observations: tuple[Observation, ...]
    trials: Trials
    is_simulated: bool


def measured_in_study(storage_url: str, name: str, model: Model, cluster: Cluster, workload: Workload) -> MeasuredStudy:
    """Raises UserError. A study of another model, on other GPUs or under another load says nothing of these."""
    study = stored_study(storage_url, name)
    _refuse_other(study, model, cluster, workload)
    return MeasuredStudy(
        observations=observations_of(study.records),
        trials=trials_of(study.records),
        is_simulated=any(_is_simulated(record) for record in study.records),
    )


def observations_of(records: Iterable[TrialRecord]) -> tuple[Observation, ...]:
    return tuple(
        Observation(
            layout=record.effective,
            concurrency=rung.concurrency,
            tpot_s=rung.tpot_s.mean,
            ttft_s=rung.ttft_s.mean,
            # Without a steady window it is that of the whole run, in which the last requests alone count.
            output_tok_per_s=None if rung.window_s is None else rung.output_tok_per_s,
        )
        for record in records
        if (measurement := measurement_of(record.outcome)) is not None
        for rung in measurement.rungs
    )


def trials_of(records: Sequence[TrialRecord]) -> Trials:
    """A layout that was measured once did not die, whatever became of its other trials."""
    measured = frozenset(r.effective for r in records if measurement_of(r.outcome) is not None)
    shapes = {shape_of(layout) for layout in measured}
    died: dict[Layout, Died] = {}
    for record in records:
        how = _how(record.outcome)
        layout = record.effective
        if how is None or layout in measured:
            continue
        before = died.get(layout)
        dead = _dead_fractions(record.outcome, layout, shape_works=shape_of(layout) in shapes)
        died[layout] = Died(
            requested=record.requested,
            effective=layout,
            how=how,
            trials=(*(() if before is None else before.trials), record.number),
            dead=dead if before is None else (min(dead[0], before.dead[0]), max(dead[1], before.dead[1])),
        )
    return Trials(measured=measured, died=tuple(died.values()), standings=_standings(records))


def _how(outcome: Outcome) -> str | None:
    """None where the end says nothing of the layout, or was no death."""
    match outcome:
        case OutOfMemory():
            return f"out of memory at {outcome.stage}"
        case Illegal():
            return f"refused at {outcome.stage}"
        case Crashed():
            return f"crashed at {outcome.stage}"
        case Hung():
            return f"hung at {outcome.stage}"
        case WrongAnswers():
            return "wrong answers"
        case _:
            return None


def _dead_fractions(outcome: Outcome, layout: Layout, *, shape_works: bool) -> tuple[float, float]:
    """Of which memory fractions of its shape such an end speaks. shape_works: another one was measured."""
    own = layout.mem_fraction_static
    if own is None:
        return _EVERY_FRACTION
    if isinstance(outcome, OutOfMemory):
        match outcome.direction:
            case Direction.LOWER_FRACTION:
                return own, 1.0
            case Direction.RAISE_FRACTION:
                return 0.0, own
            case Direction.SPLIT_FURTHER | Direction.FEWER_REQUESTS | Direction.MORE_HOST_MEMORY:
                pass
    return (own, own) if shape_works else _EVERY_FRACTION


def _standings(records: Sequence[TrialRecord]) -> dict[Objective, tuple[MeasuredBest, ...]]:
    """By each objective, whichever the study had."""
    found = {}
    for objective in Objective:
        by_it = standings([replace(each, value=objective.value_of(each.outcome)) for each in records], objective)
        found[objective] = tuple(
            MeasuredBest(
                requested=each.requested, value=each.value, trials=tuple(record.number for record in each.records)
            )
            for each in by_it
        )
    return found


def _is_simulated(record: TrialRecord) -> bool:
    measurement = measurement_of(record.outcome)
    return measurement is not None and measurement.simulated


def _refuse_other(study: StoredStudy, model: Model, cluster: Cluster, workload: Workload) -> None:
    asked = f"{model.name} on {cluster.name}"
    if study.asked and study.asked != asked:
        raise UserError(
            f"study {study.name!r} measured {study.asked}, not {asked}: say --model and --cluster as it does"
        )
    load = {"input_tokens": workload.input_tokens, "output_tokens": workload.output_tokens}
    for name, value in load.items():
        if study.load.get(name, value) != value:
            raise UserError(
                f"study {study.name!r} was measured with {name} {study.load[name]}, not {value}: say "
                f"--{name.replace('_', '-')} {study.load[name]}"
            )
