"""The study as Optuna keeps it: opened, settled, asked, told, and read back as trial records.

The record of each trial is kept whole as a user attribute, so that a study can be reported, resumed and
mined for measurements from the storage alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState
from pydantic import ValidationError
from sqlalchemy import event
from sqlalchemy.engine import Engine as SqlEngine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from search_spaces.errors import UnknownNameError, UserError
from search_spaces.layout import Layout
from tuner.correctness import Reference, reference_from_json, reference_to_json
from tuner.outcome import (
    Crashed,
    Environment,
    Hung,
    Illegal,
    Interrupted,
    Measured,
    Outcome,
    OutOfMemory,
    StoppedEarly,
    WrongAnswers,
    measurement_of,
)
from tuner.record import Origin, TrialRecord, from_json, to_json
from tuner.request import Request
from tuner.sampling import DIRECTION_ATTR, OUTCOME_ATTR, LayoutSampler

CONTEXT_ATTR = "context"
RECORD_ATTR = "record"
REFERENCE_ATTR = "reference answers"
ORIGIN_ATTR = "origin"
FEASIBLE = "fits and works"
UNKNOWN_SHORTFALL = 1.0
KILLED = Interrupted(cause="the tuner was killed during this trial")
"""How a trial is settled whose tuner was gone. It counts as a try: the layout may have had a part in it."""
_SQLITE = "sqlite:///"
_GIB = 2**30


def open_storage(url: str) -> RDBStorage:
    """SQLite stores get a write-ahead log: readers see a study while it runs, and a trial costs
    fewer waits for the disk. Raises UserError when the store cannot be opened or written."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if url.startswith(_SQLITE):
        folder = Path(url.removeprefix(_SQLITE)).parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot create the folder of the study storage {folder}: {error.strerror}") from None
        if not os.access(folder, os.W_OK):
            raise UserError(f"the study storage {folder} is not writable")
    try:
        storage = RDBStorage(url, engine_kwargs={"connect_args": {"timeout": 60}} if _is_sqlite(url) else None)
    except Exception as error:  # SQLAlchemy, alembic and drivers each have their own
        raise UserError(f"cannot open the study storage {without_password(url)}: {_first_line(error)}") from error
    if _is_sqlite(url):
        _use_write_ahead_log(storage.engine)
    return storage


def without_password(url: str) -> str:
    """A storage URL as it may be shown."""
    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return url


def _is_sqlite(url: str) -> bool:
    return url.startswith("sqlite")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _use_write_ahead_log(engine: SqlEngine) -> None:
    def set_pragmas(connection: Any, _record: object) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")

    event.listen(engine, "connect", set_pragmas)
    engine.dispose()  # so that the connection opened before the listener is not used again


class StudyStore:
    """One study in a storage."""

    def __init__(self, request: Request, sampler: LayoutSampler) -> None:
        self._request = request
        self._sampler = sampler
        self._storage = open_storage(request.storage_url)
        objective = request.objective
        try:
            existing = {s.study_name: s for s in optuna.get_all_study_summaries(self._storage)}
        except (StorageInternalError, SQLAlchemyError) as error:
            shown = without_password(request.storage_url)
            raise UserError(
                f"the study storage {shown} cannot be read, it may be damaged: {_first_line(error)}"
            ) from None
        self.resumed = request.study in existing
        if self.resumed:
            attrs = existing[request.study].user_attrs
            asked = (request.context_key, objective.identity, request.space_key)
            if (attrs.get(CONTEXT_ATTR), attrs.get("objective"), attrs.get("space")) != asked:
                raise UserError(
                    f"study {request.study!r} exists for another question (objective {attrs.get('objective')}, "
                    f"{attrs.get('asked', 'unknown')}, or another load, engine, space of layouts or definition of its "
                    "figures); "
                    "give this one another --study name"
                )
        self._study = optuna.create_study(
            study_name=request.study,
            storage=self._storage,
            sampler=sampler,
            pruner=optuna.pruners.NopPruner(),
            direction="maximize" if objective.maximise else "minimize",
            load_if_exists=True,
        )
        if not self.resumed:
            self._study.set_user_attr(CONTEXT_ATTR, request.context_key)
            self._study.set_user_attr("objective", objective.identity)
            self._study.set_user_attr("space", request.space_key)
            self._study.set_user_attr("asked", f"{request.model.name} on {request.cluster.name}")
            self._study.set_user_attr("load", asdict(request.workload) | {"mix": request.mix.words})
            self._study.set_user_attr("figures", request.mix.figures)
        self._distributions = sampler.distributions

    def settle(self) -> list[TrialRecord]:
        """Ends every trial that a killed tuner left running, as interrupted. Returns their records."""
        settled = []
        for t in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            # A finished trial takes no more attributes: they are written first.
            self._storage.set_trial_user_attr(t._trial_id, OUTCOME_ATTR, "killed")  # noqa: SLF001
            record = _record_of(t)
            if record is not None:
                record = replace(record, outcome=KILLED)
                self._storage.set_trial_user_attr(t._trial_id, RECORD_ATTR, to_json(record))  # noqa: SLF001
                settled.append(record)
            self._study.tell(t.number, state=TrialState.FAIL)
        return settled

    def enqueue(self, layout: Layout, origin: Origin) -> bool:
        """Has `layout` asked for before the sampler chooses; nothing, and False, where it waits already."""
        params = self._sampler.params_of(layout)
        waiting = self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        if any(t.system_attrs.get("fixed_params") == params for t in waiting):
            return False
        self._study.enqueue_trial(params, user_attrs={ORIGIN_ATTR: str(origin)})
        return True

    def ask(self) -> tuple[Trial, Layout, Origin] | None:
        """The next trial, its layout and why it is tried; None when every candidate has been tried."""
        trials = self._study.get_trials(deepcopy=False)
        waiting = any(t.state is TrialState.WAITING for t in trials)
        if not waiting and not self._sampler.open_candidates(trials):
            return None
        trial = self._study.ask()
        for name, distribution in self._distributions.items():
            trial.suggest_categorical(name, distribution.choices)
        layout = self._sampler.layout_of(trial.params)
        if origin := trial.user_attrs.get(ORIGIN_ATTR):
            return trial, layout, Origin(origin)
        tried_before = any(t.number != trial.number and t.params == trial.params for t in trials)
        return trial, layout, Origin.RETRY if tried_before else Origin.SAMPLER

    def keep(self, trial: Trial, record: TrialRecord) -> None:
        """Writes down a running trial, so that what it was is known even if the tuner is killed."""
        trial.set_user_attr(RECORD_ATTR, to_json(record))

    def tell(self, trial: Trial, record: TrialRecord) -> None:
        """A value, pruned, infeasible with how much, or failed for the environment."""
        trial.set_user_attr(RECORD_ATTR, to_json(record))
        for name, value in _ended(record.outcome).items():
            trial.set_user_attr(name, value)
        measurement = measurement_of(record.outcome)
        if measurement is not None and self._request.objective.maximise:
            for rung in measurement.rungs:
                trial.report(rung.output_tok_per_s, rung.concurrency)
        state, shortfall = _told(record.outcome, record.value)
        if shortfall is not None:
            trial.set_constraint(FEASIBLE, shortfall)
        self._study.tell(trial, record.value if state is TrialState.COMPLETE else None, state=state)

    def keep_reference(self, reference: Reference) -> None:
        """Writes down the answers that the study's others are compared with."""
        self._study.set_user_attr(REFERENCE_ATTR, reference_to_json(reference))

    def reference(self) -> Reference | None:
        """The study's own, else that of another study of its context, a baseline's if there is one."""
        own = _reference_of(self._study.user_attrs)
        if own is not None:
            return own
        others = (
            _reference_of(summary.user_attrs)
            for summary in optuna.get_all_study_summaries(self._storage)
            if summary.user_attrs.get(CONTEXT_ATTR) == self._request.context_key
        )
        found = [each for each in others if each is not None]
        return next((each for each in found if each.is_baseline), found[0] if found else None)

    def records(self) -> list[TrialRecord]:
        """Of every trial that ended, in the order in which they were asked for."""
        ended = self._study.get_trials(deepcopy=False)
        return [r for t in ended if t.state.is_finished() and (r := _record_of(t)) is not None]

    def adopt(self) -> list[TrialRecord]:
        """Takes over, once, what trials of other studies on this store found out in the same context.

        Measurements are read for this study's objective; ends without one (illegal, out of memory, ...) hold for
        any objective. Returns the records newly taken over.
        """
        answered = {r.requested for r in self.records() if r.is_conclusive}
        adopted = []
        taken_already = {r.reused_from for r in self.records()}
        for source, record in self._elsewhere():
            value = self._request.objective.value_of(record.outcome)
            number = len(self._study.get_trials(deepcopy=False))
            taken = replace(
                record, number=number, origin=Origin.REUSED, value=value, reused_from=source, duration_s=0.0
            )
            known = record.requested in answered or source in taken_already
            if known or not self._sampler.knows(record.requested) or not taken.is_conclusive:
                continue
            state, shortfall = _told(taken.outcome, value)
            self._study.add_trial(
                optuna.trial.create_trial(
                    state=state,
                    params=self._sampler.params_of(record.requested),
                    distributions=dict(self._distributions),
                    value=value,
                    constraints=None if shortfall is None else {FEASIBLE: shortfall},
                    user_attrs={RECORD_ATTR: to_json(taken), **_ended(taken.outcome)},
                )
            )
            adopted.append(taken)
        return adopted

    def _elsewhere(self) -> Iterator[tuple[str, TrialRecord]]:
        for summary in optuna.get_all_study_summaries(self._storage):
            if summary.study_name == self._request.study:
                continue
            if summary.user_attrs.get(CONTEXT_ATTR) != self._request.context_key:
                continue
            other = optuna.load_study(study_name=summary.study_name, storage=self._storage)
            for t in other.get_trials(deepcopy=False):
                record = _record_of(t)
                if t.state.is_finished() and record is not None and not record.reused_from:
                    yield f"{summary.study_name}#{t.number}", record


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStudy:
    """asked: model and cluster, in words. load: the fields of its workload; empty where it was not kept."""

    name: str
    asked: str
    load: Mapping[str, Any]
    records: tuple[TrialRecord, ...]


def stored_study(url: str, name: str) -> StoredStudy:
    """A study that is there already, with the records of its finished trials; nothing is made or changed.

    Raises UserError with the names that there are.
    """
    if url.startswith(_SQLITE) and not Path(url.removeprefix(_SQLITE)).exists():
        raise UserError(f"there is no study storage {without_password(url)}: --storage says where it is")
    storage = open_storage(url)
    try:
        found = {each.study_name: each for each in optuna.get_all_study_summaries(storage)}
    except (StorageInternalError, SQLAlchemyError) as error:
        raise UserError(
            f"the study storage {without_password(url)} cannot be read, it may be damaged: {_first_line(error)}"
        ) from None
    if name not in found:
        raise UnknownNameError("study", name, found)
    trials = optuna.load_study(study_name=name, storage=storage).get_trials(deepcopy=False)
    attrs = found[name].user_attrs
    return StoredStudy(
        name=name,
        asked=str(attrs.get("asked", "")),
        load=attrs.get("load", {}),
        records=tuple(r for t in trials if t.state.is_finished() and (r := _record_of(t)) is not None),
    )


def _ended(outcome: Outcome) -> dict[str, str]:
    """What the sampler goes by, as trial attributes."""
    direction = {DIRECTION_ATTR: str(outcome.direction)} if isinstance(outcome, OutOfMemory) else {}
    return {OUTCOME_ATTR: outcome.kind, **direction}


def _told(outcome: Outcome, value: float | None) -> tuple[TrialState, float | None]:
    """Optuna's state, and by how much the layout is infeasible (in GiB for memory; positive: infeasible)."""
    if value is not None:
        return TrialState.COMPLETE, None
    match outcome:
        case Measured() | StoppedEarly():
            return TrialState.FAIL, None
        case OutOfMemory():
            gib = outcome.shortfall_bytes / _GIB if outcome.shortfall_bytes else UNKNOWN_SHORTFALL
            return TrialState.PRUNED, gib
        case Illegal() | Crashed() | Hung() | WrongAnswers():
            return TrialState.PRUNED, UNKNOWN_SHORTFALL
        case Environment() | Interrupted():
            return TrialState.FAIL, None


def _reference_of(attrs: Mapping[str, Any]) -> Reference | None:
    text = attrs.get(REFERENCE_ATTR)
    try:
        return reference_from_json(text) if text else None
    except ValidationError:
        return None  # written by another version of this tool


def _record_of(trial: FrozenTrial) -> TrialRecord | None:
    text = trial.user_attrs.get(RECORD_ATTR)
    try:
        return from_json(text) if text else None
    except ValidationError:
        return None  # written by another version of this tool
