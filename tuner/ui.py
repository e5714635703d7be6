"""MLflow's own web interface on a project's store, for as long as someone looks at it."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from search_spaces.errors import UserError
from tuner.servers.host import port_is_free
from tuner.servers.local import LocalLauncher
from tuner.servers.protocol import Launch, LaunchError

_GRACE_S = 5.0
_POLL_S = 0.1
_LAST_WORDS = 4000

_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "PYTHONWARNINGS": "ignore",  # deprecations among MLflow's dependencies are no news to who looks at runs
}


def url(host: str, port: int, experiment_id: str = "") -> str:
    """The address to open: the table of runs of an experiment, or the list of experiments."""
    base = f"http://{host}:{port}/#/experiments"
    return f"{base}/{experiment_id}/runs?workflowType=machine_learning" if experiment_id else base


def serve(tracking_uri: str, artifact_root: str, host: str, port: int) -> int:
    """Runs the interface until it ends or the user interrupts it, which is the usual end and returns 0.

    One worker, no background jobs and no telemetry: two processes instead of a dozen. They cannot outlive
    this one. Raises UserError where the store has a server of its own, the port is taken, or
    MLflow cannot be started.
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
    with tempfile.TemporaryDirectory(prefix="tune-ui-") as folder:
        # MLflow leaves copies of artifacts behind that it was about to send when it is ended.
        launch = Launch(
            command=tuple(command),
            host=host,
            port=port,
            log_path=Path(folder) / "server.log",
            env=_ENVIRONMENT | {"TMPDIR": folder},
            grace_s=_GRACE_S,
        )
        return _run(launch)


def _run(launch: Launch) -> int:
    try:
        server = LocalLauncher().start(launch)
    except LaunchError as error:
        raise UserError(str(error)) from None
    try:
        while (code := server.exit_code()) is None:
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        return 0
    else:
        sys.stderr.write(launch.log_path.read_text(errors="replace")[-_LAST_WORDS:])
        return code
    finally:
        server.stop()
