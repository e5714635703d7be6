"""`tune measure URL`: one climb on a server that somebody else started."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ParamSpec

from search_spaces.workload import Workload
from tuner import measure_text
from tuner.climb import Ascent, Climb
from tuner.exit_code import Exit
from tuner.interruptible import run_interruptibly
from tuner.load_mix import LoadMix
from tuner.measure_tracking import MeasuredRun
from tuner.measured_server import FoundServer, found_server
from tuner.measurement import Measurement, RequestTiming, Rung, RungKey
from tuner.outcome import Crashed, Environment, Hung, Interrupted, Measured, Outcome, StoppedEarly, with_rungs
from tuner.patience import Patience
from tuner.server_keys import ServerKeys
from tuner.servers.attached import attach
from tuner.servers.protocol import LaunchError
from tuner.sglang_benchmark import found_benchmark
from tuner.tracking_store import TrackingError
from tuner.voice import SIMULATED_MARK, Voice
from tuner.watcher import Watcher

P = ParamSpec("P")

SLOW_MACHINE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureRequest:
    """base_url: without a path. model: `--model`, None where the server's own word is taken. sglang_program: what
    starts the SGLang whose benchmark sends the load; None for our own client.
    """

    base_url: str
    keys: ServerKeys
    model: str | None
    workload: Workload
    seed: int
    is_whole_ladder: bool
    tracking_uri: str
    artifact_root: str
    sglang_program: tuple[str, ...] | None = None


def run(request: MeasureRequest, *, json_output: bool) -> int:
    """Measures, prints what came of it and returns the exit code. Raises UserError before any load."""
    found = found_server(request.base_url, request.keys, request.model, request.workload)
    mix = _mix(request, found)
    voice = Voice(mark=SIMULATED_MARK if found.is_simulated else "")
    for line in measure_text.opening_lines(found, request.workload, mix):
        voice.say(line)
    record = _Record(voice, request, found, mix)
    timings: dict[RungKey, tuple[RequestTiming, ...]] = {}
    outcome: Outcome = Interrupted(cause="the tuner failed")
    try:
        outcome = _climbed(request, found, mix, _Told(voice, record), timings)
    finally:
        record.end(outcome, timings)
    told = record.told
    if json_output:
        if outcome.kind != "measured":
            voice.say(outcome.summary)
        document = measure_text.document(found, request.workload, mix, outcome, told)
        voice.document(json.dumps(document, indent=2, allow_nan=False) + "\n")
    else:
        for line in measure_text.result_lines(outcome, voice.width):
            voice.result(line)
        if told:
            voice.result(f"MLflow: {told['tracking_uri']}, run {told['run_id']}; `tune ui` serves it")
    match outcome:
        case Measured():
            return Exit.DONE
        case StoppedEarly():
            return Exit.INTERRUPTED
        case _:
            return Exit.INTERRUPTED if isinstance(outcome, Interrupted) else Exit.NO_TRIAL_SUCCEEDED


def _mix(request: MeasureRequest, found: FoundServer) -> LoadMix:
    mix = LoadMix(is_whole_ladder=request.is_whole_ladder)
    if request.sglang_program is None:
        return mix
    benchmark = found_benchmark(request.sglang_program, found.tokenizer, is_simulated=found.is_simulated)
    return replace(mix, by_sglang=benchmark, noise=0.0)


def _climbed(
    request: MeasureRequest,
    found: FoundServer,
    mix: LoadMix,
    watcher: Watcher,
    timings: dict[RungKey, tuple[RequestTiming, ...]],
) -> Outcome:
    try:
        server = attach(request.base_url, request.keys)
    except LaunchError as error:  # since it was looked at
        return Environment(cause=str(error), stage="attaching", exit_code=None)
    climb = Climb(_ascent(request, found, mix), server, watcher, timings)
    ended: Crashed | Hung | Environment | str | None
    interrupted = False
    try:
        ended = run_interruptibly(climb.to_the_top())
    except KeyboardInterrupt:
        ended, interrupted = None, True
    finally:
        server.stop()
    measurement = Measurement(
        rungs=tuple(climb.measured),
        simulated=found.is_simulated,
        startup_s=0.0,
        kv_tokens=found.kv_tokens,
        ended=climb.ended,
    )
    if interrupted:
        reason = "interrupted"
        return StoppedEarly(measurement=measurement, reason=reason) if climb.measured else Interrupted(cause=reason)
    if isinstance(ended, Crashed | Hung):
        server.look()
        lost = server.lost()
        failed: Outcome = Environment(cause=lost, stage=ended.stage, exit_code=None) if lost else ended
        return with_rungs(failed, measurement)
    if isinstance(ended, Environment):
        return with_rungs(ended, measurement)
    return Measured(measurement=measurement)


def _ascent(request: MeasureRequest, found: FoundServer, mix: LoadMix) -> Ascent:
    patience = Patience.usual()
    if found.is_simulated:
        scale = found.clock_scale if math.isfinite(found.clock_scale) else 1e9
        patience = patience.on_a_clock(scale, beside_s=SLOW_MACHINE_S)
    return Ascent(
        workload=request.workload,
        vocab_size=found.vocab_size,
        seed=request.seed,
        is_simulated=found.is_simulated,
        silence_limit_s=patience.loaded_s,
        mix=mix,
    )


class _Record:
    """The MLflow run. A store that fails once the load has begun costs the record, and is told."""

    def __init__(self, voice: Voice, request: MeasureRequest, found: FoundServer, mix: LoadMix) -> None:
        self._voice = voice
        self._run: MeasuredRun | None = None

        def start() -> None:
            self._run = MeasuredRun.start(
                request.tracking_uri, request.artifact_root, found, request.workload, mix, request.seed
            )

        self._tried(start)

    @property
    def told(self) -> dict[str, str]:
        return {} if self._run is None else self._run.told

    def log_rung(self, rung: Rung) -> None:
        if self._run is not None:
            self._tried(self._run.log_rung, rung)

    def end(self, outcome: Outcome, timings: dict[RungKey, tuple[RequestTiming, ...]]) -> None:
        if self._run is not None:
            self._tried(self._run.end, outcome, timings)

    def _tried(self, write: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            write(*args, **kwargs)
        except TrackingError as error:
            self._voice.say(f"MLflow did not take a write, the measurement goes on: {error}")


class _Told(Watcher):
    def __init__(self, voice: Voice, record: _Record) -> None:
        self._voice = voice
        self._record = record

    def on_rung(self, rung: Rung) -> None:
        tpot_ms = rung.tpot_s.mean * 1e3
        self._voice.say(
            f"concurrency {rung.concurrency}: {rung.output_tok_per_s:.4g} tok/s, {tpot_ms:.4g} ms per token"
        )
        self._record.log_rung(rung)

    def on_notice(self, text: str) -> None:
        self._voice.say(text)
