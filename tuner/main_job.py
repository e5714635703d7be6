"""`tune --objective ...`: a request and its space, run to the end and told."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from search_spaces.errors import UserError
from search_spaces.space import Space
from tuner import report
from tuner.display import Display
from tuner.exit_code import Exit
from tuner.request import Request
from tuner.search import HOST, run_study
from tuner.servers.local import LocalLauncher, end_orphans, port_is_free
from tuner.servers.protocol import Launcher
from tuner.study_result import StudyResult
from tuner.trial import Patience
from tuner.voice import SIMULATED_MARK, Voice

SIMULATED_PATIENCE = Patience(starting_s=60.0, loaded_s=60.0)


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
    if ended := end_orphans():
        voice.say(f"ended {ended} processes that a killed tuner had left running")
    for line in (*_opening(request, space), *notices):
        voice.say(line)
    if patience is None:
        patience = SIMULATED_PATIENCE if request.engine.is_simulated else Patience()
    with Display(voice, request.objective, request.trials) as display:
        result = run_study(request, space, launcher=launcher or LocalLauncher(), patience=patience, listener=display)
    _tell(voice, result, json_output=json_output)
    if result.interrupted:
        return Exit.INTERRUPTED
    return Exit.DONE if result.winner else Exit.NO_TRIAL_SUCCEEDED


def _opening(request: Request, space: Space) -> list[str]:
    lines = []
    if request.engine.is_simulated:
        lines.append(
            f"every figure is simulated, because {request.engine.simulated_because}: the server is a simulation of "
            f"SGLang {request.engine.version} on {request.cluster.name}, and times are seconds of its clock"
        )
    w = request.workload
    load = f"{w.input_tokens} tokens in, {w.output_tokens} out, concurrency {','.join(map(str, w.concurrencies))}"
    lines += [
        f"{request.objective} of {request.model.name} on {request.cluster.name}, SGLang {request.engine.version}",
        load,
        f"{len(space.candidates)} legal layouts of {space.considered} combinations; study {request.study}",
    ]
    return lines


def _tell(voice: Voice, result: StudyResult, *, json_output: bool) -> None:
    if json_output:
        sys.stdout.write(json.dumps(report.document(result), indent=2, allow_nan=False) + "\n")
        return
    voice.result(report.trial_table(result))
    for line in (*report.ends_without_value(result), report.space_line(result), *report.verdict_lines(result)):
        voice.result(line)
    if result.winner is not None:
        voice.result("launch it with:", f"  {report.command_line(result.request, result.winner.requested)}")
    voice.result(f"MLflow: {result.tracking_uri}, run {result.run_id}; `tune ui` shows it at {result.run_url}")
