"""One real SGLang server as a process group, for as long as a `with` block lasts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.engine_support.environment import ARGUMENTS, ENVIRONMENT

# A start takes 12 s on two idle cores; this only ends a start that has gone wrong without dying.
START_LIMIT_S = 600
STOP_LIMIT_S = 120
POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineServer:
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def wait_until_ready(self) -> None:
        """Returns when warm-up is over. Raises AssertionError, with the log's end, when the server died."""
        deadline = time.monotonic() + START_LIMIT_S
        while not self._is_ready():
            assert self.process.poll() is None, self._said("died while starting")
            assert time.monotonic() < deadline, self._said("was not ready in time")
            time.sleep(POLL_S)

    def _is_ready(self) -> bool:
        # Connection refused while the ranks load, then 503 until the built-in warm-up is over.
        try:
            with self.request("/ready"):
                return True
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def request(self, path: str, body: dict[str, Any] | None = None) -> contextlib.closing[Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        return contextlib.closing(urllib.request.urlopen(request, timeout=STOP_LIMIT_S))

    def answer(self, path: str, body: dict[str, Any] | None = None) -> Any:
        with self.request(path, body) as response:
            return json.load(response)

    def exit_code(self) -> int:
        return self.process.wait(STOP_LIMIT_S)

    def living_processes(self) -> list[psutil.Process]:
        """Everything of the server's process group that has not ended."""
        return [process for process in psutil.process_iter() if self._has(process)]

    def _has(self, process: psutil.Process) -> bool:
        try:
            return os.getpgid(process.pid) == self.process.pid and process.status() != psutil.STATUS_ZOMBIE
        except (ProcessLookupError, psutil.NoSuchProcess):
            return False

    def _said(self, what: str) -> str:
        return f"the server {what}; its log ends with\n{self.log.read_text(errors='replace')[-3000:]}"


@contextlib.contextmanager
def engine_server(
    python: str, checkpoint: Path, *flags: str, log: Path, arguments: tuple[str, ...] = ARGUMENTS
) -> Iterator[EngineServer]:
    """Launches the server and, whatever happens, leaves no process of it behind."""
    port = _free_port()
    where = ("--model-path", str(checkpoint), "--host", "127.0.0.1", "--port", str(port))
    with log.open("wb") as log_file:
        process = subprocess.Popen(
            [python, "-m", "sglang.launch_server", *where, *arguments, *flags],
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **ENVIRONMENT},
            start_new_session=True,
        )
    server = EngineServer(process=process, port=port, log=log)
    try:
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        _, alive = psutil.wait_procs(server.living_processes(), timeout=STOP_LIMIT_S)
        assert not alive, f"left behind: {alive}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
