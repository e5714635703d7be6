"""Loads that SGLang's own benchmark sends.

It runs as a process of the engine's Python, one for each rung, which ends with the tuner. What it says of each request
(`--output-details`) is how long it took, not when it was sent: a rung has no steady window, its throughput is that of
the whole run. The wheels of 0.5.9 to 0.5.23 tell times to a token by the text that comes with it
(benchmark/serving.py:692, async_request_sglang_generate, of 0.5.23).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, Self
from urllib.parse import urlsplit

from tuner.dying import is_healthy
from tuner.load import NoProgressError
from tuner.load_plan import Load
from tuner.measurement import RequestTiming
from tuner.server_keys import ServerKeys
from tuner.servers.local import LocalLauncher
from tuner.servers.protocol import Launch, LaunchError
from tuner.sglang_benchmark import SglangBenchmark

POLL_S = 0.1
SILENCES = 12
"""After so many times the limit on silence the generator itself is at fault, however well the server is."""
_LAST_WORDS_BYTES = 20_000
_GRACE_S = 5.0
_PROGRESS = re.compile(rb"(\d+)/\d+ \[")
"""Of tqdm's bar, which is told a request when it ends."""


class GeneratorError(RuntimeError):
    """The load generator could not be started, or ended without a result: no matter of the layout's."""


class SglangLoad:
    """Runs loads against one server. duration_s: of the last run, as the benchmark says, from its start until it had
    asked the server once more for what it is.
    """

    def __init__(
        self,
        benchmark: SglangBenchmark,
        base_url: str,
        *,
        keys: ServerKeys,
        log_path: Path | None,
        silence_limit_s: float,
    ) -> None:
        """log_path: what it prints goes there, anew at each run; None where it is not kept."""
        self._benchmark = benchmark
        self._base_url = base_url
        self._keys = keys
        self._log_path = log_path
        self._silence_limit_s = silence_limit_s
        self.duration_s = 0.0

    async def run(self, load: Load, *, on_done: Callable[[int], None] = lambda _: None) -> tuple[RequestTiming, ...]:
        """The timings of all requests, in the order of sending, failed ones among them; `on_done` gets how many have
        ended. Raises GeneratorError, and NoProgressError where no request ends and the server generates nothing.
        """
        # A pipe: in its result the benchmark writes all that the server says of itself, keys included.
        with tempfile.TemporaryDirectory(prefix="layout-tune-") as folder, _Pipe(Path(folder, "result")) as pipe:
            log_path = self._log_path or Path(folder, "load.log")
            await self._ended(load, pipe.path, _Log(log_path), on_done)
            said = pipe.rest()
        try:
            result = json.loads(said)
            self.duration_s = float(result["duration"])
            return timings_of(result, load)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            what = f"{type(error).__name__}: {error}"
            raise GeneratorError(f"SGLang's benchmark wrote what cannot be read ({what})") from None

    async def _ended(self, load: Load, output: Path, log: _Log, on_done: Callable[[int], None]) -> None:
        launch = Launch(
            command=self._benchmark.words(self._base_url, load, output),
            host="127.0.0.1",
            port=0,
            log_path=log.path,
            env=environment(self._base_url, self._keys),
            grace_s=_GRACE_S,
        )
        try:
            process = LocalLauncher().start(launch)
        except LaunchError as error:
            raise GeneratorError(f"SGLang's benchmark could not be started: {error}") from None
        try:
            code = await self._code(process.exit_code, log, on_done)
        finally:
            process.stop()
        if code != 0:
            raise GeneratorError(f"SGLang's benchmark ended with {code}: {log.last_line()}")

    async def _code(self, exit_code: Callable[[], int | None], log: _Log, on_done: Callable[[int], None]) -> int:
        heard_s = forgiven_s = time.monotonic()
        size, done = 0, 0
        while (code := exit_code()) is None:
            await asyncio.sleep(POLL_S)
            now_s = time.monotonic()
            if (now_size := log.path.stat().st_size) != size:
                size, heard_s, forgiven_s = now_size, now_s, now_s
                if (now_done := log.num_done()) > done:
                    done = now_done
                    on_done(done)
            if now_s - heard_s > SILENCES * self._silence_limit_s:
                raise GeneratorError(f"SGLang's benchmark said nothing for {now_s - heard_s:.0f} s")
            if now_s - forgiven_s > self._silence_limit_s:
                # Requests may simply be long: unlike our own client it says nothing of their tokens.
                if not await asyncio.to_thread(is_healthy, self._base_url):
                    raise NoProgressError(now_s - heard_s)
                forgiven_s = time.monotonic()
        return code


@dataclass(frozen=True, slots=True)
class _Log:
    """What the benchmark has printed."""

    path: Path

    def num_done(self) -> int:
        """Requests that have ended."""
        return max((int(each) for each in _PROGRESS.findall(self._last_words())), default=0)

    def last_line(self) -> str:
        lines = self._last_words().decode(errors="replace").split("\n")
        return shorten(next((line for line in reversed(lines) if line.strip()), "without a word"), 300)

    def _last_words(self) -> bytes:
        with self.path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LAST_WORDS_BYTES))
            return log.read()


def environment(base_url: str, keys: ServerKeys) -> dict[str, str]:
    """Of the benchmark's process, over this one's. It takes the server's key from there (get_auth_headers,
    benchmark/serving.py:131 of 0.5.23), also one that is meant for somebody else; and asks the server by a client that
    heeds proxies.
    """
    host = urlsplit(base_url).hostname or ""
    spared = ",".join(filter(None, [os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), host]))
    return {
        "OPENAI_API_KEY": keys.api_key,
        "API_KEY": "",
        "no_proxy": spared,
        "NO_PROXY": spared,
        "PYTHONUNBUFFERED": "1",
    }


def timings_of(result: Mapping[str, Any], load: Load) -> tuple[RequestTiming, ...]:
    """Of one line of `--output-details`. Times count from each request's own sending, and end with its last token.

    itls has a value for every token after those of the first chunk. Raises KeyError, TypeError or IndexError for what
    is no such line, ValueError where it is one of another load.
    """
    if len(result["ttfts"]) != load.num_requests:
        raise ValueError(f"{len(result['ttfts'])} requests instead of {load.num_requests}")
    cached = result.get("cached_tokens") or [0] * load.num_requests
    return tuple(
        _timing(
            error=result["errors"][i],
            ttft_s=float(result["ttfts"][i]),
            itls_s=result["itls"][i],
            prompt_tokens=int(result["input_lens"][i]),
            output_tokens=int(result["output_lens"][i]),
            cached_tokens=int(cached[i] or 0),
            wanted_tokens=load.output_tokens,
        )
        for i in range(load.num_requests)
    )


def _timing(
    *,
    error: str,
    ttft_s: float,
    itls_s: Sequence[float],
    prompt_tokens: int,
    output_tokens: int,
    cached_tokens: int,
    wanted_tokens: int,
) -> RequestTiming:
    lines = [line for line in str(error).splitlines() if line.strip()]
    why = shorten(lines[-1], 300) if lines else ""
    if not why and output_tokens != wanted_tokens:
        why = f"ended after {output_tokens} of {wanted_tokens} tokens"
    if not why and ttft_s <= 0:
        why = "no text came back, by which SGLang's benchmark knows the first token"
    return RequestTiming(
        start_s=0.0,
        first_token_s=ttft_s,
        end_s=ttft_s + float(sum(itls_s)),
        prompt_tokens=prompt_tokens,
        output_tokens=0 if why else output_tokens,
        first_chunk_tokens=0 if why else output_tokens - len(itls_s),
        cached_tokens=cached_tokens,
        error=why,
        is_start_known=False,
    )


class _Pipe:
    """A named pipe that is read from the event loop for as long as the block lasts, however much is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = bytearray()
        self._fd = -1

    def __enter__(self) -> Self:
        os.mkfifo(self.path, 0o600)
        self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        asyncio.get_running_loop().add_reader(self._fd, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)

    def rest(self) -> bytes:
        """All that was written, once its writer is gone."""
        while self._take():
            pass
        return bytes(self._read)

    def _take(self) -> bool:
        """Whether there was something; at the end, where there never will be again, nobody is called any more."""
        with contextlib.suppress(BlockingIOError):
            part = os.read(self._fd, 1 << 20)
            self._read += part
            if not part and self._read:
                asyncio.get_running_loop().remove_reader(self._fd)
            return bool(part)
        return False
