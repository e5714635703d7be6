"""`tune probe`: what this machine really has."""

from __future__ import annotations

from typing import Annotated

import typer

from tuner.commands.told_errors import errors_told

_MEASURING = "What is measured"


def probe(
    save: Annotated[
        str | None, typer.Option(help="Write a cluster file, which --cluster takes everywhere.", metavar="FILE.json")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file where there is one.")] = False,
    nodes: Annotated[
        int, typer.Option(help="How many nodes like this one the cluster has. Only this one is measured.", metavar="N")
    ] = 1,
    engine_command: Annotated[
        str | None,
        typer.Option(
            help="How SGLang is started, or a Python: its torch measures. Default: this Python.", metavar="WORDS"
        ),
    ] = None,
    ops: Annotated[
        str | None,
        typer.Option(
            help="all_reduce, all_gather, reduce_scatter, all_to_all, send_recv. Default: all.",
            metavar="LIST",
            rich_help_panel=_MEASURING,
        ),
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(
            help="How many GPUs at once, e.g. 2,4,8. Default: powers of two.",
            metavar="LIST",
            rich_help_panel=_MEASURING,
        ),
    ] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option(
            help="Sizes double from 1 KiB to this. Default: 256MiB; 4MiB with --cpu-ranks.",
            metavar="BYTES",
            rich_help_panel=_MEASURING,
        ),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(help="These sizes instead, e.g. 64KiB,1MiB.", metavar="LIST", rich_help_panel=_MEASURING),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(help="Seconds that measuring may take.", metavar="SECONDS", rich_help_panel=_MEASURING),
    ] = 600.0,
    cpu_ranks: Annotated[
        int | None,
        typer.Option(
            help="Measure this many ranks on the host's CPUs instead of GPUs (gloo).",
            metavar="N",
            rich_help_panel=_MEASURING,
        ),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="The cluster file on stdout.")] = False,
) -> None:
    """This machine's GPUs, links and measured collective latency; --save makes it a cluster file.

    Exit code 0: done. 2: the words cannot be used. 3: there is nothing to probe, or no torch for
    --cpu-ranks. 4: measuring failed; what was found
    before is told and saved.
    """
    from tuner.probe_job import ProbeRequest, run  # noqa: PLC0415

    with errors_told(json_output=json_output):
        request = ProbeRequest(
            engine_command=engine_command,
            sizes=sizes,
            max_bytes=max_bytes,
            ops=ops,
            groups=groups,
            timeout_s=timeout,
            cpu_ranks=cpu_ranks,
            nodes=nodes,
            save=save,
            may_replace=force,
        )
        code = run(request, json_output=json_output)
    raise typer.Exit(code)
