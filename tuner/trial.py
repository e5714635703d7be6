"""One trial: start a server of a layout, climb the ladder of concurrency, end the server, say how it went."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import requests

from search_spaces.layout import Layout
from search_spaces.verdict import Stage
from search_spaces.workload import Workload
from tuner import advice
from tuner.diagnosis import Ended, diagnose, holds_an_exception, silent
from tuner.engine import Engine
from tuner.fault import Fault
from tuner.interruptible import run_interruptibly
from tuner.kernel_log import kernel_log_since
from tuner.load import Load, NoProgressError, Traffic, simulated_clock, wall_clock
from tuner.measurement import Measurement, RequestTiming, Rung
from tuner.outcome import Crashed, Direction, Environment, Hung, Measured, Outcome, OutOfMemory, StoppedEarly
from tuner.server_log import ServerLog
from tuner.servers.protocol import Launch, Launcher, LaunchError, Server

POLL_S = 0.1
DYING_S = 90.0
"""A dying server answers no more long before it is gone: SGLang waits up to 60 s for its processes."""
EXIT_UNKNOWN = -1
CONTROL_TIMEOUT_S = 30.0
WARM_UP_TOKENS = 8
WARM_UP_CONCURRENCY = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Wall seconds without any sign of progress before a server counts as hung.

    starting_s: without a new log line. loaded_s: without a token from any request in flight. Generous by
    default, because kernels compile and weights load in silence.
    """

    starting_s: float = 1800.0
    loaded_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """requests: the timings behind each rung, by concurrency."""

    outcome: Outcome
    requests: dict[int, tuple[RequestTiming, ...]]
    duration_s: float
    interrupted: bool = False
    """Somebody asked to end while the server was being stopped: the outcome stands all the same."""


class Watcher:
    """What a trial tells while it runs. The default hears nothing."""

    def on_stage(self, stage: str) -> None: ...

    def on_requests(self, concurrency: int, done: int, total: int) -> None: ...

    def on_rung(self, rung: Rung) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """deadline: `time.monotonic()` after which no further rung is started; None for none."""

    engine: Engine
    launcher: Launcher
    workload: Workload
    vocab_size: int
    seed: int
    patience: Patience
    deadline: float | None = None

    def run(self, launch: Launch, expected: Layout, watcher: Watcher) -> TrialResult:
        """Runs to the end. Whatever happens, also an exception, the server is gone afterwards.

        expected: the effective layout, which the server must say that it runs.
        """
        began_s = time.monotonic()
        rungs: dict[int, tuple[RequestTiming, ...]] = {}
        try:
            server = self.launcher.start(launch)
        except LaunchError as error:
            outcome: Outcome = Environment(cause=str(error), stage="launch", exit_code=None)
            return TrialResult(outcome=outcome, requests=rungs, duration_s=time.monotonic() - began_s)
        interrupted = False
        watched = _Watched(server=server, log=ServerLog(launch.log_path), reads_kernel=not self.engine.is_simulated)
        try:
            outcome = self._drive(watched, expected, watcher, rungs)
        except BaseException:
            server.stop()
            raise
        try:
            server.stop()
        except KeyboardInterrupt:
            server.stop()
            interrupted = True
        duration_s = time.monotonic() - began_s
        return TrialResult(outcome=outcome, requests=rungs, duration_s=duration_s, interrupted=interrupted)

    def _drive(
        self,
        watched: _Watched,
        expected: Layout,
        watcher: Watcher,
        rungs: dict[int, tuple[RequestTiming, ...]],
    ) -> Outcome:
        server = watched.server
        began_s = time.monotonic()
        if (failed := self._await_ready(watched, watcher)) is not None:
            return failed
        try:
            info = _control("GET", f"{server.launch.base_url}/server_info")
        except requests.RequestException as error:
            gone = Crashed(cause=f"/server_info failed: {error}", stage="ready", exit_code=None)
            return self._explain(gone, watched)
        if (refused := self._not_worth_a_load(info, expected)) is not None:
            return refused
        # A simulated start takes the time of the simulator's clock, which is what it says itself.
        simulated_s = float(info["startup_time"]["tokenizer_e2e"]) if self.engine.is_simulated else None
        climb = _Climb(self, server, watcher, rungs)
        ended = run_interruptibly(climb.to_the_top())
        measured = tuple(Rung.of(c, timings) for c, timings in rungs.items())
        if isinstance(ended, Crashed | Hung):
            return self._explain(ended, watched)
        measurement = Measurement(
            rungs=measured,
            simulated=self.engine.is_simulated,
            startup_s=time.monotonic() - began_s if simulated_s is None else simulated_s,
            kv_tokens=_kv_tokens(info),
        )
        if isinstance(ended, str):
            return StoppedEarly(measurement=measurement, reason=ended)
        return Measured(measurement=measurement)

    def _not_worth_a_load(self, info: dict[str, Any], expected: Layout) -> Outcome | None:
        """Where the server that answers is another one, or has no room for one request: all would be refused, which is
        no speed.
        """
        if (other := self._somebody_else(info, expected)) is not None:
            return Environment(cause=other, stage="ready", exit_code=None)
        kv_tokens, wanted = _kv_tokens(info), self.workload.tokens_per_request
        if not 0 < kv_tokens < wanted:
            return None
        direction, stage = Direction.RAISE_FRACTION, str(Stage.KV_POOL)
        return OutOfMemory(
            cause=f"the KV cache has {kv_tokens} tokens, and one request of this load takes {wanted}",
            stage=stage,
            direction=direction,
            exit_code=None,
            fault=Fault.KV_CACHE,
            advice=advice.of_memory(direction, Fault.KV_CACHE, stage, None),
        )

    def _somebody_else(self, info: dict[str, Any], expected: Layout) -> str | None:
        """Where the server that answers is of another kind, or runs other sizes, than what was launched: it is not
        ours, or not what the rules say the engine makes of it."""
        is_simulated = "simulated" in info
        if is_simulated != self.engine.is_simulated:
            kinds = {True: "a simulated", False: "a real"}
            return f"{kinds[is_simulated]} server answers, but {kinds[self.engine.is_simulated]} one was launched"
        for name in ("tp_size", "pp_size", "ep_size"):
            said, meant = info.get(name), getattr(expected, name)
            if said is not None and said != meant:
                return f"the server that answers says {name}={said}, but {name}={meant} was launched"
        return None

    def _await_ready(self, watched: _Watched, watcher: Watcher) -> Outcome | None:
        """None once the server answers as ready."""
        server, log = watched.server, watched.log
        stage = ""
        heard_s = time.monotonic()
        while True:
            code = server.exit_code()
            if log.read():
                heard_s = time.monotonic()
            if log.stage != stage:
                stage = log.stage
                watcher.on_stage(stage)
            if code is not None:
                return watched.diagnosis(code, stage)
            if _is_ready(server.launch.base_url):
                watcher.on_stage("ready")
                return None
            silent_s = time.monotonic() - heard_s
            if silent_s > self.patience.starting_s:
                return silent(stage=stage, silent_s=silent_s, log=log.tail())
            time.sleep(POLL_S)

    def _explain(self, ended: Crashed | Hung, watched: _Watched) -> Outcome:
        """The server's own account of a failure seen from outside, when it died of it."""
        give_up_s = time.monotonic() + (DYING_S if isinstance(ended, Crashed) and ended.exit_code is None else 0.0)
        while True:
            code = watched.server.exit_code()
            if code is not None:
                return watched.diagnosis(code, ended.stage)
            if time.monotonic() > give_up_s:
                break
            time.sleep(POLL_S)
        text = watched.log.tail()
        if holds_an_exception(text):
            return watched.diagnosis(EXIT_UNKNOWN, ended.stage)
        if isinstance(ended, Hung):
            return silent(stage=ended.stage, silent_s=ended.silent_s, log=text)
        return ended


@dataclass(frozen=True, slots=True, kw_only=True)
class _Watched:
    """reads_kernel: whether the server runs on GPUs of this machine. began: when it was started."""

    server: Server
    log: ServerLog
    reads_kernel: bool
    began: datetime = field(default_factory=lambda: datetime.now(UTC))

    def diagnosis(self, exit_code: int, stage: str) -> Outcome:
        kernel_log = kernel_log_since(self.began) if self.reads_kernel else ""
        return diagnose(Ended(exit_code=exit_code, log=self.log.tail(), stage=stage, kernel_log=kernel_log))


class _Climb:
    """The way up the ladder on one ready server."""

    def __init__(
        self,
        trial: Trial,
        server: Server,
        watcher: Watcher,
        rungs: dict[int, tuple[RequestTiming, ...]],
    ) -> None:
        self._trial = trial
        self._server = server
        self._watcher = watcher
        self._rungs = rungs
        self._traffic = Traffic(
            server.launch.base_url,
            clock=simulated_clock if trial.engine.is_simulated else wall_clock,
            silence_limit_s=trial.patience.loaded_s,
        )

    async def to_the_top(self) -> Crashed | Hung | str | None:
        """None at the top; a reason where the climb was ended on purpose; else what went wrong."""
        ladder = self._trial.workload.concurrencies
        warm_up = min(WARM_UP_CONCURRENCY, ladder[-1])
        ended = await self._rung(warm_up, warm_up, WARM_UP_TOKENS, seed_shift=1, stage="warm-up")
        if not isinstance(ended, tuple):
            return ended
        for concurrency in ladder:
            deadline = self._trial.deadline
            if deadline is not None and time.monotonic() > deadline and self._rungs:
                return f"the budget ended before concurrency {concurrency}"
            timings = await self._rung(
                concurrency,
                requests_at(concurrency),
                self._trial.workload.output_tokens,
                seed_shift=0,
                stage=f"concurrency {concurrency}",
            )
            if not isinstance(timings, tuple):
                return timings
            self._rungs[concurrency] = timings
            self._watcher.on_rung(Rung.of(concurrency, timings))
        return None

    async def _rung(
        self, concurrency: int, num_requests: int, output_tokens: int, *, seed_shift: int, stage: str
    ) -> tuple[RequestTiming, ...] | Crashed | Hung:
        trial = self._trial
        load = Load(
            concurrency=concurrency,
            num_requests=num_requests,
            input_tokens=trial.workload.input_tokens,
            output_tokens=output_tokens,
            vocab_size=trial.vocab_size,
            seed=trial.seed * 2 + seed_shift,
        )
        self._watcher.on_stage(stage)
        await asyncio.to_thread(_flush_cache, self._server.launch.base_url)
        run = asyncio.create_task(
            self._traffic.run(load, on_done=lambda n: self._watcher.on_requests(concurrency, n, num_requests))
        )
        death = asyncio.create_task(self._death())
        try:
            await asyncio.wait({run, death}, return_when=asyncio.FIRST_COMPLETED)
            if not run.done():
                return Crashed(cause="the server ended", stage=stage, exit_code=death.result())
            timings = run.result()
        except NoProgressError as error:
            return Hung(stage=stage, silent_s=error.silent_s)
        finally:
            for task in (run, death):
                task.cancel()
            await asyncio.gather(run, death, return_exceptions=True)
        failures = [t.error for t in timings if t.error]
        if failures:
            return Crashed(
                cause=f"a request failed under load: {failures[0]}",
                stage=stage,
                exit_code=None,
                evidence=tuple(dict.fromkeys(failures))[:5],
            )
        return timings

    async def _death(self) -> int:
        while (code := self._server.exit_code()) is None:  # noqa: ASYNC110 - a process has no event to await
            await asyncio.sleep(POLL_S)
        return code


def requests_at(concurrency: int) -> int:
    """How many requests make a rung: each stream is used twice, and never fewer than four in all."""
    return max(4, 2 * concurrency)


def _kv_tokens(info: dict[str, Any]) -> int:
    """Of one replica of the KV cache, as the server says; 0 where it does not."""
    return int(info.get("max_total_num_tokens") or 0)


def _is_ready(base_url: str) -> bool:
    """`/ready` answers without generating; engines that lack it are asked for `/health`."""
    with contextlib.suppress(requests.RequestException):
        status = _ask("GET", f"{base_url}/ready", timeout_s=5.0).status_code
        if status == 404:
            status = _ask("GET", f"{base_url}/health").status_code
        return status == 200
    return False


def _flush_cache(base_url: str) -> None:
    """No rung may profit from what the last one left in the prefix cache. Refused while requests run."""
    with contextlib.suppress(requests.RequestException):
        _ask("POST", f"{base_url}/flush_cache")


def _control(method: str, url: str) -> dict[str, Any]:
    response = _ask(method, url)
    response.raise_for_status()
    parsed: dict[str, Any] = response.json()
    return parsed


def _ask(method: str, url: str, *, timeout_s: float = CONTROL_TIMEOUT_S) -> requests.Response:
    with requests.Session() as session:
        session.trust_env = False  # a proxy for the world outside is none for the server under test
        return session.request(method, url, timeout=timeout_s)
