"""`tune --objective ...`: the main job."""

from __future__ import annotations

from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from search_spaces.errors import CannotRunError, UserError
from tuner.exit_code import Exit

if TYPE_CHECKING:
    from search_spaces.hardware import Cluster
    from search_spaces.layout import Layout
    from search_spaces.model import Model
    from search_spaces.sglang.versions import EngineVersion

DEFAULT_STORE = "mlruns"

_SEARCH = "The search"
_WORKLOAD = "The load"
_ENGINE = "The engine"
_RECORD = "The record"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"layout-tune {installed_version('layout-tune')}")
        raise typer.Exit


def search(
    context: typer.Context,
    objective: Annotated[
        str | None,
        typer.Option(help="peak_throughput or c1_latency.", rich_help_panel=_SEARCH, metavar="NAME"),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A folder with a config.json, or a name or hub id of the catalogue. Default when simulated: "
            "kimi-k2.6.",
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
    trials: Annotated[
        int,
        typer.Option(help="Live trials of the study in all, earlier ones included.", rich_help_panel=_SEARCH),
    ] = 12,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Time for this call, e.g. 90m, 2h; a trial under way ends at its next rung.",
            rich_help_panel=_SEARCH,
            metavar="TIME",
        ),
    ] = None,
    pin: Annotated[
        list[str] | None,
        typer.Option(
            help="Hold a dimension fixed, e.g. tp_size=8. Repeatable.",
            rich_help_panel=_SEARCH,
            metavar="NAME=VALUE",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="Your current layout as launch flags: tried and compared.",
            rich_help_panel=_SEARCH,
            metavar="FLAGS",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Makes prompts and search repeatable.", rich_help_panel=_SEARCH)] = 0,
    input_tokens: Annotated[int, typer.Option(help="Prompt length.", rich_help_panel=_WORKLOAD)] = 1024,
    output_tokens: Annotated[int, typer.Option(help="Output length.", rich_help_panel=_WORKLOAD)] = 512,
    concurrency: Annotated[
        str, typer.Option(help="The ladder: rising, from 1.", rich_help_panel=_WORKLOAD, metavar="N,N,...")
    ] = "1,4,16,64,128",
    engine: Annotated[
        str,
        typer.Option(
            help="auto, sglang or simulated. auto: SGLang where it and the GPUs are found, else simulated.",
            rich_help_panel=_ENGINE,
            metavar="NAME",
        ),
    ] = "auto",
    engine_command: Annotated[
        str | None,
        typer.Option(
            help="How SGLang is started. Default: this Python's -m sglang.launch_server.",
            rich_help_panel=_ENGINE,
            metavar="WORDS",
        ),
    ] = None,
    engine_args: Annotated[
        str,
        typer.Option(help="Appended to every launch, verbatim.", rich_help_panel=_ENGINE, metavar="WORDS"),
    ] = "",
    engine_version: Annotated[
        str | None,
        typer.Option(
            help="Whose rules and flags to use. Default: the installed one's.",
            rich_help_panel=_ENGINE,
            metavar="VERSION",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(help="Of the servers under test. Default: any free one.", rich_help_panel=_ENGINE)
    ] = 0,
    clock_scale: Annotated[
        float | None,
        typer.Option(help="Simulated seconds per second, at most (simulated engine only).", rich_help_panel=_ENGINE),
    ] = None,
    study: Annotated[
        str | None,
        typer.Option(
            help="Its name. Default: made of what is asked, so that the same command resumes.",
            rich_help_panel=_RECORD,
            metavar="NAME",
        ),
    ] = None,
    tracking_uri: Annotated[
        str | None,
        typer.Option(
            help="MLflow's store. Default: ./mlruns/mlflow.db.",
            envvar="MLFLOW_TRACKING_URI",
            rich_help_panel=_RECORD,
            metavar="URI",
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(help="Optuna's storage. Default: ./mlruns/optuna.db.", rich_help_panel=_RECORD, metavar="URL"),
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="One JSON document on stdout.", rich_help_panel=_RECORD)
    ] = False,
    _version: Annotated[
        bool, typer.Option("--version", help="Say the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand is not None:
        return
    if objective is None:
        typer.echo(context.get_help())
        raise typer.Exit(Exit.DONE)
    from tuner import asking  # noqa: PLC0415
    from tuner.objective import Objective  # noqa: PLC0415

    wanted = Objective.parse(objective)
    if trials < 1:
        raise UserError(f"--trials is a count of at least 1 (got {trials})")
    if not 0 <= port < 65536:
        raise UserError(f"--port is between 1 and 65535, or 0 for any free one (got {port})")
    if clock_scale is not None and not clock_scale > 0:
        raise UserError(f"--clock-scale is above zero (got {clock_scale:g})")
    chosen = asking.choose_engine(
        engine,
        cluster_word=cluster,
        engine_command=engine_command,
        engine_args=engine_args,
        engine_version=engine_version,
        clock_scale=clock_scale or asking.DEFAULT_CLOCK_SCALE,
        is_story=model is None and cluster is None,
    )
    if model is None and not chosen.engine.is_simulated:
        raise UserError("--model is needed: the folder of the model to serve, or its name or hub id")
    from search_spaces.space import enumerate_space  # noqa: PLC0415
    from search_spaces.workload import Workload  # noqa: PLC0415

    if not 0 <= seed < 2**32:
        raise UserError(f"--seed is between 0 and {2**32 - 1} (got {seed})")
    served = asking.served(asking.STORY_MODEL if model is None else model)
    workload = Workload(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        concurrencies=asking.concurrencies_of(concurrency),
    )
    workload.check_against(served.model)
    version = chosen.engine.version
    current = asking.layout_of("--baseline", baseline, version) if baseline is not None else None
    if current is not None:
        _refuse_illegal(current, served.model, chosen.cluster, version)
    pins = asking.pins_of(pin or ())
    budget_s = asking.budget_s_of(budget)
    space = enumerate_space(
        served.model,
        chosen.cluster,
        version,
        pins=pins,
        extra=() if current is None else (current,),
        all_reduce_paths=True,
    )
    from tuner.request import Request, space_key  # noqa: PLC0415

    root = Path.cwd() / DEFAULT_STORE
    storage, tracking_uri = asking.stores(root, storage, tracking_uri)
    request = Request(
        objective=wanted,
        model=served.model,
        model_path=served.model_path,
        cluster=chosen.cluster,
        workload=workload,
        engine=chosen.engine,
        storage_url=storage,
        tracking_uri=tracking_uri,
        artifact_root=str(root / "artifacts"),
        work_dir=str(root / "work"),
        trials=trials,
        budget_s=budget_s,
        seed=seed,
        port=port,
        baseline=current,
        pins=pins,
        study_name="" if study is None else asking.study_name(study),
        space_key=space_key(c.requested for c in space.candidates),
    )
    from tuner.main_job import run  # noqa: PLC0415

    raise typer.Exit(run(request, space, json_output=json_output, notices=chosen.notices))


def _refuse_illegal(layout: Layout, model: Model, cluster: Cluster, version: EngineVersion) -> None:
    """Raises CannotRunError with every rule that --baseline breaks, and the nearest legal layouts."""
    from search_spaces.sglang.flags import to_argv  # noqa: PLC0415
    from search_spaces.sglang.rules import judge  # noqa: PLC0415

    verdict = judge(layout, model, cluster, version)
    if verdict.is_legal:
        return
    broken = "; ".join(f"{v.message} [{v.rule}, {v.source}]" for v in verdict.violations)
    nearest = " or ".join(" ".join(to_argv(s, version)) for s in verdict.suggestions) or "none found"
    raise CannotRunError(f"--baseline is illegal under SGLang {version}: {broken}; nearest legal: {nearest}")
