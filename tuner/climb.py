"""The way up the ladder of concurrency on one ready server, and then up the ladder of request rates."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from search_spaces.workload import MOST_CONCURRENT, Workload
from tuner.latency_limits import Limit, share_within
from tuner.load import Load, NoProgressError, Traffic, simulated_clock, wall_clock
from tuner.load_by_sglang import GeneratorError, SglangLoad
from tuner.load_mix import LoadMix, OpenRun, num_repeated
from tuner.load_plan import Asked
from tuner.measurement import RateRung, RequestTiming, Rung, RungKey, rate_name
from tuner.outcome import Crashed, Environment, Hung
from tuner.server_control import flush_cache, is_ready
from tuner.server_keys import keys_of
from tuner.server_seen import ServerWatch
from tuner.servers.protocol import Server
from tuner.watcher import Watcher

POLL_S = 0.1
WARM_UP_TOKENS = 8
WARM_UP_CONCURRENCY = 16
GENERATOR_LOG = "load.log"
"""What SGLang's own benchmark prints, beside the server's log."""
PEAK_RUNGS = 2
"""So many rungs in a row below the best, by more than noise, are past the peak."""
PEAK_NOISE = 0.03
FLUSH_TRIES = 5
RATE_SEED = 2**33
"""Above any seed of the ladder of concurrency, so that no prompt of it comes again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ascent:
    """What is climbed, and how. silence_limit_s: wall seconds without a token from any request in flight.

    deadline: `time.monotonic()` after which no further rung is started; None for none.
    mix: what the requests are. With `noise`, a rung of a real server goes on beyond its usual number of requests, up to
        `most_requests_at`. Unless it is a whole ladder, no further rung of concurrency is measured once `PEAK_RUNGS` in
        a row were below the best by more than `PEAK_NOISE`, or the KV pool was full: the server let requests wait all
        the time, or took some back.
    limits: of the study, by which each rung says what share of its requests kept them.
    """

    workload: Workload
    vocab_size: int
    seed: int
    is_simulated: bool
    silence_limit_s: float
    deadline: float | None = None
    mix: LoadMix = field(default_factory=LoadMix)
    limits: tuple[Limit, ...] = ()


class Climb:
    """One climb. `requests` fills as it goes, by rung, so that what was measured outlives its failure.

    measured, rates: the same as figures, with what client and server said of each. ended: why there was nothing more to
    see above the last rung of concurrency; empty at the top.
    """

    def __init__(
        self,
        ascent: Ascent,
        server: Server,
        watcher: Watcher,
        requests: dict[RungKey, tuple[RequestTiming, ...]],
    ) -> None:
        self._ascent = ascent
        self._server = server
        self._watcher = watcher
        self._requests = requests
        self._doubts: list[str] = []
        self.measured: list[Rung] = []
        self.rates: list[RateRung] = []
        self.ended = ""
        self._keys = keys_of(server.launch.command, server.launch.env)
        self._traffic = Traffic(
            server.base_url,
            clock=simulated_clock if ascent.is_simulated else wall_clock,
            silence_limit_s=ascent.silence_limit_s,
            headers=self._keys.headers("/generate"),
        )
        self._by_sglang = None
        log_path = server.launch.log_path
        if ascent.mix.by_sglang is not None:
            self._by_sglang = SglangLoad(
                ascent.mix.by_sglang,
                server.base_url,
                keys=self._keys,
                log_path=None if log_path == Path(os.devnull) else log_path.with_name(GENERATOR_LOG),
                silence_limit_s=ascent.silence_limit_s,
            )

    async def to_the_top(self) -> Crashed | Hung | Environment | str | None:
        """None at the top, or where there is nothing to see above; a reason where the budget ended; else what went
        wrong."""
        ascent = self._ascent
        warm_up = min(WARM_UP_CONCURRENCY, ascent.workload.concurrencies[-1])
        warmed = await self._run(self._closed(warm_up, is_warm_up=True), "warm-up", None)
        if not isinstance(warmed, tuple):
            return warmed
        if failed := _failed(warmed, "warm-up"):
            return failed
        ended = await self._up_the_ladder()
        return await self._up_the_rates() if ended is None else ended

    async def _up_the_ladder(self) -> Crashed | Hung | Environment | str | None:
        for concurrency in self._ascent.workload.concurrencies:
            stage = f"concurrency {concurrency}"
            if self._is_late:
                return f"the budget ended before {stage}"
            if (failed := await self._rung(concurrency, stage)) is not None:
                return failed
            if reason := self._reason_to_end(concurrency):
                self.ended = reason
                self._watcher.on_notice(f"no further concurrency: {reason}")
                return None
        return None

    async def _up_the_rates(self) -> Crashed | Hung | Environment | str | None:
        ascent = self._ascent
        alone = self._requests[ascent.workload.concurrencies[0]]
        request_s = sum(r.end_s - r.start_s for r in alone) / len(alone)
        runs = ascent.mix.open_runs(ascent.workload, is_simulated=ascent.is_simulated, request_s=request_s)
        for shift, run in enumerate(runs):
            if self._is_late:
                return f"the budget ended before {rate_name(run.requests_per_s)}"
            if (failed := await self._rate(run, shift)) is not None:
                return failed
        return None

    @property
    def _is_late(self) -> bool:
        deadline = self._ascent.deadline
        return deadline is not None and time.monotonic() > deadline and bool(self._requests)

    def _closed(self, concurrency: int, *, is_warm_up: bool) -> Load:
        ascent = self._ascent
        load = Load(
            concurrency=concurrency,
            num_requests=concurrency if is_warm_up else requests_at(concurrency),
            input_tokens=ascent.workload.input_tokens,
            output_tokens=WARM_UP_TOKENS if is_warm_up else ascent.workload.output_tokens,
            vocab_size=ascent.vocab_size,
            seed=ascent.seed * 2 + is_warm_up,
        )
        if is_warm_up:
            return load
        if self._by_sglang is not None:  # which cannot go on for the sake of its noise
            return replace(load, num_requests=most_requests_at(concurrency))
        load = replace(load, asked=ascent.mix.in_turn)
        if ascent.is_simulated:  # its noise is none of the wall's
            return load
        return replace(load, most_requests=most_requests_at(concurrency), noise=ascent.mix.noise)

    async def _rung(self, concurrency: int, stage: str) -> Crashed | Hung | Environment | None:
        ascent = self._ascent
        by_sglang = self._by_sglang
        watch = None
        if not ascent.is_simulated:  # whose second is none of the wall's, by which questions could be asked
            watch = ServerWatch(self._server.base_url, self._keys, skips_idle=by_sglang is not None)
        timings = await self._run(self._closed(concurrency, is_warm_up=False), stage, watch, by_sglang)
        if not isinstance(timings, tuple):
            return timings
        if failed := _failed(timings, stage):
            return failed
        self._requests[concurrency] = timings
        rung = Rung.of(
            concurrency,
            timings,
            client=None if ascent.is_simulated or by_sglang is not None else self._traffic.share,
            duration_s=None if by_sglang is None else by_sglang.duration_s,
            server=None if watch is None else watch.seen,
            doubts=[*self._doubts, *self._repeats(ascent.mix.in_turn, len(timings))],
            within=share_within(timings, ascent.limits),
        )
        self.measured.append(rung)
        for doubt in rung.doubts:
            self._watcher.on_notice(f"{stage}: {doubt}")
        self._watcher.on_rung(rung)
        return None

    async def _rate(self, run: OpenRun, shift: int) -> Crashed | Hung | Environment | None:
        """Requests that fail are part of what a rate comes to, but not where all do, or the server is no longer up."""
        ascent = self._ascent
        load = Load(
            concurrency=MOST_CONCURRENT,
            num_requests=len(run.asked),
            input_tokens=ascent.workload.input_tokens,
            output_tokens=ascent.workload.output_tokens,
            vocab_size=ascent.vocab_size,
            seed=ascent.seed * 2 + RATE_SEED + shift,
            asked=run.asked,
        )
        stage = rate_name(run.requests_per_s)
        timings = await self._run(load, stage, None)
        if not isinstance(timings, tuple):
            return timings
        num_failed = sum(bool(t.error) for t in timings)
        is_up = not num_failed or await asyncio.to_thread(is_ready, self._server.base_url)
        if num_failed == len(timings) or not is_up:
            return _failed(timings, stage)
        self._requests[stage] = timings
        rung = RateRung.of(
            run.requests_per_s,
            timings,
            client=None if ascent.is_simulated else self._traffic.share,
            doubts=[*self._doubts, *self._repeats(run.asked, len(timings))],
            within=share_within(timings, ascent.limits),
        )
        self.rates.append(rung)
        for doubt in rung.doubts:
            self._watcher.on_notice(f"{stage}: {doubt}")
        return None

    @staticmethod
    def _repeats(asked: Sequence[Asked], count: int) -> list[str]:
        """Doubts about prompts of text that came more than once in a rung, whatever the server says of its cache."""
        repeated = num_repeated(tuple(itertools.islice(itertools.cycle(asked), count)))
        return [f"{repeated} of {count} prompts had been sent in it before: a cache may answer"] if repeated else []

    def _reason_to_end(self, concurrency: int) -> str:
        """Why there is nothing more to see above; empty at the top, and where there is."""
        if concurrency == self._ascent.workload.concurrencies[-1] or self._ascent.mix.is_whole_ladder:
            return ""
        last = self.measured[-1]
        if last.retractions:
            return f"the KV pool was full at concurrency {concurrency} ({last.retractions} retractions)"
        if last.server is not None and last.server.is_full(concurrency):
            most = last.server.most_running
            return f"the KV pool was full: of {concurrency} requests never more than {most} were running"
        if (peak := peak_passed(self.measured)) is not None:
            return f"throughput peaked at concurrency {peak.concurrency} ({peak.output_tok_per_s:.4g} tok/s)"
        return ""

    async def _run(
        self, load: Load, stage: str, watch: ServerWatch | None, by_sglang: SglangLoad | None = None
    ) -> tuple[RequestTiming, ...] | Crashed | Hung | Environment:
        """The timings of all requests, those that failed among them, or how the server or the generator ended
        instead."""
        self._watcher.on_stage(stage)
        await self._flush()

        def on_done(done: int) -> None:
            if load.is_open:
                self._watcher.on_stage(f"{stage}, {done} of {load.num_requests} requests")
            else:
                self._watcher.on_requests(load.concurrency, done, max(done, load.num_requests))

        async def watched() -> tuple[RequestTiming, ...]:
            async with watch or contextlib.nullcontext():
                return await (by_sglang or self._traffic).run(load, on_done=on_done)

        run = asyncio.create_task(watched())
        death = asyncio.create_task(self._death())
        try:
            await asyncio.wait({run, death}, return_when=asyncio.FIRST_COMPLETED)
            if not run.done():
                return Crashed(cause="the server ended", stage=stage, exit_code=death.result())
            return run.result()
        except NoProgressError as error:
            return Hung(stage=stage, silent_s=error.silent_s)
        except GeneratorError as error:  # it fails with its server too, which is then not ready
            if await asyncio.to_thread(is_ready, self._server.base_url):
                return Environment(cause=str(error), stage=stage, exit_code=None)
            return Crashed(cause=str(error), stage=stage, exit_code=None)
        finally:
            for task in (run, death):
                task.cancel()
            await asyncio.gather(run, death, return_exceptions=True)

    async def _flush(self) -> None:
        """Empties the prefix cache, so that the rung is a cold one; a server that is not idle yet refuses."""
        for attempt in range(FLUSH_TRIES):
            if await asyncio.to_thread(flush_cache, self._server.base_url, self._keys):
                self._doubts = []
                return
            if attempt + 1 < FLUSH_TRIES:
                await asyncio.sleep(POLL_S)
        self._doubts = ["the prefix cache could not be flushed before it"]

    async def _death(self) -> int | None:
        """None where the server is lost."""
        while (code := self._server.exit_code()) is None and not self._server.lost():  # noqa: ASYNC110 - no event
            await asyncio.sleep(POLL_S)
        return code


def _failed(timings: Sequence[RequestTiming], stage: str) -> Crashed | None:
    """Where any request did not end as asked."""
    failures = [t.error for t in timings if t.error]
    if not failures:
        return None
    return Crashed(
        cause=f"a request failed under load: {failures[0]}",
        stage=stage,
        exit_code=None,
        evidence=tuple(dict.fromkeys(failures))[:5],
    )


def requests_at(concurrency: int) -> int:
    """How many requests make a rung: each stream is used twice, and never fewer than four in all."""
    return max(4, 2 * concurrency)


def most_requests_at(concurrency: int) -> int:
    """Beyond so many requests no rung goes on for the sake of its noise."""
    return max(16, 4 * concurrency)


def peak_passed(rungs: Sequence[Rung]) -> Rung | None:
    """The rung of most throughput, where `PEAK_RUNGS` after it were all lower by more than noise."""
    if not rungs:
        return None
    best = max(range(len(rungs)), key=lambda i: rungs[i].output_tok_per_s)
    after = rungs[best + 1 :]
    least = rungs[best].output_tok_per_s * (1 - PEAK_NOISE)
    is_passed = len(after) >= PEAK_RUNGS and all(r.output_tok_per_s < least for r in after[-PEAK_RUNGS:])
    return rungs[best] if is_passed else None
