"""`tune measure`: a server that runs already."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import shorten
from typing import Annotated

import typer

from search_spaces.errors import UserError
from tuner.commands.shared_options import (
    USUAL_LADDER,
    WORKLOAD,
    Concurrency,
    Json,
    LoadGenerator,
    TrackingUri,
    WholeLadder,
)
from tuner.commands.told_errors import errors_told
from tuner.server_keys import ServerKeys, checked_key

_MOST_DIGITS = 12


def measure(
    url: Annotated[str, typer.Argument(help="Where the server answers, e.g. http://127.0.0.1:30000.", metavar="URL")],
    model: Annotated[
        str | None,
        typer.Option(
            help="A folder with a config.json, or a name or hub id of the catalogue. Default: what the server says.",
            metavar="MODEL",
        ),
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(help="The environment variable that holds the key the server asks for.", metavar="NAME"),
    ] = None,
    admin_api_key_env: Annotated[
        str | None,
        typer.Option(help="The same for its --admin-api-key, where it has one.", metavar="NAME"),
    ] = None,
    concurrency: Concurrency = USUAL_LADDER,
    input_tokens: Annotated[str, typer.Option(help="Prompt length.", rich_help_panel=WORKLOAD, metavar="N")] = "1024",
    output_tokens: Annotated[str, typer.Option(help="Output length.", rich_help_panel=WORKLOAD, metavar="N")] = "512",
    whole_ladder: WholeLadder = False,
    load_generator: LoadGenerator = "own",
    engine_command: Annotated[
        str | None,
        typer.Option(
            help="The SGLang of --load-generator sglang. Default: this Python's -m sglang.launch_server.",
            rich_help_panel=WORKLOAD,
            metavar="WORDS",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Makes prompts repeatable.", rich_help_panel=WORKLOAD)] = 0,
    tracking_uri: TrackingUri = None,
    json_output: Json = False,
) -> None:
    """Measures an SGLang server that somebody else started, and leaves it running.

    The server should have nothing else to do: its prefix cache is emptied before each rung of the ladder.
    """
    from search_spaces.workload import Workload  # noqa: PLC0415
    from tuner import asking  # noqa: PLC0415
    from tuner.load_words import LoadWords, check_generator  # noqa: PLC0415
    from tuner.measured_server import base_url_of  # noqa: PLC0415

    with errors_told(json_output=json_output):
        base_url = base_url_of(url)
        keys = ServerKeys(
            api_key=_key("--api-key-env", api_key_env), admin_api_key=_key("--admin-api-key-env", admin_api_key_env)
        )
        if not 0 <= seed < 2**32:
            raise UserError(f"--seed is between 0 and {2**32 - 1} (got {seed})")
        check_generator(LoadWords(generator=load_generator))
        if engine_command is not None and load_generator != "sglang":
            raise UserError(
                "--engine-command names the SGLang whose benchmark sends the load (--load-generator sglang): "
                "the server at URL runs already"
            )
        workload = Workload(
            input_tokens=_length("--input-tokens", input_tokens),
            output_tokens=_length("--output-tokens", output_tokens),
            concurrencies=asking.concurrencies_of(concurrency),
        )
        root = Path.cwd() / "mlruns"
        _, tracking_uri = asking.stores(root, None, tracking_uri)
        from tuner import measure_job  # noqa: PLC0415

        request = measure_job.MeasureRequest(
            base_url=base_url,
            keys=keys,
            model=model,
            workload=workload,
            seed=seed,
            is_whole_ladder=whole_ladder,
            sglang_program=asking.engine_program(engine_command) if load_generator == "sglang" else None,
            tracking_uri=tracking_uri,
            artifact_root=str(root / "artifacts"),
        )
        code = measure_job.run(request, json_output=json_output)
    raise typer.Exit(code)


def _key(option: str, variable: str | None) -> str:
    if variable is None:
        return ""
    key = os.environ.get(variable, "").strip()  # a file or a secret store often ends it with a line end
    if not key:
        raise UserError(f"{option} {variable}: there is no such variable in the environment, or it is empty")
    return checked_key(f"{option} {variable}", key)


def _length(option: str, word: str) -> int:
    if ":" in word:
        raise UserError(
            f"{option} is one number of tokens here, no range (got {word!r}): requests of several lengths are for "
            "`tune --objective`"
        )
    if not (word.isascii() and word.isdigit() and len(word) <= _MOST_DIGITS):
        raise UserError(f"{option} is a number of tokens, e.g. 1024 (got {shorten(word, 80)!r})")
    return int(word)
