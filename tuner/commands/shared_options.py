"""Options that mean the same to every command that loads servers and keeps a record."""

from __future__ import annotations

from typing import Annotated

import typer

WORKLOAD = "The load"
RECORD = "The record"
USUAL_LADDER = "1,4,16,64,128"

Concurrency = Annotated[
    str, typer.Option(help="The ladder: rising, from 1.", rich_help_panel=WORKLOAD, metavar="N,N,...")
]
WholeLadder = Annotated[
    bool,
    typer.Option(
        "--whole-ladder",
        help="Also the rungs past the peak and with a full KV pool, which are left out otherwise.",
        rich_help_panel=WORKLOAD,
    ),
]
LoadGenerator = Annotated[
    str,
    typer.Option(
        help="What sends the load: own, or sglang for SGLang's own benchmark (docs/measuring.md).",
        rich_help_panel=WORKLOAD,
        metavar="NAME",
    ),
]
TrackingUri = Annotated[
    str | None,
    typer.Option(
        help="MLflow's store. Default: ./mlruns/mlflow.db.",
        envvar="MLFLOW_TRACKING_URI",
        rich_help_panel=RECORD,
        metavar="URI",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.", rich_help_panel=RECORD)]
