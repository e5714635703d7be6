"""The study: ask for a layout, run it, tell what happened, until the budget ends; then measure the best again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

import optuna

from search_spaces.errors import UserError
from search_spaces.layout import Layout
from search_spaces.space import Space
from tuner import report, report_text
from tuner.confirming import next_to_confirm
from tuner.correctness_judge import AnswerJudge
from tuner.events import Listener, Notice, TrialEnded, TrialStarted
from tuner.goodput import Goodput
from tuner.lessons import lessons
from tuner.locks import only_one, while_stores_open
from tuner.measurement import Rung
from tuner.outcome import Environment, Interrupted
from tuner.patience import Patience
from tuner.preflight import NOTHING_TO_CHECK, Preflight
from tuner.record import Origin, TrialRecord
from tuner.relay import Relay
from tuner.report_judged import pool_doubt
from tuner.request import Request
from tuner.sampling import MAX_TRIES, LayoutSampler, Scored
from tuner.secret_words import masked, masked_words, secret_values
from tuner.servers.protocol import Launch, Launcher
from tuner.sifting import Sifted, room_bytes
from tuner.standing import standings
from tuner.study_result import StudyResult
from tuner.study_store import KILLED, StudyStore
from tuner.tracking import Tracker, TrackingError
from tuner.trial import Trial, TrialResult

P = ParamSpec("P")
T = TypeVar("T")

HOST = "127.0.0.1"
ENVIRONMENT_ENDS_IN_A_ROW = 3
"""After so many trials that the environment ended, more of them will not help."""


def run_study(
    request: Request,
    space: Space,
    sifted: Sifted,
    *,
    launcher: Launcher,
    patience: Patience,
    listener: Listener,
    preflight: Preflight = NOTHING_TO_CHECK,
) -> StudyResult:
    """Runs or resumes the study of `request` over what of `space` was found to fit.

    Raises UserError before anything is started when a store cannot be used. Any other exception leaves the
    study resumable, its runs ended and no server behind.
    """
    sampler = LayoutSampler(
        [
            Scored(layout=f.requested, score=f.score, chance=f.chance, room_bytes=room_bytes(f.prediction.memory))
            for f in sifted.fitting.values()
        ]
    )
    with only_one(request), preflight.locked():
        with while_stores_open(request):
            store = StudyStore(request, sampler)
            tracker = Tracker.open(request)
        search = _Search(request, space, sifted, store, tracker, launcher, patience, listener, preflight)
        return search.run()


class _Search:
    def __init__(
        self,
        request: Request,
        space: Space,
        sifted: Sifted,
        store: StudyStore,
        tracker: Tracker,
        launcher: Launcher,
        patience: Patience,
        listener: Listener,
        preflight: Preflight,
    ) -> None:
        self._request = request
        self._space = space
        self._fitting = sifted.fitting
        self._does_not_fit = sifted.does_not_fit
        self._store = store
        self._tracker = tracker
        self._launcher = launcher
        self._patience = patience
        self._preflight = preflight
        self._answer_judge = self._judge_of_answers() if request.probes_correctness else None
        self._tell = listener
        self._deadline = None if request.budget_s is None else time.monotonic() + request.budget_s

    def run(self) -> StudyResult:
        try:
            run_id = self._tracker.start_study(self._request, study=self._request.study, facts=self._facts())
        except TrackingError as error:
            raise UserError(f"MLflow does not take the study: {error}") from error
        interrupted = False
        try:
            self._settle_and_adopt()
            stopped_because = self._search(run_id)
        except KeyboardInterrupt:
            interrupted, stopped_because = True, "interrupted; the same command goes on from here"
        except BaseException:
            note = "The tuner failed; the same command goes on from here."
            self._tracked(self._tracker.end_study, run_id, status="FAILED", note=note, summary={})
            raise
        result = self._result(run_id, stopped_because, interrupted=interrupted)
        self._tracked(
            self._tracker.end_study,
            run_id,
            status="KILLED" if interrupted else "FINISHED" if result.winner else "FAILED",
            note=report_text.note(result),
            summary=report.document(result),
            records=result.records,
        )
        return result

    def _result(self, run_id: str, stopped_because: str, *, interrupted: bool) -> StudyResult:
        records = tuple(self._store.records())
        return StudyResult(
            request=self._request,
            space=self._space,
            records=records,
            standings=standings(records, self._request.objective),
            does_not_fit=self._does_not_fit,
            stopped_because=stopped_because,
            interrupted=interrupted,
            tracking_uri=self._tracker.tracking_uri,
            experiment_id=self._tracker.experiment_id,
            run_id=run_id,
            run_url=self._tracker.run_url(run_id),
        )

    def _facts(self) -> dict[str, object]:
        return {
            "legal_layouts": len(self._space.candidates),
            "refused_combinations": sum(self._space.refused.values()),
            "do_not_fit": len(self._does_not_fit),
            "searched_layouts": len(self._fitting),
        }

    def _settle_and_adopt(self) -> None:
        for record in self._store.settle():
            self._tell(
                Notice(
                    text=f"trial {record.number} ({record.requested.label}) was running when the tuner was killed: "
                    "settled as interrupted; its layout may be tried once more"
                )
            )
        adopted = self._store.adopt()
        for record in adopted:
            self._tracked(self._tracker.record_reused, record)
        if adopted:
            sources = sorted({r.reused_from.split("#")[0] for r in adopted})
            self._tell(Notice(text=f"reusing {len(adopted)} trials of {', '.join(sources)}: they are not run again"))

    def _enqueue_what_it_is_compared_with(self) -> None:
        """The baseline and the user's own layout come first, and again where a try taught nothing."""
        for layout, origin in (
            (self._space.baseline.requested, Origin.BASELINE),
            (self._request.baseline, Origin.USER),
        ):
            if layout is not None and self._wants(layout):
                self._store.enqueue(layout, origin)

    def _enqueue_what_ends_ask_for(self) -> None:
        for lesson in lessons(self._store.records(), self._fitting):
            if self._store.enqueue(lesson.layout, lesson.origin):
                self._notice(lesson.told)

    def _wants(self, layout: Layout) -> bool:
        """Whether a live trial of `layout` can still teach something, and has not failed to too often."""
        tried = [r for r in self._store.records() if r.requested == layout]
        known = any(r.is_conclusive for r in tried)
        failed = sum(isinstance(r.outcome, Environment) or r.outcome == KILLED for r in tried)
        return layout in self._fitting and not known and failed < MAX_TRIES

    def _search(self, run_id: str) -> str:
        """Returns why it stopped."""
        environment_ends = 0
        while True:
            records = self._store.records()
            live = sum(1 for r in records if r.origin not in _EXTRA and r.is_conclusive)
            if live >= self._request.trials:
                stopped = f"{live} of {self._request.trials} trials done"
                break
            if self._out_of_time():
                stopped = "the time budget is used up"
                break
            if fault := self._preflight.fault(self._notice):
                return f"ended by the environment, before a server was started: {fault}"
            self._enqueue_what_it_is_compared_with()
            self._enqueue_what_ends_ask_for()
            record = self._one_trial(run_id)
            if record is None:
                stopped = "every layout that fits has been tried"
                break
            environment_ends = environment_ends + 1 if isinstance(record.outcome, Environment) else 0
            if environment_ends >= ENVIRONMENT_ENDS_IN_A_ROW:
                return f"{environment_ends} trials in a row were ended by the environment: {record.outcome.summary}"
        self._confirm(run_id)
        return stopped

    def _confirm(self, run_id: str) -> None:
        """Measures the finalists again, in turn: the order of single runs may be noise."""
        while not self._out_of_time():
            layout = next_to_confirm(
                self._store.records(),
                self._request.objective,
                rounds=self._request.confirmations,
                may_run=lambda layout: layout in self._fitting,
            )
            if layout is None or self._preflight.fault(self._notice):
                return
            self._store.enqueue(layout, Origin.CONFIRMATION)
            self._one_trial(run_id)

    def _notice(self, text: str) -> None:
        self._tell(Notice(text=text))

    def _out_of_time(self) -> bool:
        return self._deadline is not None and time.monotonic() > self._deadline

    def _one_trial(self, run_id: str) -> TrialRecord | None:
        """Asks, runs, tells. None when there is nothing left to ask for."""
        asked = self._store.ask()
        if asked is None:
            return None
        trial, layout, origin = asked
        chosen = self._fitting[layout]
        request = self._request
        port = request.port or self._launcher.free_port()
        command = request.engine.command(
            layout, model_path=request.model_path, host=HOST, port=port, seed=request.seed + trial.number
        )
        record = TrialRecord(
            number=trial.number,
            requested=layout,
            effective=chosen.effective,
            origin=origin,
            outcome=Interrupted(cause="running"),
            value=None,
            prediction=chosen.prediction,
            command=masked_words(command),
            duration_s=0.0,
        )
        log_path = Path(request.work_dir) / request.study / str(trial.number) / "server.log"
        launch = Launch(command=command, host=HOST, port=port, log_path=log_path)
        began_s = time.monotonic()
        result = TrialResult(outcome=record.outcome, requests={}, duration_s=0.0)
        try:
            record = self._announced(trial, record)
            relay = Relay(record.number, self._tell, partial(self._log_rung, record))
            result = self._trial().run(launch, chosen.effective, relay)
        except KeyboardInterrupt:
            result = replace(
                result,
                outcome=Interrupted(cause="ended by a person or a signal"),
                duration_s=time.monotonic() - began_s,
            )
            raise
        except BaseException as error:
            result = replace(
                result,
                outcome=Interrupted(
                    cause=masked(
                        f"the tuner failed: {type(error).__name__}: {error}", secret_values(command, os.environ)
                    )
                ),
                duration_s=time.monotonic() - began_s,
            )
            raise
        finally:
            record = replace(
                record,
                outcome=result.outcome,
                duration_s=result.duration_s,
                value=request.objective.value_of(result.outcome),
            )
            self._store.tell(trial, record)
            self._tracked(
                self._tracker.end_trial,
                record,
                rung_requests=result.requests,
                log_path=log_path,
                stage_s=result.stage_s,
            )
            best = standings(self._store.records(), request.objective)
            if best and record.value is not None:
                self._tracked(self._tracker.log_best, run_id, record.number, best[0].value)
            self._tell(TrialEnded(record=record, best=best[0] if best else None))
            if doubt := pool_doubt(record):
                self._notice(f"trial {record.number}: {doubt}")
        if result.interrupted:
            raise KeyboardInterrupt
        return record

    def _announced(self, trial: optuna.Trial, record: TrialRecord) -> TrialRecord:
        """Written down as running before anything is started, so that what it was is known if the tuner is killed."""
        self._store.keep(trial, record)
        run_id = self._tracked(
            self._tracker.start_trial,
            number=record.number,
            requested=record.requested,
            effective=record.effective,
            origin=record.origin,
            prediction=record.prediction,
            command=record.command,
        )
        record = replace(record, run_id=run_id or "")
        self._store.keep(trial, record)
        predicted = self._request.objective.predicted_by(record.prediction)
        self._tell(
            TrialStarted(number=record.number, layout=record.requested, origin=record.origin, predicted=predicted)
        )
        return record

    def _log_rung(self, record: TrialRecord, rung: Rung) -> None:
        if record.run_id:
            self._tracked(self._tracker.log_rung, record.run_id, rung)

    def _tracked(self, write: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """A write to MLflow. A store that fails in mid-study costs the page, never the trial: Optuna has it."""
        try:
            return write(*args, **kwargs)
        except TrackingError as error:
            self._tell(Notice(text=f"MLflow did not take a write, the study goes on: {error}"))
            return None

    def _trial(self) -> Trial:
        return Trial(
            engine=self._request.engine,
            launcher=self._launcher,
            workload=self._request.workload,
            vocab_size=self._request.model.vocab_size,
            seed=self._request.seed,
            patience=self._patience,
            deadline=self._deadline,
            mix=self._request.mix,
            limits=self._request.objective.limits if isinstance(self._request.objective, Goodput) else (),
            preflight=self._preflight,
            answer_judge=self._answer_judge,
        )

    def _judge_of_answers(self) -> AnswerJudge:
        return AnswerJudge(
            model=self._request.model,
            workload=self._request.workload,
            baseline=self._space.baseline.effective,
            reference=self._store.reference(),
            keep=self._store.keep_reference,
        )


_EXTRA = frozenset({Origin.REUSED, Origin.CONFIRMATION})
