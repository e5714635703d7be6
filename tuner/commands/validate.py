"""`tune validate`: predicted against measured."""

from __future__ import annotations

from typing import Annotated

import typer

from tuner.commands.told_errors import errors_told


def validate(
    file: Annotated[
        str | None,
        typer.Argument(
            help="A JSON-lines file of measured points, - for stdin; docs/validate.md says what a line holds. "
            "Default: the public sweeps that come with the tool.",
            metavar="[FILE]",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="Points of one engine alone: sglang, vllm or trtllm.", metavar="ENGINE")
    ] = None,
    moe_only: Annotated[bool, typer.Option("--moe-only", help="Mixture-of-Experts models alone.")] = False,
    max_tp: Annotated[
        int | None, typer.Option(help="Layouts of at most that --tp-size.", min=1, metavar="N", show_default=False)
    ] = None,
    with_flagged: Annotated[
        bool,
        typer.Option("--with-flagged", help="Also points that their file flags, e.g. taken while the server stalled."),
    ] = False,
    leave_one_out: Annotated[
        bool,
        typer.Option(
            "--leave-one-out", help="Predict each model on each GPU with constants refitted without any point of it."
        ),
    ] = False,
    calibrate: Annotated[
        int,
        typer.Option(
            help="Fix one factor by that many points of each layout and length, and compare the others.",
            min=0,
            max=64,
            metavar="N",
        ),
    ] = 0,
    by: Annotated[
        list[str] | None,
        typer.Option(help="Also a line for each gpu, model or campaign. Repeatable.", metavar="PART"),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """How far the cost model's predictions lie from measurements: error, order, and whether intervals hold."""
    from tuner.validate_job import ValidateRequest, run  # noqa: PLC0415

    with errors_told(json_output=json_output):
        request = ValidateRequest(
            file=file,
            engine=engine,
            moe_only=moe_only,
            max_tp=max_tp,
            with_flagged=with_flagged,
            leave_one_out=leave_one_out,
            calibrate=calibrate,
            by=tuple(by or ()),
        )
        code = run(request, json_output=json_output)
    raise typer.Exit(code)
