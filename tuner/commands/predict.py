"""`tune predict`: what a layout would do, or all of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from search_spaces.errors import MalformedError, UserError
from tuner.commands.told_errors import errors_told
from tuner.exit_code import Exit

if TYPE_CHECKING:
    from search_spaces.sglang.versions import EngineVersion
    from tuner.predict_request import PredictRequest

DEFAULT_LIMIT = 15
DEFAULT_LADDER = "1,2,4,8,16,32,64,128,256,512"

_WORKLOAD = "The load"
_PEAK = "peak_throughput"
_ALL = "Without flags: all layouts"
_MEASURED = "Measurements"
_BATCH = "Many at once"


def predict(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="Launch flags, a whole launch command, a script or systemd unit, - for stdin, or a notation such as "
            "TP8 EP8. Flags come after --. Without any, every legal layout is ranked.",
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
            help="GPUs, e.g. 8xrtx-pro-6000 or 2x8xh200, or a JSON file of them (tune probe --save). Default: what is "
            "found here, else 8xrtx-pro-6000.",
            metavar="CLUSTER",
        ),
    ] = None,
    engine_version: Annotated[
        str | None, typer.Option(help="Whose rules and paths to use. Default: the newest known.", metavar="VERSION")
    ] = None,
    input_tokens: Annotated[int, typer.Option(help="Prompt length.", rich_help_panel=_WORKLOAD)] = 1024,
    output_tokens: Annotated[int, typer.Option(help="Output length.", rich_help_panel=_WORKLOAD)] = 512,
    concurrency: Annotated[
        str, typer.Option(help="Requests in flight, one or more.", rich_help_panel=_WORKLOAD, metavar="N,N,...")
    ] = DEFAULT_LADDER,
    accept_length: Annotated[
        float,
        typer.Option(
            help="Tokens accepted per decode step where a layout decodes speculatively, the verified one included.",
            rich_help_panel=_WORKLOAD,
        ),
    ] = 1.0,
    objective: Annotated[
        str,
        typer.Option(help="What to rank by: peak_throughput or c1_latency.", rich_help_panel=_ALL, metavar="NAME"),
    ] = _PEAK,
    pin: Annotated[
        list[str] | None,
        typer.Option(
            help="Hold a dimension fixed, e.g. tp_size=8. Repeatable.", rich_help_panel=_ALL, metavar="NAME=VALUE"
        ),
    ] = None,
    all_reduce_paths: Annotated[
        bool,
        typer.Option(
            "--all-reduce-paths",
            help="Also each layout with each other way of its all-reduces that a flag chooses.",
            rich_help_panel=_ALL,
        ),
    ] = False,
    limit: Annotated[
        int, typer.Option(help="Layouts to show; --all shows every one.", min=0, rich_help_panel=_ALL)
    ] = DEFAULT_LIMIT,
    show_all: Annotated[bool, typer.Option("--all", help="Show every legal layout.", rich_help_panel=_ALL)] = False,
    plot: Annotated[
        str | None,
        typer.Option(help="Also draw the plot into a .png, .svg or .html file.", rich_help_panel=_ALL, metavar="FILE"),
    ] = None,
    measured: Annotated[
        list[str] | None,
        typer.Option(
            help="A JSON-lines file (- for stdin) of what was measured of this model on these GPUs under this load: "
            "flags, argv or sizes, concurrency, tpot_ms; if known ttft_ms, output_tok_s, env. Repeatable.",
            rich_help_panel=_MEASURED,
            metavar="FILE",
        ),
    ] = None,
    study: Annotated[
        str | None,
        typer.Option(
            help="Calibrate by the finished trials of this study; what died in it is not ranked.",
            rich_help_panel=_MEASURED,
            metavar="NAME",
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            help="Optuna's storage of the study. Default: ./mlruns/optuna.db.",
            rich_help_panel=_MEASURED,
            metavar="URL",
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            help="A JSON-lines file (- for stdin): one prediction for each line (id, model, gpu, n_gpus, flags or "
            "argv, isl, osl, concurrency).",
            metavar="FILE",
            rich_help_panel=_BATCH,
        ),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """What a layout would do: memory, times with intervals, and the limit of the GPUs; or every legal layout, ranked.

    Exit code 0: predicted. 3: illegal, or too large for the GPUs. 2: the words cannot be used.
    """
    from search_spaces.sglang.versions import NEWEST, EngineVersion  # noqa: PLC0415

    if batch is not None:
        version = EngineVersion.parse(engine_version) if engine_version is not None else NEWEST
        if words or model or cluster or pin or plot or all_reduce_paths or measured or study or storage:
            raise UserError(
                "--batch takes everything from its file: no words, --model, --cluster, --pin, --plot, "
                "--all-reduce-paths, --measured, --study or --storage beside it"
            )
        if concurrency != DEFAULT_LADDER or accept_length != 1.0:
            raise UserError("--batch takes concurrency and acceptance_length from its lines")
        raise typer.Exit(_run_batch(batch, version))
    with errors_told(json_output=json_output):
        if words and (pin or plot or all_reduce_paths):
            raise UserError(
                "--pin, --plot and --all-reduce-paths are for all layouts: leave the launch's own words out"
            )
        if words and (show_all or limit != DEFAULT_LIMIT or objective != _PEAK):
            raise UserError("--limit, --all and --objective are for all layouts: leave the launch's own words out")
        if measured and study is not None:
            raise UserError("--measured and --study are two sources of measurements: give one")
        if storage is not None and study is None:
            raise UserError("--storage says where the study is: it goes with --study")
        from search_spaces.workload import Workload  # noqa: PLC0415
        from tuner import asking  # noqa: PLC0415
        from tuner.objective import Objective  # noqa: PLC0415
        from tuner.predict_request import PredictRequest, ladder_of  # noqa: PLC0415

        asked, ladder = ladder_of(concurrency)
        request = PredictRequest(
            words=tuple(words or ()),
            model=model,
            cluster=cluster,
            version=EngineVersion.parse(engine_version) if engine_version is not None else None,
            workload=Workload(
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                concurrencies=ladder,
                acceptance_length=accept_length,
            ),
            asked=asked,
            objective=Objective.parse(objective),
            pins=asking.pins_of(pin or ()),
            all_reduce_paths=all_reduce_paths,
            limit=None if show_all else limit,
            plot=None if plot is None else _plot_path(plot),
            measured=tuple(measured or ()),
            study=study,
            storage=storage,
        )
        code = _run(request, json_output=json_output)
    raise typer.Exit(code)


def _plot_path(word: str) -> Path:
    from tuner.predict_figure import check_plot_path  # noqa: PLC0415

    return check_plot_path(word)


def _run(request: PredictRequest, *, json_output: bool) -> Exit:
    # What reads launches takes its time to import, and is not needed for a ranking.
    if request.words:
        from tuner.predict_launch_job import run  # noqa: PLC0415

        return run(request, json_output=json_output)
    from tuner.predict_space_job import rank  # noqa: PLC0415

    return rank(request, json_output=json_output)


def _run_batch(name: str, version: EngineVersion) -> Exit:
    from tuner.predict_batch import write_answers  # noqa: PLC0415
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
