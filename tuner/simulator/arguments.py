"""The simulator's command line: SGLang's flags, and a few of its own."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.config_json import model_from_config
from search_spaces.errors import UserError
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.sglang.flags import FlagError, from_argv
from search_spaces.sglang.versions import NEWEST, EngineVersion
from tuner.simulator.engine_options import OptionError, check_options

PROGRAM = "sglang serve"
_LARGEST_PORT = 65535
WRONG_ANSWERS_VARIABLE = "LAYOUT_TUNE_SIMULATED_WRONG_ANSWERS"
FAULTS_VARIABLE = "LAYOUT_TUNE_SIMULATED_FAULTS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """layout: as requested. clock_scale: simulated seconds per wall second, infinite for no pacing.

    context_length: None where the model's own holds. launch_words: the command line, for the record.
    """

    model: Model
    cluster: Cluster
    layout: Layout
    version: EngineVersion
    model_path: str
    served_model_name: str
    host: str
    port: int
    stream_interval: int
    context_length: int | None
    max_total_tokens: int | None
    max_prefill_tokens: int
    schedule_conservativeness: float
    decode_log_interval: int
    enable_metrics: bool
    skip_tokenizer_init: bool
    clock_scale: float
    seed: int
    reason: str
    crash_at_running: int | None
    hang_at_running: int | None
    start_hang: bool
    wrong_answers: str
    faults_path: str
    launch_words: tuple[str, ...]
    node_rank: int = 0
    dist_init_addr: str = ""
    api_key: str = field(default="", repr=False)
    admin_api_key: str = field(default="", repr=False)

    def answers_wrongly(self, layout: Layout) -> bool:
        """Whether it is told to compute something else than other layouts of the model."""
        name, _, value = self.wrong_answers.partition("=")
        return bool(name) and str(getattr(layout, name, None)) == value


def read_arguments(words: Sequence[str]) -> Arguments:
    """Exits with code 2 and SGLang's words where it would; the same way for the simulator's own options."""
    parser = _parser()
    known, others = parser.parse_known_args(words)
    try:
        version = EngineVersion.parse(known.engine_version)
        flags = from_argv(others, version)
        check_options(flags.rest)
        model = _model(known.model_path)
        cluster = parse_cluster(known.cluster)
        if not 0 <= known.node_rank < flags.layout.nnodes:
            parser.error(f"--node-rank {known.node_rank} is none of --nnodes {flags.layout.nnodes}")
        fraction = flags.layout.mem_fraction_static
        if fraction is not None and not math.isfinite(fraction):
            parser.error(f"--mem-fraction-static {fraction} is no fraction")
    except FlagError as error:
        parser.error(error.engine_text)
    except (OptionError, UserError) as error:
        parser.error(str(error))
    return Arguments(
        model=model,
        cluster=cluster,
        layout=flags.layout,
        version=version,
        model_path=known.model_path,
        served_model_name=known.served_model_name or known.model_path,
        host=known.host,
        port=known.port,
        stream_interval=known.stream_interval,
        context_length=known.context_length,
        max_total_tokens=known.max_total_tokens,
        max_prefill_tokens=known.max_prefill_tokens,
        schedule_conservativeness=known.schedule_conservativeness,
        decode_log_interval=known.decode_log_interval,
        enable_metrics=known.enable_metrics,
        skip_tokenizer_init=known.skip_tokenizer_init,
        clock_scale=known.clock_scale,
        seed=known.seed,
        reason=known.simulated_because,
        crash_at_running=known.inject_crash_at_running,
        hang_at_running=known.inject_hang_at_running,
        start_hang=known.inject_start_hang,
        wrong_answers=known.inject_wrong_answers,
        faults_path=known.inject_faults,
        launch_words=tuple(words),
        node_rank=known.node_rank,
        dist_init_addr=known.dist_init_addr,
        api_key=known.api_key,
        admin_api_key=known.admin_api_key,
    )


def usage_error(message: str) -> NoReturn:
    """Ends as argparse does."""
    _parser().error(message)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        usage=f"{PROGRAM} --model-path MODEL [options]",
        description="A simulated SGLang server. No GPU is used; times are simulated seconds.",
        epilog="SGLang's other options are accepted; those that shape the layout act as in SGLang.",
        allow_abbrev=False,
        exit_on_error=True,
    )
    engine = parser.add_argument_group("SGLang")
    engine.add_argument("--model-path", "--model", required=True, help="catalogue name, or folder with config.json")
    engine.add_argument("--served-model-name")
    engine.add_argument("--host", type=_host, default="127.0.0.1")
    engine.add_argument("--port", type=_port, default=30000)
    engine.add_argument("--stream-interval", type=_at_least_one, default=1, help="output tokens per streamed chunk")
    engine.add_argument("--context-length", type=_at_least_one)
    engine.add_argument("--max-total-tokens", type=_at_least_one, help="caps the KV pool")
    engine.add_argument("--max-prefill-tokens", type=_at_least_one, default=16384)
    engine.add_argument("--schedule-conservativeness", type=float, default=1.0)
    engine.add_argument("--decode-log-interval", type=_at_least_one, default=40)
    engine.add_argument("--enable-metrics", action="store_true")
    engine.add_argument("--node-rank", type=int, default=0)
    engine.add_argument(
        "--dist-init-addr",
        "--nccl-init-addr",
        type=_meeting_place,
        default="",
        help="where the nodes of --nnodes meet; without it this process plays them all",
    )
    engine.add_argument("--skip-tokenizer-init", action="store_true")
    engine.add_argument("--api-key", default="", help="asked of every client, as a bearer token")
    engine.add_argument("--admin-api-key", default="", help="asked of those that steer the server")
    own = parser.add_argument_group("simulator")
    own.add_argument("--cluster", required=True, help="what to simulate, e.g. 8xrtx-pro-6000")
    own.add_argument("--engine-version", default=str(NEWEST), help="whose rules hold")
    own.add_argument(
        "--clock-scale", type=_scale, default=60.0, help="simulated seconds per wall second; inf: unpaced (default 60)"
    )
    own.add_argument("--seed", type=int, default=0, help="of the run-to-run noise")
    own.add_argument("--simulated-because", default="", help="why this is no real engine; shown in /server_info")
    own.add_argument("--inject-crash-at-running", type=_at_least_one, metavar="N", help="die when N requests run")
    own.add_argument("--inject-hang-at-running", type=_at_least_one, metavar="N", help="fall silent when N run")
    own.add_argument(
        "--inject-wrong-answers",
        default=os.environ.get(WRONG_ANSWERS_VARIABLE, ""),
        metavar="NAME=VALUE",
        help=f"compute something else in layouts like ep_size=4 (default: ${WRONG_ANSWERS_VARIABLE})",
    )
    own.add_argument("--inject-start-hang", action="store_true", help="never finish loading")
    own.add_argument(
        "--inject-faults",
        default=os.environ.get(FAULTS_VARIABLE, ""),
        metavar="FILE",
        help=f"of faults, one for each server that starts (tuner/simulator/faults.py; default: ${FAULTS_VARIABLE})",
    )
    return parser


def _model(path: str) -> Model:
    config = Path(path) / "config.json"
    if not config.is_file():
        return load_model(path)
    try:
        facts = json.loads(config.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{config} is not JSON: {error}") from None
    return model_from_config(facts, name=Path(path).resolve().name, source=str(config))


def _at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1 (got {value})")
    return value


def _host(text: str) -> str:
    try:
        text.encode("idna")
    except UnicodeError:
        raise argparse.ArgumentTypeError(f"is no name or address of a machine (got {text[:80]!r})") from None
    return text


def _port(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid int value: {text[:80]!r}") from None
    if not 1 <= value <= _LARGEST_PORT:
        raise argparse.ArgumentTypeError(f"must be from 1 to {_LARGEST_PORT} (got {text[:80]})")
    return value


def _meeting_place(text: str) -> str:
    """`host:port`; empty for none."""
    host, colon, port = text.rpartition(":")
    if not text:
        return text
    if not colon or not host or not port.isdecimal():
        raise argparse.ArgumentTypeError(f"must be host:port (got {text[:80]!r})")
    _port(port)
    _host(host.strip("[]"))
    return text


def _scale(text: str) -> float:
    value = float(text)
    if math.isnan(value) or value <= 0:
        raise argparse.ArgumentTypeError(f"must be above 0 (got {text})")
    return value
