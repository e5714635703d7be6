"""One trial: start a server of a layout, climb the ladder of concurrency, end the server, say how it went."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import requests

from search_spaces.layout import Layout
from search_spaces.verdict import Stage
from search_spaces.workload import Workload
from tuner import advice
from tuner.climb import Ascent, Climb
from tuner.correctness_judge import AnswerJudge, Judgement, advised
from tuner.dying import explained
from tuner.engine import Engine
from tuner.fault import Fault
from tuner.interruptible import run_interruptibly
from tuner.kernel_log import KernelWatch
from tuner.latency_limits import Limit
from tuner.load_mix import LoadMix
from tuner.measurement import Measurement, RequestTiming, RungKey
from tuner.node_logs import logs_of, named_by_node
from tuner.outcome import (
    Crashed,
    Direction,
    Environment,
    Hung,
    Measured,
    Outcome,
    OutOfMemory,
    StoppedEarly,
    with_rungs,
)
from tuner.patience import Patience
from tuner.preflight import NOTHING_TO_CHECK, Preflight
from tuner.secret_words import secret_values
from tuner.server_control import CONTROL_TIMEOUT_S, KeyRefusedError, said_count, server_info
from tuner.server_keys import keys_of
from tuner.servers.protocol import Launch, Launcher, LaunchError
from tuner.watched import StageTimes, Watched, await_ready
from tuner.watcher import Watcher

# By SGLang's names in /server_info, what a server says itself of the stages of its start.
_SAID_STAGES = {
    Stage.WEIGHTS: ("load_weight",),
    Stage.KV_POOL: ("kv_cache_allocation",),
    Stage.GRAPHS: ("cuda_graph", "decode"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """requests: the timings behind each rung, by concurrency or by request rate in words. stage_s: seconds that each
    stage of the start took, of the wall's clock or the simulator's.
    """

    outcome: Outcome
    requests: dict[RungKey, tuple[RequestTiming, ...]]
    duration_s: float
    interrupted: bool = False
    """Somebody asked to end while the server was being stopped: the outcome stands all the same."""
    stage_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """deadline: `time.monotonic()` after which no further rung is started; None for none.

    mix: what the requests are. limits: of the study, of which each rung says what share of its requests kept them.
    preflight: what is looked at on the hosts after the server's end. answer_judge: of what the server computes; None
    for nobody.
    """

    engine: Engine
    launcher: Launcher
    workload: Workload
    vocab_size: int
    seed: int
    patience: Patience
    deadline: float | None = None
    mix: LoadMix = field(default_factory=LoadMix)
    limits: tuple[Limit, ...] = ()
    preflight: Preflight = NOTHING_TO_CHECK
    answer_judge: AnswerJudge | None = None

    def run(self, launch: Launch, expected: Layout, watcher: Watcher) -> TrialResult:
        """Runs to the end. Whatever happens, also an exception, the server is gone afterwards.

        expected: the effective layout, which the server must say that it runs.
        """
        began_s = time.monotonic()
        rungs: dict[RungKey, tuple[RequestTiming, ...]] = {}
        try:
            server = self.launcher.start(launch)
        except LaunchError as error:
            outcome: Outcome = Environment(cause=str(error), stage="launch", exit_code=None)
            return TrialResult(outcome=outcome, requests=rungs, duration_s=time.monotonic() - began_s)
        interrupted = False
        stage_s: dict[str, float] = {}
        secrets = secret_values(launch.command, {**os.environ, **launch.env})
        log = logs_of(server, secrets=secrets)
        watched = Watched(server=server, log=log, kernel=self._kernel())
        try:
            outcome = named_by_node(self._drive(watched, expected, watcher, rungs, stage_s), server)
        except BaseException:
            server.stop()
            log.shorten()
            raise
        try:
            server.stop()
        except KeyboardInterrupt:
            server.stop()
            interrupted = True
        log.shorten()
        for left in () if interrupted else self.preflight.left_behind():
            watcher.on_notice(left)
        return TrialResult(
            outcome=outcome,
            requests=rungs,
            duration_s=time.monotonic() - began_s,
            interrupted=interrupted,
            stage_s=stage_s,
        )

    def _kernel(self) -> KernelWatch | None:
        return None if self.engine.is_simulated else KernelWatch(gpus=self.preflight.pci_addresses())

    def _drive(
        self,
        watched: Watched,
        expected: Layout,
        watcher: Watcher,
        rungs: dict[RungKey, tuple[RequestTiming, ...]],
        stage_s: dict[str, float],
    ) -> Outcome:
        began_s = time.monotonic()
        times = StageTimes()
        failed = await_ready(watched, self.patience, watcher, times)
        stage_s.update(times.spent_s)
        if failed is not None:
            return failed
        watcher.on_stage("ready")
        info = _info_of(watched)
        if not isinstance(info, dict):
            return info
        if (refused := self._not_worth_a_load(info, expected)) is not None:
            return refused
        startup_s = time.monotonic() - began_s
        if self.engine.is_simulated:  # its start takes the time of the simulator's clock, which is what it says itself
            startup_s = float(info["startup_time"]["tokenizer_e2e"])
            stage_s.clear()
            stage_s.update(_said_stages(info["startup_time"]))
        watcher.on_started(stage_s)
        judgement = self._judgement(watched, expected, info, watcher)
        if judgement.ended is not None:
            return judgement.ended
        climb = Climb(self._ascent(), watched.server, watcher, rungs)
        with watched.looking():
            ended = run_interruptibly(climb.to_the_top())
        measurement = Measurement(
            rungs=tuple(climb.measured),
            simulated=self.engine.is_simulated,
            startup_s=startup_s,
            kv_tokens=_kv_tokens(info),
            rates=tuple(climb.rates),
            ended=climb.ended,
            agreement=judgement.agreement,
        )
        if isinstance(ended, Crashed | Hung | Environment):
            failed = ended if isinstance(ended, Environment) else explained(ended, watched)
            return with_rungs(failed, measurement)
        whole = Measured(measurement=measurement)
        return whole if ended is None else StoppedEarly(measurement=measurement, reason=ended)

    def _judgement(self, watched: Watched, expected: Layout, info: dict[str, Any], watcher: Watcher) -> Judgement:
        if self.answer_judge is None:
            return Judgement()
        limit_s = self.patience.loaded_s
        with watched.looking():
            found = self.answer_judge.judge(watched.server, expected, info, silence_limit_s=limit_s, watcher=watcher)
        if isinstance(found.ended, Crashed | Hung):
            return replace(found, ended=advised(explained(found.ended, watched)))
        return found

    def _ascent(self) -> Ascent:
        return Ascent(
            workload=self.workload,
            vocab_size=self.vocab_size,
            seed=self.seed,
            is_simulated=self.engine.is_simulated,
            silence_limit_s=self.patience.loaded_s,
            deadline=self.deadline,
            mix=self.mix,
            limits=self.limits,
        )

    def _not_worth_a_load(self, info: dict[str, Any], expected: Layout) -> Outcome | None:
        """Where the server that answers is another one, or has no room for one request: all would be refused, which is
        no speed.
        """
        if (other := self._somebody_else(info, expected)) is not None:
            return Environment(cause=other, stage="ready", exit_code=None)
        kv_tokens, wanted = _kv_tokens(info), self.mix.longest_tokens(self.workload)
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


def _info_of(watched: Watched) -> dict[str, Any] | Outcome:
    """What it says of itself; how it ended where it says nothing."""
    launch = watched.server.launch
    try:
        return server_info(watched.server.base_url, keys_of(launch.command, launch.env))
    except KeyRefusedError as error:  # no layout's fault
        return Environment(cause=f"/server_info failed: {error}", stage="ready", exit_code=None)
    except requests.Timeout:
        return explained(Hung(stage="ready", silent_s=CONTROL_TIMEOUT_S), watched)
    except requests.RequestException as error:
        return explained(Crashed(cause=f"/server_info failed: {error}", stage="ready", exit_code=None), watched)


def _kv_tokens(info: dict[str, Any]) -> int:
    """Of one replica of the KV cache, as the server says; 0 where it does not."""
    return said_count(info, "max_total_num_tokens")


def _said_stages(startup_time: Any) -> dict[str, float]:
    said = {}
    for stage, path in _SAID_STAGES.items():
        value = startup_time
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, int | float):
            said[str(stage)] = float(value)
    return said
