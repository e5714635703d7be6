"""MLflow's own web interface on a project's store, for as long as someone looks at it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from search_spaces.errors import UserError
from tuner.servers import guard
from tuner.servers.local import port_is_free

_GRACE_S = 5.0
_STDERR = 2


def url(host: str, port: int, experiment_id: str = "") -> str:
    """The address to open: the table of runs of an experiment, or the list of experiments."""
    base = f"http://{host}:{port}/#/experiments"
    return f"{base}/{experiment_id}/runs?workflowType=machine_learning" if experiment_id else base


def serve(tracking_uri: str, artifact_root: str, host: str, port: int) -> int:
    """Runs the interface until it ends or the user interrupts it, which is the usual end and returns 0.

    One worker, no background jobs and no telemetry: two processes instead of a dozen. They cannot outlive
    this one. Raises UserError where the store has a server of its own or the port is taken.
    """
    if tracking_uri.startswith(("http://", "https://")):
        raise UserError(f"{tracking_uri} is an MLflow server with an interface of its own: open it in a browser")
    if not port_is_free(host, port):
        raise UserError(f"port {port} is in use on {host}: choose another with --port")
    command = [
        *(sys.executable, "-m", "mlflow", "server"),
        *("--backend-store-uri", tracking_uri),
        *("--artifacts-destination", artifact_root),
        *("--host", host, "--port", str(port)),
        *("--workers", "1"),
        *("--uvicorn-opts", "--log-level warning"),
    ]
    environment = {
        **os.environ,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "PYTHONWARNINGS": "ignore",  # deprecations among MLflow's dependencies are no news to who looks at runs
    }
    guarded = [sys.executable, "-I", str(Path(guard.__file__)), str(_GRACE_S), "--", *command]
    with subprocess.Popen(guarded, stdin=subprocess.PIPE, stdout=_STDERR, env=environment) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.communicate()  # closes its standard input: the guard ends the server, then itself
            return 0
