"""Traffic: a closed loop of streamed `/generate` requests, and the timing of each.

A thin client on aiohttp: at 1 and at 64 streams it reports the pace of a server within 5 % of the server's own
clock (tests/benchmarks/test_load_client.py). Prompts are token ids, drawn anew
for every request, so that no prefix cache can answer and no tokenizer stands in between.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import numpy as np
import orjson
from numpy.typing import NDArray

from tuner.measurement import RequestTiming

_DATA = b"data: "
_DONE = b"data: [DONE]"
_ERROR = b'data: {"error"'
_READ_BUFFER_BYTES = 2**22  # one chunk repeats all output so far: the line limit of aiohttp follows this
_FIRST_TOKEN_ID = 10  # below it tokenizers keep their special tokens

Clock = Callable[[dict[str, Any], float], float]
"""From a chunk's `meta_info` and the wall time of its arrival to the time that counts."""


def wall_clock(_meta: dict[str, Any], received_s: float) -> float:
    return received_s


def simulated_clock(meta: dict[str, Any], _received_s: float) -> float:
    """A simulated server stamps each chunk with its own clock: its figures are in simulated seconds."""
    return float(meta["simulated_time_s"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One rung: `num_requests` requests, at most `concurrency` in flight."""

    concurrency: int
    num_requests: int
    input_tokens: int
    output_tokens: int
    vocab_size: int
    seed: int


class NoProgressError(RuntimeError):
    """Nothing arrived from any request for `silent_s` wall seconds."""

    def __init__(self, silent_s: float) -> None:
        super().__init__(f"nothing arrived for {silent_s:.0f} s")
        self.silent_s = silent_s


class Traffic:
    """Runs loads against one server and reports as they go."""

    def __init__(self, base_url: str, *, clock: Clock, silence_limit_s: float) -> None:
        self._url = f"{base_url}/generate"
        self._clock = clock
        self._silence_limit_s = silence_limit_s
        self._heard_s = 0.0

    async def run(self, load: Load, *, on_done: Callable[[int], None] = lambda _: None) -> tuple[RequestTiming, ...]:
        """The timings of all requests, in order of completion; `on_done` gets how many have ended.

        A request that fails is a timing with an error. Stops at the first failure: what would follow is the
        timing of another load. Raises NoProgressError.
        """
        prompts = _prompts(load)
        done: list[RequestTiming] = []
        self._heard_s = time.monotonic()
        # No time-out per request, nor for connecting: how long one may take depends on the load and on the
        # machine; silence is what is watched.
        timeout = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, read_bufsize=_READ_BUFFER_BYTES
        ) as session:

            async def worker() -> None:
                for prompt in prompts:
                    timing = await self._request(session, prompt, load.output_tokens)
                    done.append(timing)
                    on_done(len(done))
                    if timing.error:
                        return

            workers = [asyncio.create_task(worker()) for _ in range(min(load.concurrency, load.num_requests))]
            try:
                await self._watch(workers, done)
            finally:
                for task in workers:
                    task.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
        return tuple(done)

    async def _watch(self, workers: Sequence[asyncio.Task[None]], done: Sequence[RequestTiming]) -> None:
        pending = set(workers)
        while pending:
            finished, pending = await asyncio.wait(
                pending, timeout=min(1.0, self._silence_limit_s), return_when=asyncio.FIRST_COMPLETED
            )
            for task in finished:
                task.result()
            if any(r.error for r in done):
                return
            silent_s = time.monotonic() - self._heard_s
            if pending and silent_s > self._silence_limit_s:
                raise NoProgressError(silent_s)

    async def _request(
        self, session: aiohttp.ClientSession, prompt: NDArray[np.int64], output_tokens: int
    ) -> RequestTiming:
        body = orjson.dumps(
            {
                "input_ids": prompt,
                "sampling_params": {"max_new_tokens": output_tokens, "ignore_eos": True, "temperature": 0.0},
                "stream": True,
            },
            option=orjson.OPT_SERIALIZE_NUMPY,
        )
        start_s = time.perf_counter()
        failed = RequestTiming(
            start_s=start_s,
            first_token_s=start_s,
            end_s=start_s,
            prompt_tokens=len(prompt),
            output_tokens=0,
            first_chunk_tokens=0,
            cached_tokens=0,
        )
        first: bytes = b""
        last: bytes = b""
        first_s = last_s = start_s
        try:
            async with session.post(self._url, data=body, headers={"Content-Type": "application/json"}) as response:
                if response.status != 200:
                    text = (await response.text())[:300]
                    return replace(failed, error=f"HTTP {response.status}: {text}")
                async for line in response.content:
                    if not line.startswith(_DATA):
                        continue
                    now_s = time.perf_counter()
                    self._heard_s = time.monotonic()
                    if line.startswith(_ERROR):
                        return replace(failed, error=line[len(_DATA) :].decode(errors="replace").strip()[:300])
                    if line.startswith(_DONE):
                        break
                    if not first:
                        first, first_s = line, now_s
                    last, last_s = line, now_s
        except (aiohttp.ClientError, ConnectionError, asyncio.IncompleteReadError) as error:
            return replace(failed, error=f"{type(error).__name__}: {error}")
        if not last:
            return replace(failed, error="the stream ended without a token")
        return self._timing(failed, (first, first_s), (last, last_s), output_tokens)

    def _timing(
        self, failed: RequestTiming, first: tuple[bytes, float], last: tuple[bytes, float], output_tokens: int
    ) -> RequestTiming:
        first_meta = orjson.loads(first[0][len(_DATA) :])["meta_info"]
        last_meta = orjson.loads(last[0][len(_DATA) :])["meta_info"]
        produced = int(last_meta["completion_tokens"])
        finish = last_meta.get("finish_reason") or {}
        if produced != output_tokens or finish.get("type") != "length":
            return replace(
                failed, error=f"ended after {produced} of {output_tokens} tokens with finish_reason {finish}"
            )
        return RequestTiming(
            start_s=float(first_meta.get("simulated_arrival_s", failed.start_s)),
            first_token_s=self._clock(first_meta, first[1]),
            end_s=self._clock(last_meta, last[1]),
            prompt_tokens=int(last_meta["prompt_tokens"]),
            output_tokens=produced,
            first_chunk_tokens=int(first_meta["completion_tokens"]),
            cached_tokens=int(last_meta.get("cached_tokens") or 0),
        )


def _prompts(load: Load) -> Iterator[NDArray[np.int64]]:
    rng = np.random.default_rng([load.seed, load.concurrency])
    low, high = min(_FIRST_TOKEN_ID, load.vocab_size - 1), load.vocab_size
    for _ in range(load.num_requests):
        yield rng.integers(low, high, size=load.input_tokens)
