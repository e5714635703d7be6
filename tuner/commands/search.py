"""`tune --objective ...`: the main job."""

from __future__ import annotations

from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from search_spaces.errors import CannotRunError, UserError
from tuner.commands.given_options import is_for_another_command
from tuner.commands.shared_options import (
    RECORD,
    USUAL_LADDER,
    WORKLOAD,
    Concurrency,
    Json,
    LoadGenerator,
    TrackingUri,
    WholeLadder,
)
from tuner.exit_code import Exit

if TYPE_CHECKING:
    from search_spaces.hardware import Cluster
    from search_spaces.layout import Layout
    from search_spaces.model import Model
    from search_spaces.sglang.versions import EngineVersion

DEFAULT_STORE = "mlruns"

_SEARCH = "The search"
_ENGINE = "The engine"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"layout-tune {installed_version('layout-tune')}")
        raise typer.Exit


def search(
    context: typer.Context,
    objective: Annotated[
        str | None,
        typer.Option(help="peak_throughput, c1_latency or goodput.", rich_help_panel=_SEARCH, metavar="NAME"),
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
    slo: Annotated[
        str | None,
        typer.Option(
            help="The limits of goodput, e.g. ttft_p99=2s,tpot_p99=50ms.", rich_help_panel=_SEARCH, metavar="LIMITS"
        ),
    ] = None,
    trials: Annotated[
        int,
        typer.Option(
            help="Live trials of the study in all, earlier ones included. One that the environment ended, or an "
            "interruption, says nothing of its layout and is not counted.",
            rich_help_panel=_SEARCH,
        ),
    ] = 12,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Time for this call, e.g. 90m, 2h, 45s; a bare number is minutes. A trial under way ends at its next "
            "rung.",
            rich_help_panel=_SEARCH,
            metavar="TIME",
        ),
    ] = None,
    patience: Annotated[
        str | None,
        typer.Option(
            help="How long a server may be silent before it counts as hung, e.g. 20m or 45s; a bare number is "
            "minutes. Default: 10 to 30 minutes by stage of its start, 5 under load.",
            rich_help_panel=_ENGINE,
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
    confirmations: Annotated[
        int,
        typer.Option(
            help="How often the finalists are measured again, in turn, so that the difference can be told from noise.",
            rich_help_panel=_SEARCH,
        ),
    ] = 2,
    no_correctness_probe: Annotated[
        bool,
        typer.Option(
            "--no-correctness-probe",
            help="Do not compare what layouts answer; otherwise one that answers wrongly is disqualified.",
            rich_help_panel=_SEARCH,
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Makes prompts and search repeatable.", rich_help_panel=_SEARCH)] = 0,
    input_tokens: Annotated[
        str | None,
        typer.Option(
            help="Prompt length, or a range drawn from evenly. Default: 1024.",
            rich_help_panel=WORKLOAD,
            metavar="N|A:B",
        ),
    ] = None,
    output_tokens: Annotated[
        str | None,
        typer.Option(help="Output length, likewise. Default: 512.", rich_help_panel=WORKLOAD, metavar="N|A:B"),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="JSON lines of lengths, and of arrivals if it has them (docs/measuring.md).",
            rich_help_panel=WORKLOAD,
            metavar="FILE",
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help="Real prompts, one a line, or JSON lines.", rich_help_panel=WORKLOAD, metavar="FILE"),
    ] = None,
    request_rate: Annotated[
        str | None,
        typer.Option(
            help="Requests per second, rising, 0.05 to 1000: after the ladder, Poisson arrivals at each.",
            rich_help_panel=WORKLOAD,
            metavar="R,R,...",
        ),
    ] = None,
    concurrency: Concurrency = USUAL_LADDER,
    whole_ladder: WholeLadder = False,
    noise: Annotated[
        float | None,
        typer.Option(
            help="A rung of a real server goes on until its mean request time is this sure (relative standard error), "
            "or twice as long; 0 for never. Default: 0.02.",
            rich_help_panel=WORKLOAD,
            metavar="SHARE",
        ),
    ] = None,
    load_generator: LoadGenerator = "own",
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
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Another machine, as ssh knows it, on which the servers run; it needs python3. Repeatable: one for "
            "each node of the cluster. Nothing is detected there: name --cluster, --engine-command and "
            "--engine-version too.",
            rich_help_panel=_ENGINE,
            metavar="[USER@]HOST",
        ),
    ] = None,
    slurm: Annotated[
        bool,
        typer.Option(
            "--slurm",
            help="Servers run on the nodes of the Slurm allocation that this is started in. Nothing is detected there.",
            rich_help_panel=_ENGINE,
        ),
    ] = False,
    systemd: Annotated[
        bool,
        typer.Option(
            "--systemd",
            help="Servers are transient units of systemd: root's manager, else the user's own.",
            rich_help_panel=_ENGINE,
        ),
    ] = False,
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
            rich_help_panel=RECORD,
            metavar="NAME",
        ),
    ] = None,
    tracking_uri: TrackingUri = None,
    storage: Annotated[
        str | None,
        typer.Option(help="Optuna's storage. Default: ./mlruns/optuna.db.", rich_help_panel=RECORD, metavar="URL"),
    ] = None,
    json_output: Json = False,
    _version: Annotated[
        bool, typer.Option("--version", help="Say the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    if is_for_another_command(context):
        return
    if objective is None:
        typer.echo(context.get_help())
        raise typer.Exit(Exit.DONE)
    from tuner import asking  # noqa: PLC0415
    from tuner.load_words import LoadWords, load_of, sent_by  # noqa: PLC0415
    from tuner.objective import aim_of  # noqa: PLC0415

    if not 0 <= seed < 2**32:
        raise UserError(f"--seed is between 0 and {2**32 - 1} (got {seed})")
    load_words = LoadWords(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        trace=trace,
        prompts=prompts,
        request_rate=request_rate,
        noise=noise,
        is_whole_ladder=whole_ladder,
        generator=load_generator,
    )
    workload, mix = load_of(load_words, asking.concurrencies_of(concurrency), seed)
    wanted = aim_of(objective, slo, output_tokens=workload.output_tokens, request_rates=mix.request_rates)
    if trials < 1:
        raise UserError(f"--trials is a count of at least 1 (got {trials})")
    if confirmations < 0:
        raise UserError(f"--confirmations is a count, 0 for none (got {confirmations})")
    if not 0 <= port < 65536:
        raise UserError(f"--port is between 1 and 65535, or 0 for any free one (got {port})")
    if clock_scale is not None and not clock_scale > 0:
        raise UserError(f"--clock-scale is above zero (got {clock_scale:g})")
    from tuner import places  # noqa: PLC0415
    from tuner.server_hosts import Named  # noqa: PLC0415

    place = places.place_of(host, slurm=slurm, systemd=systemd)
    named = Named(cluster=cluster, engine_command=engine_command, engine_version=engine_version)
    place.check_named(named, is_simulated=engine == "simulated")
    chosen = asking.choose_engine(
        engine,
        cluster_word=cluster,
        engine_command=engine_command,
        engine_args=engine_args,
        engine_version=engine_version,
        clock_scale=clock_scale,
        is_story=model is None and cluster is None,
        is_elsewhere=place.is_elsewhere,
    )
    place = places.check_nodes(place, chosen.cluster.num_nodes)
    if model is None and not chosen.engine.is_simulated:
        raise UserError("--model is needed: the folder of the model to serve, or its name or hub id")
    from search_spaces.space import enumerate_space  # noqa: PLC0415

    served = asking.served(asking.STORY_MODEL if model is None else model)
    mix.check_against(workload, served.model, chosen.engine.extra_args)
    mix = sent_by(load_generator, mix, chosen.engine, served.model_path, is_elsewhere=place.is_elsewhere)
    version = chosen.engine.version
    current = asking.layout_of("--baseline", baseline, version) if baseline is not None else None
    if current is not None:
        _refuse_illegal(current, served.model, chosen.cluster, version)
    pins = asking.pins_of(pin or ())
    budget_s = asking.time_s_of("--budget", budget)
    patience_s = asking.patience_s_of(patience)
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
        mix=mix,
        engine=chosen.engine,
        storage_url=storage,
        tracking_uri=tracking_uri,
        artifact_root=str(root / "artifacts"),
        work_dir=str(root / "work"),
        trials=trials,
        confirmations=confirmations,
        probes_correctness=not no_correctness_probe,
        budget_s=budget_s,
        seed=seed,
        port=port,
        hosts=place.names,
        baseline=current,
        pins=pins,
        study_name="" if study is None else asking.study_name(study),
        space_key=space_key(c.requested for c in space.candidates),
    )
    from tuner.main_job import run  # noqa: PLC0415
    from tuner.patience import Patience  # noqa: PLC0415

    with places.launcher_at(place) as launcher:
        code = run(
            request,
            space,
            json_output=json_output,
            notices=chosen.notices,
            launcher=launcher,
            patience=None if patience_s is None else Patience.alike(patience_s),
        )
    raise typer.Exit(code)


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
