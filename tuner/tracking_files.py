"""The files of a run in MLflow: launch command, end of the server's log, requests, leaderboard."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter

from tuner.measurement import Measurement, RequestTiming, RungKey
from tuner.record import TrialRecord
from tuner.request import Request
from tuner.standing import standings

LOG_BYTES = 2**20
"""How much of a server's log is kept, counted from its end."""
_MEASUREMENT: TypeAdapter[Measurement] = TypeAdapter(Measurement)


def launch_text(command: Sequence[str]) -> str:
    """The command for a shell, an option a line."""
    lines: list[str] = []
    for word in command:
        if not lines or word.startswith("--"):
            lines.append(shlex.quote(word))
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return " \\\n  ".join(lines) + "\n"


def measurement_json(measurement: Measurement) -> str:
    return _MEASUREMENT.dump_json(measurement, indent=2).decode()


def requests_table(requests: Mapping[RungKey, Sequence[RequestTiming]]) -> str:
    """One row a request, as JSON in the form that MLflow shows as a table: of a concurrency, or of a request rate."""
    columns = [
        "concurrency",
        "request_rate",
        "start_s",
        "ttft_ms",
        "tpot_ms",
        "total_s",
        "prompt_tokens",
        "output_tokens",
        "cached_tokens",
        "retractions",
        "error",
    ]
    rows: list[list[float | str | None]] = [
        [
            rung if isinstance(rung, int) else None,
            rung if isinstance(rung, str) else None,
            _finite(t.start_s) if t.is_start_known else None,
            _finite(t.ttft_s * 1e3),
            _finite(t.tpot_s * 1e3),
            _finite(t.end_s - t.start_s),
            t.prompt_tokens,
            t.output_tokens,
            t.cached_tokens,
            t.retractions,
            t.error,
        ]
        for rung, timings in requests.items()
        for t in timings
    ]
    return json.dumps({"columns": columns, "data": rows}, allow_nan=False)


def log_tail(path: Path, limit_bytes: int = LOG_BYTES) -> str | None:
    """The end of a log, from a whole line on and with a mark when it was cut; None where it cannot be read."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(max(size - limit_bytes, 0))
            data = log.read(limit_bytes)
    except OSError:
        return None
    if size <= limit_bytes:
        return data.decode("utf-8", "replace")
    whole_lines = data.split(b"\n", 1)[-1]
    return f"[cut: the last {len(whole_lines)} of {size} bytes of {path}]\n" + whole_lines.decode("utf-8", "replace")


def leaderboard(request: Request, records: Sequence[TrialRecord]) -> str:
    """The measured layouts as JSON, best first; values in SI units."""
    objective = request.objective
    rows = [
        {
            "rank": rank,
            "layout": standing.effective.label,
            "requested": standing.requested.label,
            "value": standing.value,
            "unit": objective.unit,
            "interval": None if standing.interval is None else list(standing.interval),
            "predicted": objective.predicted_by(standing.records[0].prediction),
            "trials": [r.number for r in standing.records],
            "run_ids": [r.run_id for r in standing.records],
        }
        for rank, standing in enumerate(standings(records, objective), start=1)
    ]
    return json.dumps(
        {"objective": str(objective), "simulated": request.engine.is_simulated, "layouts": rows}, indent=2
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
