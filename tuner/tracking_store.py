"""An MLflow store, opened for writing: its client, its limits, and what goes wrong with it in one error each.

UserError before a study starts, because the words that name the store can be changed; TrackingError once it
runs, so that a store that fails costs a record and never a trial.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import sqlite3
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

import requests
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from search_spaces.errors import UserError

# MLflow reads these on import and with each request: no telemetry, not a word on the terminal, and a server
# that is gone is noticed in seconds (its own setting is seven retries, four minutes).
for _name, _value in {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}.items():
    os.environ.setdefault(_name, _value)
logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)

from mlflow.entities import Experiment, Metric, Param, Run, RunTag  # noqa: E402
from mlflow.exceptions import MlflowException  # noqa: E402
from mlflow.tracking import MlflowClient  # noqa: E402

EXPERIMENT = "layout-tune"
MAX_PARAM_CHARS = 6000
MAX_TAG_CHARS = 8000
_METRICS_PER_BATCH = 900
_PROBE_S = 10.0

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]


class TrackingError(RuntimeError):
    """MLflow did not take a record. What was to be recorded is still in the caller's hands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value of a metric. step: the concurrency in a sweep, the trial in a study, else 0."""

    name: str
    value: float
    step: int = 0


class Store:
    """The experiment of this project in one MLflow store. Runs are named by their ids.

    Every method but `open` raises TrackingError when MLflow fails.
    """

    def __init__(self, client: MlflowClient, experiment_id: str, uri: str) -> None:
        self._client = client
        self.experiment_id = experiment_id
        self.uri = uri

    @classmethod
    def open(cls, uri: str, artifact_root: str) -> Store:
        """Opens the store, making what is missing: folder, database, experiment.

        artifact_root: where a database store's artifacts go; a server decides that itself.
        Raises UserError where the store is of an unusable kind, cannot be reached or cannot be written.
        """
        _probe(uri)
        try:
            client = _client(uri)
            experiment = _experiment(client, None if is_server(uri) else _absolute(artifact_root))
        except Exception as error:  # MLflow, SQLAlchemy and each driver have their own
            raise UserError(f"cannot use the MLflow store {without_password(uri)}: {_reason(error)}") from error
        if experiment.lifecycle_stage != "active":
            raise UserError(
                f"the experiment {EXPERIMENT!r} of {without_password(uri)} was deleted in MLflow; bring it back with "
                f"`mlflow experiments restore --experiment-id {experiment.experiment_id}` or use another store"
            )
        _probe_artifacts(experiment.artifact_location)
        return cls(client, experiment.experiment_id, uri)

    def create_run(self, name: str, *, tags: Mapping[str, str]) -> str:
        """Starts a run and returns its id."""
        with _failing("start a run"):
            run = self._client.create_run(self.experiment_id, run_name=name, tags=_tags(tags))
            return str(run.info.run_id)

    def runs(self, filter_string: str) -> list[Run]:
        """Every run that matches and was not deleted, newest first."""
        found: list[Run] = []
        token: str | None = None
        with _failing("search runs"):
            while True:
                page = self._client.search_runs([self.experiment_id], filter_string, page_token=token)
                found += page
                token = page.token
                if not token:
                    return found

    def log(
        self,
        run_id: str,
        *,
        params: Mapping[str, object] | None = None,
        tags: Mapping[str, str] | None = None,
        points: Sequence[Point] = (),
    ) -> None:
        """Writes everything in as few requests as there can be.

        Points that are no finite numbers are left out: MLflow would keep infinity as 1.8e308, and either
        would spoil every chart. Texts beyond MLflow's limits are cut, and say so.
        """
        now_ms = time.time_ns() // 1_000_000
        metrics = [
            Metric(key=p.name, value=float(p.value), timestamp=now_ms, step=p.step)
            for p in points
            if math.isfinite(p.value)
        ]
        param_list = [Param(k, cut(str(v), MAX_PARAM_CHARS)) for k, v in (params or {}).items()]
        tag_list = [RunTag(k, v) for k, v in _tags(tags or {}).items()]
        with _failing("log to a run"):
            self._client.log_batch(run_id, metrics[:_METRICS_PER_BATCH], param_list, tag_list)
            for start in range(_METRICS_PER_BATCH, len(metrics), _METRICS_PER_BATCH):
                self._client.log_batch(run_id, metrics[start : start + _METRICS_PER_BATCH])

    def attach(self, run_id: str, name: str, text: str) -> None:
        """Adds a text file to the run's artifacts."""
        with _failing(f"store the artifact {name}"):
            self._client.log_text(run_id, clean(text), name)

    def end_run(self, run_id: str, status: RunStatus) -> None:
        with _failing("end a run"):
            self._client.set_terminated(run_id, status)

    def reopen_run(self, run_id: str) -> None:
        with _failing("reopen a run"):
            self._client.update_run(run_id, status="RUNNING")


def is_server(uri: str) -> bool:
    """Whether `uri` names an MLflow server, not a database."""
    return urlsplit(uri).scheme in {"http", "https"}


def without_password(uri: str) -> str:
    """`uri` as it may be shown: `postgresql://me:secret@host/db` becomes `postgresql://***@host/db`."""
    return re.sub(r"//[^/\s]*@", "//***@", uri)


def find_experiment(uri: str) -> str | None:
    """The id of this project's experiment in an existing store; None where there is none.

    Raises UserError where the store cannot be used.
    """
    _probe(uri)
    try:
        experiment = _client(uri).get_experiment_by_name(EXPERIMENT)
    except Exception as error:  # MLflow, SQLAlchemy and each driver have their own
        raise UserError(f"cannot use the MLflow store {without_password(uri)}: {_reason(error)}") from error
    return None if experiment is None else str(experiment.experiment_id)


def clean(text: str) -> str:
    """`text` without what databases and files refuse: NUL and halves of surrogate pairs."""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")


def cut(text: str, limit: int) -> str:
    """At most `limit` characters of `text`, with a mark where the rest is missing."""
    text = clean(text)
    if len(text) <= limit:
        return text
    mark = f"\n[cut: {len(text)} characters in all]"
    return text[: limit - len(mark)] + mark


def _tags(tags: Mapping[str, str]) -> dict[str, str]:
    return {k: cut(v, MAX_TAG_CHARS) for k, v in tags.items() if v}


@contextlib.contextmanager
def _failing(doing: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # MLflow, SQLAlchemy, and artifact stores have their own
        raise TrackingError(f"MLflow could not {doing}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return without_password(lines[0]) if lines else type(error).__name__


def _client(uri: str) -> MlflowClient:
    with warnings.catch_warnings():
        # MLflow's models use what SQLAlchemy 2.1 deprecates; nobody here can act on it.
        warnings.simplefilter("ignore")
        return MlflowClient(tracking_uri=uri)


def _experiment(client: MlflowClient, artifact_location: str | None) -> Experiment:
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is not None:
        return found
    try:
        return client.get_experiment(client.create_experiment(EXPERIMENT, artifact_location=artifact_location))
    except MlflowException:
        found = client.get_experiment_by_name(EXPERIMENT)  # another tuner may have been quicker
        if found is None:
            raise
        return found


def _absolute(artifact_root: str) -> str:
    return artifact_root if "://" in artifact_root else str(Path(artifact_root).absolute())


def _probe(uri: str) -> None:
    """Raises UserError where MLflow would fail late, obscurely, or after minutes of retries."""
    scheme = urlsplit(uri).scheme
    if scheme in {"", "file"} and not uri.startswith("databricks"):
        raise UserError(
            f"MLflow no longer writes to a plain folder ({uri!r}); name a database, e.g. "
            "sqlite:///mlruns/mlflow.db, and move old runs there with `mlflow migrate-filestore`"
        )
    if is_server(uri):
        _probe_server(uri)
    elif scheme.split("+")[0] == "sqlite":
        _probe_sqlite(uri)


def _probe_server(uri: str) -> None:
    try:
        requests.get(f"{uri.rstrip('/')}/health", timeout=_PROBE_S)
    except requests.exceptions.SSLError:
        return  # MLflow has its own settings for certificates, and its own words
    except requests.ConnectionError:
        raise UserError(
            f"no MLflow server answers at {without_password(uri)}: start it, or name another with --tracking-uri"
        ) from None
    except requests.RequestException as error:
        raise UserError(f"cannot use the MLflow server {without_password(uri)}: {_reason(error)}") from None


def _probe_sqlite(uri: str) -> None:
    try:
        database = make_url(uri).database
    except ArgumentError:
        database = None
    if not database or database == ":memory:":
        raise UserError(f"an MLflow store in SQLite needs a file, e.g. sqlite:///mlruns/mlflow.db (got {uri!r})")
    path = Path(database).absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _check_writable(path.parent)
        with contextlib.closing(sqlite3.connect(path, timeout=_PROBE_S)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("SELECT count(*) FROM sqlite_master")
            connection.rollback()
    except (OSError, sqlite3.Error) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UserError(f"the MLflow store {path} cannot be written: {why}") from None


def _probe_artifacts(location: str) -> None:
    """An experiment keeps the place of its artifacts for ever; on another machine it may not exist."""
    parts = urlsplit(location)
    if parts.scheme not in {"", "file"}:
        return
    folder = Path(unquote(parts.path) if parts.scheme else location)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _check_writable(folder)
    except OSError as error:
        raise UserError(
            f"the experiment {EXPERIMENT!r} keeps its artifacts in {folder}, which cannot be written "
            f"({error.strerror}); make it writable or use another store"
        ) from None


def _check_writable(folder: Path) -> None:
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(13, "Permission denied", str(folder))
