"""The record that a colleague reviews: a study as an MLflow run, each trial as a run nested in it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from cost_models.prediction import Prediction
from search_spaces.layout import Layout
from tuner.measurement import RequestTiming, Rung, RungKey
from tuner.outcome import Interrupted, measurement_of
from tuner.record import Origin, TrialRecord, to_json
from tuner.request import Request
from tuner.servers.nodes import files_of
from tuner.tracking_fields import (
    asked_tags,
    doubts_tag,
    layout_params,
    layout_tags,
    marks,
    outcome_tags,
    place_params,
    run_name,
    rung_points,
    setting_params,
    start_points,
    status_of,
    trial_name,
    trial_points,
)
from tuner.tracking_files import launch_text, leaderboard, log_tail, measurement_json, requests_table
from tuner.tracking_note import NOTE_TAG, running_note, settled_note, study_note, trial_note
from tuner.tracking_store import Point, RunStatus, Store, TrackingError, is_server, without_password

__all__ = ["Tracker", "TrackingError"]

_PARENT_TAG = "mlflow.parentRunId"
_TABLES_TAG = "mlflow.loggedArtifacts"
_REQUESTS = "requests.json"


class Tracker:
    """Writes one study. Everything but `open` raises TrackingError when MLflow does not take it."""

    def __init__(self, store: Store, request: Request) -> None:
        self._store = store
        self._request = request
        self._study = request.study
        self._study_run_id = ""
        self._rungs_logged: dict[str, set[int]] = {}

    @classmethod
    def open(cls, request: Request) -> Tracker:
        """Raises UserError where the store of `request` cannot be used."""
        return cls(Store.open(request.tracking_uri, request.artifact_root), request)

    @property
    def tracking_uri(self) -> str:
        """As it may be shown: without the password it may hold."""
        return without_password(self._store.uri)

    @property
    def experiment_id(self) -> str:
        return self._store.experiment_id

    def run_url(self, run_id: str) -> str:
        """The run's page: whole where a server shows it, otherwise what follows the address of `tune ui`."""
        return self._base + self._page_of(run_id)

    @property
    def experiment_url(self) -> str:
        """The table of runs. Without the workflow named, MLflow opens on a page about traces."""
        return f"{self._base}#/experiments/{self.experiment_id}/runs?workflowType=machine_learning"

    def _page_of(self, run_id: str) -> str:
        """What a note links to: it holds wherever the note is read."""
        return f"#/experiments/{self.experiment_id}/runs/{run_id}?workflowType=machine_learning"

    @property
    def _base(self) -> str:
        return f"{self.tracking_uri.rstrip('/')}/" if is_server(self._store.uri) else ""

    def start_study(self, request: Request, *, study: str, facts: Mapping[str, object]) -> str:
        """Starts the study's run, or takes it up again, and returns its id.

        A run is taken up again when it is of the same name and context. Runs of the study that a killed
        tuner left running are settled as interrupted, so nobody else may be running it. facts: figures about
        this call, kept as `tune.*` tags.
        """
        self._request, self._study = request, study
        tags = {
            **marks(request, study),
            **asked_tags(request),
            **{f"tune.{name}": str(value) for name, value in facts.items()},
            "tune.kind": "study",
        }
        wanted = (study, request.context_key, request.store_key)
        earlier = [
            run
            for run in self._store.runs("tags.`tune.kind` = 'study'")
            if tuple(run.data.tags.get(f"tune.{name}") for name in ("study", "context", "store")) == wanted
        ]
        params = setting_params(request)
        if earlier:
            run_id = str(earlier[0].info.run_id)
            params = {k: v for k, v in params.items() if k not in earlier[0].data.params}
            self._store.reopen_run(run_id)
        else:
            run_id = self._store.create_run(run_name(request, study), tags=tags)
        self._store.log(run_id, params=params, tags=tags)
        self._study_run_id = run_id
        self._settle()
        return run_id

    def _settle(self) -> None:
        outcome = Interrupted(cause="the tuner was killed")
        for run in self._store.runs("attributes.status = 'RUNNING'"):
            run_id, tags = str(run.info.run_id), run.data.tags
            is_ours = (tags.get("tune.study"), tags.get("tune.store")) == (self._study, self._request.store_key)
            if not is_ours or run_id == self._study_run_id:
                continue
            if tags.get("tune.kind") == "trial":
                note = settled_note(tags.get(NOTE_TAG, ""), outcome)
                self._store.log(run_id, tags={**outcome_tags(outcome), NOTE_TAG: note})
            self._store.end_run(run_id, status_of(outcome))

    def start_trial(
        self,
        *,
        number: int,
        requested: Layout,
        effective: Layout,
        origin: Origin,
        prediction: Prediction,
        command: Sequence[str],
    ) -> str:
        """Starts a trial's run, with all that is known before it is launched, and returns its id."""
        note = running_note(self._request, requested, effective, prediction)
        run_id = self._create_trial(number, requested, effective, origin, {NOTE_TAG: note})
        with contextlib.suppress(TrackingError):  # it is written again at the end; the run is what matters now
            self._store.attach(run_id, "launch.txt", launch_text(command))
        return run_id

    def _create_trial(
        self, number: int, requested: Layout, effective: Layout, origin: Origin, more_tags: Mapping[str, str]
    ) -> str:
        tags = {
            **marks(self._request, self._study),
            **layout_tags(requested, effective),
            **more_tags,
            "tune.kind": "trial",
            "tune.trial": str(number),
            "tune.origin": str(origin),
            _PARENT_TAG: self._study_run_id,
        }
        run_id = self._store.create_run(trial_name(self._request, number, effective), tags=tags)
        params = layout_params(effective) | setting_params(self._request) | place_params(self._request)
        self._store.log(run_id, params=params)
        return run_id

    def log_rung(self, run_id: str, rung: Rung) -> None:
        """Adds one concurrency to the trial's series, while the trial goes on."""
        self._store.log(run_id, points=rung_points(rung))
        self._rungs_logged.setdefault(run_id, set()).add(rung.concurrency)

    def end_trial(
        self,
        record: TrialRecord,
        *,
        rung_requests: Mapping[RungKey, Sequence[RequestTiming]],
        log_path: Path | None,
        stage_s: Mapping[str, float] = MappingProxyType({}),
    ) -> str:
        """Completes the trial's run and ends it; returns its id. stage_s: seconds of each stage of the server's start.

        Rungs that `log_rung` could not write are written now, and a record without a run gets one, so that
        a store that was away for a while misses nothing. The run is ended even when a file is refused.
        """
        run_id = record.run_id or self._create_trial(
            record.number, record.requested, record.effective, record.origin, {}
        )
        self._conclude(run_id, record, trial_note(self._request, record))
        self._store.log(run_id, points=start_points(stage_s))
        texts = {"launch.txt": launch_text(record.command), "trial.json": to_json(record)}
        if (measurement := measurement_of(record.outcome)) is not None:
            texts["measurement.json"] = measurement_json(measurement)
        if any(rung_requests.values()):
            texts[_REQUESTS] = requests_table(rung_requests)
        if log_path is not None:
            texts |= {path.name: log for path in files_of(log_path) if (log := log_tail(path)) is not None}
        try:
            for name, text in texts.items():
                self._store.attach(run_id, name, text)
            if _REQUESTS in texts:
                table = json.dumps([{"path": _REQUESTS, "type": "table"}])
                self._store.log(run_id, tags={_TABLES_TAG: table})
        finally:
            self._store.end_run(run_id, status_of(record.outcome))
        return run_id

    def record_reused(self, record: TrialRecord) -> str:
        """Adds a measurement made in another study, without files; returns the id of its run here."""
        source = {"tune.reused_from": record.reused_from, "tune.reused_run": record.run_id}
        run_id = self._create_trial(record.number, record.requested, record.effective, record.origin, source)
        link = f"[{record.reused_from}]({self._page_of(record.run_id)})" if record.run_id else ""
        self._conclude(run_id, record, trial_note(self._request, record, source_link=link))
        self._store.end_run(run_id, status_of(record.outcome))
        return run_id

    def _conclude(self, run_id: str, record: TrialRecord, note: str) -> None:
        logged = self._rungs_logged.pop(run_id, set())
        points = trial_points(self._request, record)
        if (measurement := measurement_of(record.outcome)) is not None:
            points += [
                point for rung in measurement.rungs if rung.concurrency not in logged for point in rung_points(rung)
            ]
        tags = {**outcome_tags(record.outcome), **doubts_tag(record.outcome), NOTE_TAG: note}
        self._store.log(run_id, tags=tags, points=points)

    def log_best(self, run_id: str, number: int, value: float) -> None:
        """The best value of the study's objective after trial `number`, SI."""
        self._store.log(run_id, points=[Point(name="best_score", value=value, step=number)])

    def end_study(
        self,
        run_id: str,
        *,
        status: RunStatus,
        note: str,
        summary: Mapping[str, object],
        records: Sequence[TrialRecord] = (),
    ) -> None:
        """Ends the study's run with its verdict.

        note: Markdown, the verdict in its first line; a table of the layouts in `records` is added to it,
        each linked to its runs. summary: kept as summary.json.
        """
        links = {r.run_id: self._page_of(r.run_id) for r in records if r.run_id}
        self._store.log(run_id, tags={NOTE_TAG: study_note(self._request, note, records, links)})
        try:
            self._store.attach(run_id, "leaderboard.json", leaderboard(self._request, records))
            if summary:
                self._store.attach(run_id, "summary.json", json.dumps(summary, indent=2, default=str))
        finally:
            self._store.end_run(run_id, status)
