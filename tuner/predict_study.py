"""The finished trials of a study, as measurements that the cost model can be calibrated by."""

from __future__ import annotations

from collections.abc import Iterable

from cost_models.calibration import Observation
from search_spaces.errors import UserError
from search_spaces.hardware import Cluster
from search_spaces.model import Model
from search_spaces.workload import Workload
from tuner.outcome import measurement_of
from tuner.record import TrialRecord
from tuner.study_store import StoredStudy, stored_study


def measured_in_study(
    storage_url: str, name: str, model: Model, cluster: Cluster, workload: Workload
) -> tuple[tuple[Observation, ...], bool]:
    """Every rung of every finished trial, and whether they were simulated. Raises UserError.

    A study of another model, on other GPUs or under another load says nothing of these.
    """
    study = stored_study(storage_url, name)
    _refuse_other(study, model, cluster, workload)
    return observations_of(study.records), any(_is_simulated(record) for record in study.records)


def observations_of(records: Iterable[TrialRecord]) -> tuple[Observation, ...]:
    return tuple(
        Observation(
            layout=record.effective,
            concurrency=rung.concurrency,
            tpot_s=rung.tpot_s.mean,
            ttft_s=rung.ttft_s.mean,
        )
        for record in records
        if (measurement := measurement_of(record.outcome)) is not None
        for rung in measurement.rungs
    )


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
