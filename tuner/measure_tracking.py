"""The MLflow run of a server that somebody else started."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from search_spaces.workload import Workload
from tuner.load_mix import LoadMix
from tuner.measure_text import result_lines
from tuner.measured_server import FoundServer
from tuner.measurement import RequestTiming, Rung, RungKey
from tuner.outcome import Interrupted, Outcome, StoppedEarly, seen_of
from tuner.servers.orphans import may_live, owner_mark
from tuner.tracking_fields import doubts_tag, layout_params, outcome_tags, rung_points, status_of
from tuner.tracking_files import measurement_json, requests_table
from tuner.tracking_note import NOTE_TAG
from tuner.tracking_store import Point, Store, without_password

KIND = "measurement"
_OWNER_TAG = "tune.owner"
_NOTE_WIDTH = 140


class MeasuredRun:
    """One run. All but `start` raises TrackingError when MLflow does not take it."""

    def __init__(self, store: Store, run_id: str, server: FoundServer) -> None:
        self._store = store
        self._server = server
        self.run_id = run_id

    @classmethod
    def start(
        cls, uri: str, artifact_root: str, server: FoundServer, workload: Workload, mix: LoadMix, seed: int
    ) -> MeasuredRun:
        """Raises UserError where the store cannot be used, TrackingError where it does not take the run."""
        store = Store.open(uri, artifact_root)
        _settle(store)
        mark = {"tune.simulated": "true", "tune.simulated_because": server.simulated_because}
        tags = {
            "tune.kind": KIND,
            "tune.layout": server.layout.label,
            "tune.url": server.base_url,
            _OWNER_TAG: owner_mark(),
            **(mark if server.is_simulated else {}),
        }
        name = f"{server.model} {server.layout.label}"
        run_id = store.create_run(f"simulated {name}" if server.is_simulated else name, tags=tags)
        params: dict[str, object] = {
            **layout_params(server.layout),
            "model": server.model,
            "engine": "simulated" if server.is_simulated else "sglang",
            "engine_version": server.release,
            "input_tokens": workload.input_tokens,
            "output_tokens": workload.output_tokens,
            "concurrencies": ",".join(map(str, workload.concurrencies)),
            "seed": seed,
            "requests_of_others": server.running,
            "throughput_is_of": mix.figures,
        }
        store.log(run_id, params=params)
        return cls(store, run_id, server)

    @property
    def told(self) -> dict[str, str]:
        """Where it is, for the report."""
        return {
            "tracking_uri": without_password(self._store.uri),
            "experiment_id": self._store.experiment_id,
            "run_id": self.run_id,
        }

    def log_rung(self, rung: Rung) -> None:
        self._store.log(self.run_id, points=rung_points(rung))

    def end(self, outcome: Outcome, timings: Mapping[RungKey, Sequence[RequestTiming]]) -> None:
        """The run is ended even when a file is refused."""
        measurement = seen_of(outcome)
        tags = {**outcome_tags(outcome), **doubts_tag(outcome), NOTE_TAG: self._note(outcome)}
        points = []
        if measurement is not None and measurement.rungs:
            peak = measurement.peak
            points = [
                Point(name="peak_output_tok_per_s", value=peak.output_tok_per_s),
                Point(name="best_concurrency", value=peak.concurrency),
            ]
        with self._ended(outcome):
            self._store.log(self.run_id, tags=tags, points=points)
            if measurement is not None and measurement.rungs:
                self._store.attach(self.run_id, "measurement.json", measurement_json(measurement))
                self._store.attach(self.run_id, "requests.json", requests_table(timings))

    @contextlib.contextmanager
    def _ended(self, outcome: Outcome) -> Iterator[None]:
        try:
            yield
        finally:
            # Nothing but an interruption ends a measurement early.
            self._store.end_run(self.run_id, "KILLED" if isinstance(outcome, StoppedEarly) else status_of(outcome))

    def _note(self, outcome: Outcome) -> str:
        server = self._server
        first = f"{server.model} as {server.layout.label} at {server.base_url}: {outcome.summary}"
        mark = f"SIMULATED ({server.simulated_because}): " if server.is_simulated else ""
        return "\n".join([f"{mark}{first}", "", "~~~~", *result_lines(outcome, _NOTE_WIDTH), "~~~~"])


def _settle(store: Store) -> None:
    """Runs whose tuner was killed are ended as interrupted."""
    outcome = Interrupted(cause="the tuner was killed")
    for run in store.runs(f"tags.`tune.kind` = '{KIND}' and attributes.status = 'RUNNING'"):
        if not may_live(run.data.tags.get(_OWNER_TAG, "")):
            store.log(str(run.info.run_id), tags=outcome_tags(outcome))
            store.end_run(str(run.info.run_id), status_of(outcome))
