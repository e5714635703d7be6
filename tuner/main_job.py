"""`tune --objective ...`: a request and its space, run to the end and told."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from search_spaces.errors import UserError
from search_spaces.space import Space
from tuner import report, report_rungs, report_text
from tuner.display import Display
from tuner.engine import Engine
from tuner.exit_code import Exit
from tuner.full_disk import is_of_a_full_disk
from tuner.goodput import Goodput
from tuner.load_mix import load_told
from tuner.patience import Patience
from tuner.places import with_containers
from tuner.preflight import preflight_of
from tuner.request import Request
from tuner.search import HOST, run_study
from tuner.server_hosts import hosts_lines
from tuner.servers.host import Host, HostError, LocalHost, port_is_free
from tuner.servers.local import LocalLauncher
from tuner.servers.orphans import end_orphans
from tuner.servers.protocol import Launcher
from tuner.servers.wrapped import container_notices, end_container_orphans
from tuner.sifting import sift
from tuner.study_result import StudyResult
from tuner.voice import SIMULATED_MARK, OutputLostError, Voice

SLOW_MACHINE_S = 60.0
"""How long a simulated server may be silent for no better reason than a busy machine."""


def run(
    request: Request,
    space: Space,
    *,
    json_output: bool,
    notices: Sequence[str] = (),
    launcher: Launcher | None = None,
    patience: Patience | None = None,
) -> int:
    """Runs the study, prints what came of it and returns the exit code. Raises UserError."""
    voice = Voice(mark=SIMULATED_MARK if request.engine.is_simulated else "")
    if request.port and not request.hosts and not port_is_free(HOST, request.port):
        raise UserError(f"port {request.port} is in use on {HOST}: leave --port out for any free one")
    about_its_container = container_notices(request.engine.program, request.model_path)
    sifted = sift(request, space)
    try:
        Path(request.work_dir).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {request.work_dir}: {error.strerror}") from None
    launcher = with_containers(launcher or LocalLauncher())
    if ended := sum(_orphans_ended(host) for host in {"": LocalHost(), **{h.name: h for h in launcher.hosts}}.values()):
        voice.say(f"ended {ended} processes that a killed tuner had left running")
    if ended := sum(end_container_orphans(host, request.engine.program) for host in launcher.hosts):
        voice.say(f"removed {ended} containers that a killed tuner had left running")
    for line in (*_opening(request, space), *hosts_lines(request.hosts), *notices, *about_its_container):
        voice.say(line)
    with Display(voice, request.objective, request.trials) as display, _room_to_write():
        result = run_study(
            request,
            space,
            sifted,
            launcher=launcher,
            patience=patience or _patience_with(request.engine),
            listener=display,
            preflight=preflight_of(request, launcher.hosts),
        )
    _tell(voice, result, json_output=json_output)
    if result.interrupted:
        return Exit.INTERRUPTED
    return Exit.DONE if result.winner else Exit.NO_TRIAL_SUCCEEDED


@contextlib.contextmanager
def _room_to_write() -> Iterator[None]:
    """Raises OutputLostError where a store could not be written for want of room: what it holds is whole, and a trial
    under way is settled as interrupted at the next start.
    """
    try:
        yield
    except Exception as error:
        if is_of_a_full_disk(error):
            raise OutputLostError(
                "the disk is full: the study could not be written; with room again, the same command goes on from here"
            ) from error
        raise


def _orphans_ended(host: Host) -> int:
    try:
        return end_orphans(host)
    except HostError as error:
        raise UserError(f"cannot look for what a killed tuner may have left: {error}") from None


def _patience_with(engine: Engine) -> Patience:
    usual = Patience.usual()
    return usual.on_a_clock(engine.clock_scale, beside_s=SLOW_MACHINE_S) if engine.is_simulated else usual


def _opening(request: Request, space: Space) -> list[str]:
    w = request.workload
    lines = [
        f"{request.objective} of {request.model.name} on {request.cluster.name}, SGLang {request.engine.shown_version}",
        f"{load_told(w, request.mix)}, concurrency {','.join(map(str, w.concurrencies))}",
        f"{report_text.space_size(space)}; study {request.study}",
    ]
    if request.mix.words:
        lines.append(f"predicted for the mean lengths, {w.input_tokens} tokens in and {w.output_tokens} out")
    if isinstance(request.objective, Goodput):
        lines.append(f"limits: {request.objective.limits_told}; predicted by means, of a closed loop")
    if request.engine.is_simulated:
        lines.insert(
            0,
            f"every figure is simulated ({request.engine.simulated_because}): the server imitates "
            f"SGLang {request.engine.shown_version} on {request.cluster.name}, and times are seconds of its clock",
        )
    return lines


def _tell(voice: Voice, result: StudyResult, *, json_output: bool) -> None:
    if json_output:
        voice.document(json.dumps(report.document(result), indent=2, allow_nan=False) + "\n")
        return
    voice.result(report_text.trial_table(result, voice.width))
    for line in (
        *report_text.ends_without_value(result),
        *report_text.judged_lines(result),
        *report_rungs.doubt_lines(result.records),
        *report_rungs.ladder_end_lines(result.records),
        report_text.space_line(result),
        *report_text.verdict_lines(result),
    ):
        voice.result(line)
    if result.winner is not None:
        commands = report.command_lines(result.request, result.winner.requested)
        voice.result("launch it with:", *(f"  {command}" for command in commands))
        voice.result(*report_text.caveats(result))
    voice.result(f"MLflow: {result.tracking_uri}; `tune ui` serves it, this study at {report.page(result)}")
