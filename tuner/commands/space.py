"""`tune space`: the legal layouts of a model on a cluster, and why the others are none."""

from __future__ import annotations

from typing import Annotated

import typer

from search_spaces.errors import UserError
from tuner.commands.told_errors import errors_told
from tuner.exit_code import Exit

DEFAULT_LIMIT = 30


def space(
    model: Annotated[
        str | None,
        typer.Option(
            help="A folder with a config.json, or a name or hub id of the catalogue. Default: kimi-k2.6.",
            metavar="MODEL",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="GPUs, e.g. 8xrtx-pro-6000 or 2x8xh200, or a JSON file of them. Default: what is found here, "
            "else 8xrtx-pro-6000.",
            metavar="CLUSTER",
        ),
    ] = None,
    engine_version: Annotated[
        str | None, typer.Option(help="Whose rules to use. Default: the newest known.", metavar="VERSION")
    ] = None,
    pin: Annotated[
        list[str] | None,
        typer.Option(help="Hold a dimension fixed, e.g. tp_size=8. Repeatable.", metavar="NAME=VALUE"),
    ] = None,
    limit: Annotated[int, typer.Option(help="Layouts to show; --all shows every one.", min=0)] = DEFAULT_LIMIT,
    show_all: Annotated[bool, typer.Option("--all", help="Show every legal layout.")] = False,
    rules: Annotated[bool, typer.Option("--rules", help="Show the table of rules instead.")] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="One JSON document on stdout, with every layout.")
    ] = False,
) -> None:
    """Every legal layout of a model on a cluster: what it takes, whether it fits; and what refuses the others."""
    from search_spaces.sglang.versions import NEWEST, EngineVersion  # noqa: PLC0415
    from tuner import space_job  # noqa: PLC0415

    with errors_told(json_output=json_output):
        version = EngineVersion.parse(engine_version) if engine_version is not None else NEWEST
        if rules:
            if model or cluster or pin:
                raise UserError(
                    "--rules lists the rules of an engine version: no --model, --cluster or --pin beside it"
                )
            space_job.tell_rules(version, json_output=json_output)
            raise typer.Exit(Exit.DONE)
        request = space_job.SpaceRequest(
            model=model, cluster=cluster, version=version, pins=tuple(pin or ()), limit=None if show_all else limit
        )
        code = space_job.run(request, json_output=json_output)
    raise typer.Exit(code)
