"""`tune --objective ...`: a request and its space, run to the end and told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from search_spaces.errors import UserError
from search_spaces.space import Space
from tuner import report, report_text
from tuner.display import Display
from tuner.engine import Engine
from tuner.exit_code import Exit
from tuner.request import Request
from tuner.search import HOST, run_study
from tuner.servers.local import LocalLauncher, end_orphans, port_is_free
from tuner.servers.protocol import Launcher
from tuner.sifting import sift
from tuner.study_result import StudyResult
from tuner.trial import Patience
from tuner.voice import SIMULATED_MARK, Voice

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
    if request.port and not port_is_free(HOST, request.port):
        raise UserError(f"port {request.port} is in use on {HOST}: leave --port out for any free one")
    sifted = sift(request, space)
    try:
        Path(request.work_dir).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {request.work_dir}: {error.strerror}") from None
    if ended := end_orphans():
        voice.say(f"ended {ended} processes that a killed tuner had left running")
    for line in (*_opening(request, space), *notices):
        voice.say(line)
    with Display(voice, request.objective, request.trials) as display:
        result = run_study(
            request,
            space,
            sifted,
            launcher=launcher or LocalLauncher(),
            patience=patience or _patience_with(request.engine),
            listener=display,
        )
    _tell(voice, result, json_output=json_output)
    if result.interrupted:
        return Exit.INTERRUPTED
    return Exit.DONE if result.winner else Exit.NO_TRIAL_SUCCEEDED


def _patience_with(engine: Engine) -> Patience:
    usual = Patience()
    if not engine.is_simulated:
        return usual
    return Patience(
        starting_s=SLOW_MACHINE_S + usual.starting_s / engine.clock_scale,
        loaded_s=SLOW_MACHINE_S + usual.loaded_s / engine.clock_scale,
    )


def _opening(request: Request, space: Space) -> list[str]:
    w = request.workload
    lines = [
        f"{request.objective} of {request.model.name} on {request.cluster.name}, SGLang {request.engine.shown_version}",
        f"{w.input_tokens} tokens in, {w.output_tokens} out, concurrency {','.join(map(str, w.concurrencies))}",
        f"{report_text.space_size(space)}; study {request.study}",
    ]
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
        report_text.space_line(result),
        *report_text.verdict_lines(result),
    ):
        voice.result(line)
    if result.winner is not None:
        voice.result("launch it with:", f"  {report.command_line(result.request, result.winner.requested)}")
        voice.result(*report_text.caveats(result))
    voice.result(f"MLflow: {result.tracking_uri}; `tune ui` serves it, this study at {report.page(result)}")
