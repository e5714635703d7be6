"""Where a test of the contract has its servers, and what it asks of them."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from search_spaces.catalogue import parse_cluster
from search_spaces.layout import Layout
from search_spaces.sglang.versions import NEWEST
from tests.processes import alive_with, words_of
from tests.tuner.servers.implementations import Implementation
from tests.waiting import eventually
from tuner.engine import simulated
from tuner.server_control import is_ready
from tuner.servers.protocol import Launch, Launcher, Server

DEATH_SEEN_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """`token` stands in the words of every process of its servers. others: those that somebody else has started."""

    launcher: Launcher
    implementation: Implementation
    source: str
    folder: Path
    token: str = field(default_factory=lambda: f"token-{secrets.token_hex(8)}")
    started: list[Server] = field(default_factory=list)
    others: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def launch(self, code: str, *words: str, grace_s: float = 10.0, **env: str) -> Launch:
        return Launch(
            command=self.implementation.words((self.implementation.python, "-c", code, self.token, *words)),
            host="127.0.0.1",
            port=self.launcher.free_port(),
            log_path=self.folder / f"{len(self.started)}" / "server.log",
            grace_s=grace_s,
            env=env,
        )

    def start(self, code: str, *words: str, grace_s: float = 10.0, **env: str) -> Server:
        self.started.append(self.launcher.start(self.launch(code, *words, grace_s=grace_s, **env)))
        return self.started[-1]

    def simulated(self) -> Server:
        """One that starts to serve, or does so already where somebody else has to start it."""
        engine = simulated(parse_cluster("8xrtx-pro-6000"), NEWEST, because="a test", clock_scale=1000.0)
        port = self.launcher.free_port()
        command = engine.command(Layout(tp_size=8), model_path="qwen3-30b-a3b", host="127.0.0.1", port=port, seed=0)
        named = (self.implementation.python, *command[1:], "--served-model-name", self.token)
        launch = Launch(
            command=self.implementation.words(named),
            host="127.0.0.1",
            port=port,
            log_path=self.folder / f"{len(self.started)}" / "server.log",
        )
        if not self.implementation.starts:
            self._start_as_somebody_else(launch)
        self.started.append(self.launcher.start(launch))
        return self.started[-1]

    def _start_as_somebody_else(self, launch: Launch) -> None:
        launch.log_path.parent.mkdir()
        with launch.log_path.open("wb") as log:
            process = subprocess.Popen(launch.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.others.append(process)
        base_url = f"http://{launch.host}:{launch.port}"
        assert eventually(lambda: is_ready(base_url) or process.poll() is not None)
        assert process.poll() is None, launch.log_path.read_text()

    def alive(self) -> list[psutil.Process]:
        """Processes of its servers, wherever they are: those that this Python code was started as."""
        return [p for p in alive_with(self.token) if words_of(p)[1:2] == ["-c"]]

    def serving(self) -> list[psutil.Process]:
        """Those of simulated ones."""
        return [p for p in alive_with(self.token) if words_of(p)[1:3] == ["-m", "tuner.simulator"]]

    def close(self) -> None:
        for server in self.started:
            server.stop()
        for process in self.others:
            process.kill()
            process.wait()
        assert not self.alive()
        assert not self.serving()


def log_of(server: Server) -> str:
    path = server.launch.log_path
    return path.read_text() if path.exists() else ""


def said(server: Server, word: str) -> bool:
    return eventually(lambda: word in log_of(server))


def ended(server: Server) -> int | None:
    assert eventually(lambda: server.exit_code() is not None), (server.lost(), log_of(server))
    assert not server.lost()
    return server.exit_code()


def is_over(server: Server) -> bool:
    """Whether it is known that it no longer serves."""
    return server.exit_code() is not None or bool(server.lost())


ATTACHED_TUNER = """
import time
from pathlib import Path
from tuner.servers.protocol import Launch
{source}
server = launcher.start(Launch(command=(), host='127.0.0.1', port={port}, log_path=Path('log')))
print(repr(server.lost()), flush=True)
time.sleep(600)
"""


def killed_once_attached(source: str, port: int) -> None:
    """A tuner that is attached to the server at `port`, by the launcher of `source`, and then killed."""
    code = ATTACHED_TUNER.format(source=source, port=port)
    tuner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert tuner.stdout is not None
        assert tuner.stdout.readline() == "''\n"
    finally:
        tuner.send_signal(signal.SIGKILL)
        tuner.communicate()
