"""Traffic: streamed `/generate` requests in a closed or an open loop, and the timing of each.

A thin client on bare asyncio protocols: up to 128 streams it reports the pace of a server within 1 %, and at 512
within 2 % (tests/benchmarks/test_load_client.py). Prompts are token ids, drawn anew for every request, so that no
prefix cache can answer and no tokenizer stands in between.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import orjson

from tuner.client_share import ClientShare, Observer
from tuner.load_plan import Asked, Load
from tuner.load_stream import DATA, Address, Answer, Pulse, Stream
from tuner.measurement import RequestTiming, relative_error

__all__ = ["Clock", "Load", "NoProgressError", "Traffic", "simulated_clock", "wall_clock"]

_FIRST_TOKEN_ID = 10  # below it tokenizers keep their special tokens

Clock = Callable[[dict[str, Any], float], float]
"""From a chunk's `meta_info` and the wall time of its arrival to the time that counts."""


def wall_clock(_meta: dict[str, Any], received_s: float) -> float:
    return received_s


def simulated_clock(meta: dict[str, Any], _received_s: float) -> float:
    """A simulated server stamps each chunk with its own clock: its figures are in simulated seconds."""
    return float(meta["simulated_time_s"])


class NoProgressError(RuntimeError):
    """Nothing arrived from any request for `silent_s` wall seconds."""

    def __init__(self, silent_s: float) -> None:
        super().__init__(f"nothing arrived for {silent_s:.0f} s")
        self.silent_s = silent_s


class Traffic:
    """Runs loads against one server and reports as they go.

    headers: sent with every request, such as an authorization. share: what the client itself took in the last run.
    """

    def __init__(
        self, base_url: str, *, clock: Clock, silence_limit_s: float, headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._address = Address.of(f"{base_url}/generate", headers)
        self._clock = clock
        self._silence_limit_s = silence_limit_s
        self._pulse = Pulse(0.0)
        self._streams: set[Stream] = set()
        self._resting: list[Stream] = []
        self.share = ClientShare()

    async def run(self, load: Load, *, on_done: Callable[[int], None] = lambda _: None) -> tuple[RequestTiming, ...]:
        """The timings of all requests, in order of completion; `on_done` gets how many have ended.

        A request that fails is a timing with an error. A closed loop stops at the first failure: what would follow
        is the timing of another load. An open loop goes on, with the failures in its timings. No time-out per
        request, nor for connecting: how long one may take depends on the load and on the machine; silence is what
        is watched. Raises NoProgressError.
        """
        done: list[RequestTiming] = []
        messages = _Messages(load, self._address, announces=self._clock is simulated_clock)
        self._pulse.heard_s = time.perf_counter()

        def ended(timing: RequestTiming) -> None:
            done.append(timing)
            on_done(len(done))

        drive = self._open_loop if load.is_open else self._closed_loop
        observer = Observer()
        try:
            await drive(load, messages, done, ended, observer)
        finally:
            self.share = observer.end()
            for stream in self._streams:
                stream.close()
            self._streams.clear()
            self._resting.clear()
        return tuple(done)

    async def _closed_loop(
        self,
        load: Load,
        messages: _Messages,
        done: Sequence[RequestTiming],
        ended: Callable[[RequestTiming], None],
        observer: Observer,
    ) -> None:
        width = min(load.concurrency, load.num_requests)

        def another() -> bool:
            if messages.taken < load.num_requests:
                return True
            settled = load.noise > 0 and relative_error(done, load.concurrency) <= load.noise
            return messages.taken < load.most and not settled

        async def worker() -> None:
            while another():
                timing = await self._request(*messages.take(), messages=messages)
                ended(timing)
                if timing.error:
                    return

        # All are connected, and their first requests written out, before the first is sent.
        await self._connect(width)
        messages.prepare(width)
        observer.start()
        await self._watch([worker() for _ in range(width)], lambda: any(r.error for r in done))

    async def _open_loop(
        self,
        load: Load,
        messages: _Messages,
        _done: Sequence[RequestTiming],
        ended: Callable[[RequestTiming], None],
        observer: Observer,
    ) -> None:
        places = asyncio.Semaphore(load.concurrency)
        await self._connect(min(load.concurrency, load.num_requests, 64))
        messages.prepare(64)
        observer.start()
        start_s = time.perf_counter()
        in_flight = 0

        async def one(due_s: float) -> None:
            nonlocal in_flight
            if self._clock is not simulated_clock:  # a simulated server is told when each arrives, on its own clock
                await asyncio.sleep(start_s + due_s - time.perf_counter())
            in_flight += 1
            self._pulse.heard_s = max(self._pulse.heard_s, time.perf_counter())
            async with places:
                asked, message = messages.take()
                ended(await self._request(asked, message, messages=messages, due_s=start_s + due_s))
            in_flight -= 1

        await self._watch(
            [one(load.request(i).due_s or 0.0) for i in range(load.num_requests)],
            lambda: False,
            is_at_rest=lambda: in_flight == 0,
        )

    async def _connect(self, count: int) -> None:
        async def one() -> None:
            try:
                stream = await Stream.open(self._address, self._pulse)
            except OSError:
                return  # the request that needs it tries again, and says what is wrong
            self._streams.add(stream)
            self._resting.append(stream)

        await self._watch([one() for _ in range(count)], lambda: False)

    async def _watch(
        self,
        work: Sequence[Coroutine[Any, Any, None]],
        is_over: Callable[[], bool],
        is_at_rest: Callable[[], bool] = lambda: False,
    ) -> None:
        """Until all is done, or is over before, or nothing was heard for too long of what is not at rest."""
        tasks = [asyncio.ensure_future(each) for each in work]
        pending: set[asyncio.Future[None]] = set(tasks)
        try:
            while pending:
                finished, pending = await asyncio.wait(
                    pending, timeout=min(1.0, self._silence_limit_s), return_when=asyncio.FIRST_COMPLETED
                )
                for task in finished:
                    task.result()
                if is_over():
                    return
                if is_at_rest():
                    self._pulse.heard_s = time.perf_counter()
                silent_s = time.perf_counter() - self._pulse.heard_s
                if pending and silent_s > self._silence_limit_s:
                    raise NoProgressError(silent_s)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _request(
        self, asked: Asked, message: bytes, *, messages: _Messages, due_s: float | None = None
    ) -> RequestTiming:
        """due_s: when it was to be sent; waiting for a place counts as waiting for the first token."""
        start_s = time.perf_counter() if due_s is None else due_s
        failed = RequestTiming(
            start_s=start_s,
            first_token_s=start_s,
            end_s=start_s,
            prompt_tokens=asked.input_tokens,
            output_tokens=0,
            first_chunk_tokens=0,
            cached_tokens=0,
        )
        for is_second_try in (False, True):
            stream = self._rested()
            is_reused = stream is not None
            try:
                stream = stream or await Stream.open(self._address, self._pulse)
            except OSError as error:
                return replace(failed, error=f"{type(error).__name__}: {error}")
            self._streams.add(stream)
            if due_s is None and not is_second_try:
                failed = replace(failed, start_s=(now := time.perf_counter()), first_token_s=now, end_s=now)
            waiting = stream.send(message)
            messages.prepare(1)
            try:
                answer = await waiting
            except asyncio.CancelledError:
                stream.close()
                raise
            if stream.is_usable and not answer.error:
                self._resting.append(stream)
            else:
                self._streams.discard(stream)
                stream.close()
            # A server may give up a connection at rest in the moment in which it is used again.
            if not (answer.is_unheard and is_reused):
                break
        if answer.error:
            return replace(failed, error=answer.error)
        return self._timing(failed, answer, asked.output_tokens)

    def _rested(self) -> Stream | None:
        while self._resting:
            stream = self._resting.pop()
            if stream.is_usable:
                return stream
            self._streams.discard(stream)
        return None

    def _timing(self, failed: RequestTiming, answer: Answer, output_tokens: int) -> RequestTiming:
        try:
            first_meta = orjson.loads(answer.first[len(DATA) :])["meta_info"]
            last_meta = orjson.loads(answer.last[len(DATA) :])["meta_info"]
            produced = int(last_meta["completion_tokens"])
            finish = last_meta.get("finish_reason") or {}
            if produced != output_tokens or finish.get("type") != "length":
                return replace(
                    failed, error=f"ended after {produced} of {output_tokens} tokens with finish_reason {finish}"
                )
            return RequestTiming(
                start_s=float(first_meta.get("simulated_arrival_s", failed.start_s)),
                first_token_s=self._clock(first_meta, answer.first_s),
                end_s=self._clock(last_meta, answer.last_s),
                prompt_tokens=int(last_meta["prompt_tokens"]),
                output_tokens=produced,
                first_chunk_tokens=int(first_meta["completion_tokens"]),
                cached_tokens=int(last_meta.get("cached_tokens") or 0),
                retractions=int(last_meta.get("num_retractions") or 0),
            )
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
            said = answer.last[:120].decode(errors="replace")
            what = f"the server sent what cannot be read: {type(error).__name__}: {error}: {said}"
            return replace(failed, error=what)


class _Messages:
    """The requests of a load, in order, written out ahead so that writing them costs no request its time."""

    def __init__(self, load: Load, address: Address, *, announces: bool) -> None:
        self._load = load
        self._announces = announces
        self._address = address
        self._rng = np.random.default_rng([load.seed, load.concurrency])
        self._ready: deque[tuple[Asked, bytes]] = deque()
        self._made = 0
        self.taken = 0

    def take(self) -> tuple[Asked, bytes]:
        if not self._ready:
            self._ready.append(self._make())
        self.taken += 1
        return self._ready.popleft()

    def prepare(self, count: int) -> None:
        for _ in range(min(count, self._load.most - self._made)):
            self._ready.append(self._make())

    def _make(self) -> tuple[Asked, bytes]:
        asked = self._load.request(self._made)
        self._made += 1
        body: dict[str, Any] = {
            "sampling_params": {"max_new_tokens": asked.output_tokens, "ignore_eos": True, "temperature": 0.0},
            "stream": True,
        }
        if self._announces:
            # For the simulated server alone: its clock then waits for exactly these, and not by the wall's.
            load = self._load
            in_flight = load.num_requests if load.is_open else load.concurrency
            body["simulated_load"] = {"in_flight": in_flight, "number": self._made - 1, "of": load.num_requests}
            if asked.due_s is not None:
                body["simulated_load"]["arrives_in_s"] = asked.due_s
        if asked.text:
            body["text"] = asked.text
        else:
            low = min(_FIRST_TOKEN_ID, self._load.vocab_size - 1)
            body["input_ids"] = self._rng.integers(low, self._load.vocab_size, size=asked.input_tokens)
        return asked, self._address.message(orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY))
