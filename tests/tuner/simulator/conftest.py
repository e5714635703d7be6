"""Starts the simulated server as what it is, a process of its own, and speaks HTTP to it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from tuner.servers.guard import die_with_the_parent

PATIENCE_S = 60.0
"""How long anything may take before a test gives up; far beyond what it takes on a loaded machine."""


@dataclass
class Simulator:
    process: subprocess.Popen[bytes]
    log_path: Path
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def status(self, path: str, body: dict[str, Any] | None = None, timeout_s: float = 10.0) -> int | None:
        """The HTTP status; None where nothing listens."""
        return self.call(path, body, timeout_s)[0]

    def call(self, path: str, body: dict[str, Any] | None = None, timeout_s: float = 10.0) -> tuple[int | None, bytes]:
        data = None if body is None else orjson.dumps(body)
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, data), timeout=timeout_s) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        except (urllib.error.URLError, ConnectionError):
            return None, b""

    def json(self, path: str, body: dict[str, Any] | None = None) -> Any:
        status, data = self.call(path, body)
        assert status == 200, (status, data, self.log[-2000:])
        return orjson.loads(data)

    def wait_until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, self.log[-3000:]
            time.sleep(0.01)

    def wait_ready(self) -> None:
        def is_ready_or_dead() -> bool:
            return self.status("/ready") == 200 or self.process.poll() is not None

        self.wait_until(is_ready_or_dead)
        assert self.process.poll() is None, self.log[-3000:]

    def exit_code(self) -> int:
        return self.process.wait(PATIENCE_S)

    def end(self) -> None:
        """Kills the whole process group and makes sure that nothing of it is left."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        with pytest.raises(ProcessLookupError):
            os.killpg(self.process.pid, 0)

    def closed_loop(
        self, *, concurrency: int, num_requests: int, prompt_tokens: int, output_tokens: int, dawdles: bool = False
    ) -> Loop:
        """dawdles: the client does something else between an answer and the next request."""
        errand = f"{self.url}/v1/loads" if dawdles else None
        return asyncio.run(_closed_loop(self.url, concurrency, num_requests, prompt_tokens, output_tokens, errand))

    def open_loop(self, *, arrivals_s: Sequence[float], prompt_tokens: int, output_tokens: int) -> Loop:
        """All requests are sent at once, each to arrive at its own time."""
        return asyncio.run(_open_loop(self.url, arrivals_s, prompt_tokens, output_tokens))


@dataclass
class Loop:
    """Requests of one closed loop, each as its first and last chunk's `meta_info`, in order of completion."""

    requests: list[tuple[dict[str, Any], dict[str, Any]]]

    @property
    def output_tok_per_s(self) -> float:
        begin_s = min(first["simulated_arrival_s"] for first, _ in self.requests)
        end_s = max(last["simulated_time_s"] for _, last in self.requests)
        return sum(last["completion_tokens"] for _, last in self.requests) / (end_s - begin_s)

    @property
    def times_s(self) -> list[tuple[float, float, float]]:
        """Arrival, first token and end of each request, sorted."""
        return sorted(
            (first["simulated_arrival_s"], first["simulated_time_s"], last["simulated_time_s"])
            for first, last in self.requests
        )


async def _closed_loop(
    url: str, concurrency: int, num_requests: int, prompt_tokens: int, output_tokens: int, errand: str | None
) -> Loop:
    done: list[tuple[dict[str, Any], dict[str, Any]]] = []
    numbers = iter(range(num_requests))
    async with _session() as session:

        async def worker() -> None:
            for number in numbers:
                for _ in range(20 if errand else 0):
                    async with session.get(str(errand)) as response:
                        await response.read()
                announced = {"in_flight": concurrency, "number": number, "of": num_requests}
                done.append(await _ask(session, url, number, prompt_tokens, output_tokens, announced))

        async with asyncio.TaskGroup() as workers:
            for _ in range(concurrency):
                workers.create_task(worker())
    return Loop(done)


async def _open_loop(url: str, arrivals_s: Sequence[float], prompt_tokens: int, output_tokens: int) -> Loop:
    count = len(arrivals_s)
    async with _session() as session:
        return Loop(
            list(
                await asyncio.gather(
                    *(
                        _ask(
                            session,
                            url,
                            number,
                            prompt_tokens,
                            output_tokens,
                            {"in_flight": count, "number": number, "of": count, "arrives_in_s": arrivals_s[number]},
                        )
                        for number in range(count)
                    )
                )
            )
        )


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=PATIENCE_S), read_bufsize=2**22
    )


async def _ask(
    session: aiohttp.ClientSession,
    url: str,
    number: int,
    prompt_tokens: int,
    output_tokens: int,
    announced: dict[str, float],
) -> tuple[dict[str, Any], dict[str, Any]]:
    body = {
        "input_ids": [10 + number] * prompt_tokens,
        "sampling_params": {"max_new_tokens": output_tokens, "ignore_eos": True},
        "stream": True,
        "simulated_load": announced,
    }
    async with session.post(f"{url}/generate", json=body) as response:
        assert response.status == 200
        lines = [line async for line in response.content if line.startswith(b"data: {")]
    return _meta(lines[0]), _meta(lines[-1])


def _meta(line: bytes) -> dict[str, Any]:
    return dict(orjson.loads(line.removeprefix(b"data: "))["meta_info"])


Launch = Callable[..., AbstractContextManager[Simulator]]


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """`with launch("--tp-size", "8", ...) as simulator`: starts one and leaves nothing behind.

    model, cluster, scale: Kimi K2.6 on eight RTX PRO 6000, unpaced, where not given. port: a free one.
    """

    @contextmanager
    def started(
        *flags: str,
        model: str = "kimi-k2.6",
        cluster: str = "8xrtx-pro-6000",
        scale: str = "inf",
        port: int | None = None,
    ) -> Iterator[Simulator]:
        port = _free_port() if port is None else port
        log_path = tmp_path_factory.mktemp("simulator") / "server.log"
        words = ["--model-path", model, "--cluster", cluster, "--clock-scale", scale, "--port", str(port), *flags]
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tuner.simulator", *words],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_the_parent,
            )
        simulator = Simulator(process, log_path, port)
        try:
            yield simulator
        finally:
            simulator.end()

    return started


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
