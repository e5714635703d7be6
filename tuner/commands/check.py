"""`tune check`: what the engine would make of a launch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from search_spaces.errors import MalformedError, UserError
from tuner.commands.told_errors import errors_told
from tuner.exit_code import Exit

if TYPE_CHECKING:
    from search_spaces.sglang.versions import EngineVersion

_BATCH = "Many at once"


def check(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="Launch flags, a whole launch command, a script or systemd unit, - for stdin, or a notation such as "
            "TP4 EP2. Flags come after --.",
            metavar="[--] WORDS",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A folder with a config.json, or a name or hub id of the catalogue. Default: the one that the words "
            "name, else kimi-k2.6.",
            metavar="MODEL",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="GPUs, e.g. 8xrtx-pro-6000 or 2x8xh200, or a JSON file of them. Default: what is found here, "
            "else as many rtx-pro-6000 as the launch needs, eight at least.",
            metavar="CLUSTER",
        ),
    ] = None,
    engine_version: Annotated[
        str | None, typer.Option(help="Whose rules and flags to use. Default: the newest known.", metavar="VERSION")
    ] = None,
    installed: Annotated[
        bool, typer.Option("--installed", help="Also ask the installed SGLang's own parser, resolution and checks.")
    ] = False,
    engine_command: Annotated[
        str | None,
        typer.Option(
            help="How SGLang is started, for --installed. Default: this Python's -m sglang.launch_server.",
            metavar="WORDS",
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            help="A JSON-lines file (- for stdin): one verdict for each line. With n_gpus in a line, what is too large "
            "for the GPUs is illegal; without it `fits` alone says so.",
            metavar="FILE",
            rich_help_panel=_BATCH,
        ),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """What SGLang would make of a launch: legal, silently adjusted, or illegal, and what would work instead.

    Exit code 0: legal or adjusted. 3: illegal, or too large for the GPUs. 2: the words cannot be used.
    """
    from search_spaces.sglang.versions import NEWEST, EngineVersion  # noqa: PLC0415

    if batch is not None:
        version = EngineVersion.parse(engine_version) if engine_version is not None else None
        if words or model or cluster or installed or engine_command is not None:
            raise UserError(
                "--batch takes everything from its file: no words, --model, --cluster, --installed or "
                "--engine-command beside it"
            )
        raise typer.Exit(_run_batch(batch, version or NEWEST))
    from tuner.check_job import CheckRequest, run  # noqa: PLC0415

    with errors_told(json_output=json_output):
        if engine_command is not None and not installed:
            raise UserError("--engine-command starts the SGLang that --installed asks: name both, or neither")
        request = CheckRequest(
            words=tuple(words or ()),
            model=model,
            cluster=cluster,
            version=EngineVersion.parse(engine_version) if engine_version is not None else None,
            installed=installed,
            engine_command=engine_command,
        )
        code = run(request, json_output=json_output)
    raise typer.Exit(code)


def _run_batch(name: str, version: EngineVersion) -> Exit:
    from tuner.check_batch import write_answers  # noqa: PLC0415
    from tuner.standard_input import standard_input  # noqa: PLC0415

    if name == "-":
        return write_answers(standard_input(), version)
    if not name.strip():
        raise MalformedError("--batch takes a file of JSON lines, or - for stdin (got '')")
    try:
        with Path(name).open("rb") as lines:
            return write_answers(lines, version)
    except OSError as error:
        raise MalformedError(f"--batch {name} cannot be read: {error.strerror}") from None
