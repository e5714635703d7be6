"""What the server itself says of a rung, beside what the client saw: `/v1/loads` while it runs, `/metrics` around it.

Both are asked only for what they have: `/v1/loads` came with SGLang 0.5.7 or so and answers always
(entrypoints/v1_loads.py:90), `/metrics` answers with `--enable-metrics` alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import statistics
from dataclasses import dataclass
from typing import Any, Self

import requests

from tuner.server_control import ask
from tuner.server_keys import NO_KEYS, ServerKeys

_EVERY_S = 1.0
_ASK_TIMEOUT_S = 5.0
_SEEN_SHARE = 0.9
"""A server that never says it holds this share of the requests in flight did not get them."""
_TOKENS_SHARE = 0.01
_FEWEST_SAMPLES = 3
_GENERATED = re.compile(r"^sglang:generation_tokens_total\{[^}\n]*\}\s+(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSeen:
    """samples: answers of `/v1/loads`. most_running, most_waiting: requests, summed over all schedulers, at most in
    one answer. most_token_usage: of the fullest scheduler's KV pool, 0 to 1. generated_tokens: what the server
    counted between start and end of the rung; None where it does not count. median_waiting: requests, in the answer
    that half of all do not exceed.
    """

    samples: int
    most_running: int
    most_waiting: int
    most_token_usage: float
    generated_tokens: int | None = None
    median_waiting: float = 0.0

    def is_full(self, concurrency: int) -> bool:
        """Whether the server had no room for `concurrency` requests: never were all of them running, and some waited
        all the time. Waiting alone is none: after each end the next request waits for its prefill.
        """
        return self.samples >= _FEWEST_SAMPLES and self.most_running < concurrency and self.median_waiting >= 1

    def doubts(self, concurrency: int, output_tokens: int) -> tuple[str, ...]:
        """Where the server's account and the client's do not agree. output_tokens: as the client received them."""
        found = []
        held = self.most_running + self.most_waiting
        if self.samples >= _FEWEST_SAMPLES and held < _SEEN_SHARE * concurrency:
            found.append(f"{concurrency} requests were in flight, but the server never held more than {held}")
        if self.generated_tokens is not None and output_tokens:
            ratio = self.generated_tokens / output_tokens
            if abs(ratio - 1) > _TOKENS_SHARE:
                found.append(
                    f"the server counts {self.generated_tokens} output tokens where {output_tokens} were received"
                )
        return tuple(found)


class ServerWatch:
    """Asks one server as long as an `async with` block lasts; `seen` is there after it, None where nothing answered.

    skips_idle: answers of a server that holds no request are left out, as its load does not fill the block.
    """

    def __init__(self, base_url: str, keys: ServerKeys = NO_KEYS, *, skips_idle: bool = False) -> None:
        self._skips_idle = skips_idle
        self._base_url = base_url
        self._keys = keys
        self._found: list[tuple[int, int, float]] = []
        self._before: int | None = None
        self._task: asyncio.Task[None] | None = None
        self.seen: ServerSeen | None = None

    async def __aenter__(self) -> Self:
        self._before = await asyncio.to_thread(self._generated)
        self._task = asyncio.create_task(self._sample())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        after = None if self._before is None else await asyncio.to_thread(self._generated)
        counted = None if after is None or self._before is None else after - self._before
        if self._found or counted is not None:
            self.seen = ServerSeen(
                samples=len(self._found),
                most_running=max((running for running, _, _ in self._found), default=0),
                most_waiting=max((waiting for _, waiting, _ in self._found), default=0),
                most_token_usage=max((usage for _, _, usage in self._found), default=0.0),
                generated_tokens=counted,
                median_waiting=statistics.median([waiting for _, waiting, _ in self._found] or [0]),
            )

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            found = await asyncio.to_thread(self._loads)
            if found is not None and (found[0] + found[1] or not self._skips_idle):
                self._found.append(found)

    def _loads(self) -> tuple[int, int, float] | None:
        with contextlib.suppress(requests.RequestException, ValueError, TypeError, KeyError, AttributeError):
            response = ask("GET", f"{self._base_url}/v1/loads", timeout_s=_ASK_TIMEOUT_S, keys=self._keys)
            loads: list[dict[str, Any]] = response.json()["loads"] if response.status_code == 200 else []
            if loads:
                running = sum(int(each["num_running_reqs"]) for each in loads)
                waiting = sum(int(each["num_waiting_reqs"]) for each in loads)
                return running, waiting, max(float(each.get("token_usage", 0.0)) for each in loads)
        return None

    def _generated(self) -> int | None:
        with contextlib.suppress(requests.RequestException, ValueError):
            response = ask("GET", f"{self._base_url}/metrics", timeout_s=_ASK_TIMEOUT_S)
            counts = [float(each) for each in _GENERATED.findall(response.text)] if response.status_code == 200 else []
            if counts:
                return int(sum(counts))
        return None
