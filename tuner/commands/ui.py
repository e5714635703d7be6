"""`tune ui`: MLflow's own pages on this folder's studies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from search_spaces.errors import UserError
from tuner.commands.search import DEFAULT_STORE
from tuner.voice import Voice


def ui(
    port: Annotated[int, typer.Option(help="On loopback.")] = 5000,
    tracking_uri: Annotated[str | None, typer.Option(envvar="MLFLOW_TRACKING_URI", metavar="URI")] = None,
) -> None:
    """MLflow's own UI on this folder's store, on loopback."""
    from tuner.tracking_store import find_experiment  # noqa: PLC0415
    from tuner.ui import serve, url  # noqa: PLC0415

    if not 1 <= port <= 65535:
        raise UserError(f"--port is between 1 and 65535 (got {port})")
    root = Path.cwd() / DEFAULT_STORE
    uri = tracking_uri or f"sqlite:///{root / 'mlflow.db'}"
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).is_file():
        raise UserError(f"there is no study in {root}: run `tune --objective ...` in this folder first")
    Voice().say(f"open {url('127.0.0.1', port, find_experiment(uri) or '')} (Ctrl-C ends it)")
    raise typer.Exit(serve(uri, str(root / "artifacts"), "127.0.0.1", port))
