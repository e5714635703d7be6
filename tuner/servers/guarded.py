"""Servers as process trees on a host, each behind a guard there that outlives neither tuner nor server."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import tempfile
import threading
import time
import weakref
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from tuner.servers import guard
from tuner.servers.copied_log import CopiedLog
from tuner.servers.host import Host, HostError, last_line
from tuner.servers.orphans import OWNER_VARIABLE, SERVER_VARIABLE, end_server, owner_mark
from tuner.servers.protocol import Launch, LaunchError

GUARD_SOURCE = Path(guard.__file__).read_text()

SILENCE_S = 60.0
"""A server elsewhere ends when its tuner was not heard for so long: a cut network closes no connection there."""
_START_LIMIT_S = 60.0
_POLL_S = 0.01
_SLACK_S = 10.0
_CANNOT_RUN = frozenset({126, 127})


class GuardedServer:
    """pid: of the process here that the server hangs on, the guard or ssh. server_pid: of the server, on its host."""

    def __init__(
        self,
        launch: Launch,
        host: Host,
        process: subprocess.Popen[bytes],
        said: _Said,
        *,
        word: str,
        base_url: str,
        silence_s: float,
    ) -> None:
        self._launch = launch
        self._host = host
        self._process = process
        self._said = said
        self._word = word
        self._base_url = base_url
        # A server on this machine writes its log itself.
        out = process.stdout
        self._log = CopiedLog(out, launch.log_path) if isinstance(out, BufferedReader) else None
        self._lifeline = threading.Lock()
        self._silence_s = silence_s
        self._lost = ""
        self._is_stopped = False
        self.server_pid = 0
        # A server that nobody can stop any more, as an interrupt came before it had a name, loses its lifeline too.
        weakref.finalize(self, _closed, process.stdin)

    @property
    def launch(self) -> Launch:
        return self._launch

    @property
    def base_url(self) -> str:
        return self._base_url

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        code = self._process.poll()
        if code is None:
            return None
        if self._log is not None:
            self._log.wait()
        told = self._said.report.get("exit")
        if told is not None:
            return int(told)
        if self._host.name:
            return None  # of the connection, at best
        return 128 - code if code < 0 else code

    def lost(self) -> str:
        self._lost = self._lost or self._why_lost()
        return self._lost

    def _why_lost(self) -> str:
        if not self._host.name or "exit" in self._said.report:
            return ""
        if self._process.poll() is not None:
            return f"the connection to {self._host.name} was lost: {self._said.others or 'ssh ended without a word'}"
        if self._silence_s and self._said.silent_s() > self._silence_s:
            return f"the connection to {self._host.name} was lost: nothing came from there for {self._silence_s:g} s"
        return ""

    def stop(self) -> None:
        if self._is_stopped:
            return
        self._close_lifeline()
        try:
            # The guard needs up to the grace, and then up to its own limit for killing.
            self._process.wait(0.0 if self.lost() else self._launch.grace_s + guard.KILLING_S + _SLACK_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if not {"exit", "failed"} & self._said.report.keys():
            # Where its host is not reached, its guard there ends it: by the end of the connection or by our silence.
            with contextlib.suppress(HostError, OSError):
                end_server(self._host, self._word, self._launch.grace_s)
        if self._log is not None:
            self._log.wait()
        self._host.unreach(self._launch.port)
        self._said.close()
        self._is_stopped = True

    def beat(self, period_s: float) -> None:
        """Lets the guard hear of us until the server is stopped, as long as this process runs."""
        stdin = self._process.stdin
        assert stdin is not None
        os.set_blocking(stdin.fileno(), False)
        threading.Thread(target=_beating, args=(weakref.ref(self), period_s), name="heartbeat", daemon=True).start()

    def _beaten(self) -> bool:
        """Whether the guard was to hear of us, and still is."""
        stdin = self._process.stdin
        with self._lifeline:
            if stdin is None or stdin.closed or self._process.poll() is not None:
                return False
            with contextlib.suppress(OSError):
                os.write(stdin.fileno(), b"\n")
            return True

    def _close_lifeline(self) -> None:
        with self._lifeline, contextlib.suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.close()


def _beating(server: weakref.ref[GuardedServer], period_s: float) -> None:
    """As long as somebody holds the server, which this does not."""
    while True:
        held = server()
        if held is None or not held._beaten():  # noqa: SLF001 - its own heart
            return
        del held
        time.sleep(period_s)


def _closed(lifeline: IO[bytes] | None) -> None:
    if lifeline is not None:
        with contextlib.suppress(OSError):
            lifeline.close()


class GuardedLauncher:
    """Starts servers on one host. silence_s: see `SILENCE_S`; 0 for a host where the tuner's own end is seen."""

    def __init__(self, host: Host, *, silence_s: float | None = None) -> None:
        self._host = host
        self._silence_s = (SILENCE_S if host.name else 0.0) if silence_s is None else silence_s

    @property
    def hosts(self) -> tuple[Host, ...]:
        return (self._host,)

    def free_port(self) -> int:
        try:
            return self._host.free_port()
        except HostError:
            return 0  # `start` says what is wrong

    def start(self, launch: Launch) -> GuardedServer:
        host = self._host
        try:
            address, port = host.reach(launch.port)
            words = host.command([host.python, "-I", "-c", GUARD_SOURCE])
        except HostError as error:
            raise LaunchError(str(error)) from error
        word = secrets.token_hex(8)
        said = _Said()
        try:
            process = self._spawned(launch, words, said)
        except OSError as error:
            said.close()
            host.unreach(launch.port)
            raise LaunchError(f"cannot start {launch.command[0]!r}: {error}") from error
        server = GuardedServer(
            launch,
            host,
            process,
            said,
            word=word,
            base_url=f"http://{address}:{port}",
            silence_s=self._silence_s,
        )
        try:
            self._ordered(process, launch, said.mark, word)
            server.server_pid = self._started(process, said)
            if self._silence_s:
                server.beat(self._silence_s / guard.BEATS)
        except BaseException as error:
            if isinstance(error, LaunchError):
                process.wait()
            server.stop()
            raise
        return server

    def _spawned(self, launch: Launch, words: list[str], said: _Said) -> subprocess.Popen[bytes]:
        launch.log_path.parent.mkdir(parents=True, exist_ok=True)
        launch.log_path.write_bytes(b"")
        with launch.log_path.open("ab") as log:
            return subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if self._host.name else log,
                stderr=said.file,
                env={**os.environ, OWNER_VARIABLE: owner_mark()},
                start_new_session=True,
            )

    def _ordered(self, process: subprocess.Popen[bytes], launch: Launch, mark: str, word: str) -> None:
        """By standard input: what is said there stands in no listing of processes."""
        order = {
            "mark": mark,
            "command": launch.command,
            "env": {**launch.env, OWNER_VARIABLE: owner_mark(), SERVER_VARIABLE: word},
            "host": launch.host,
            "port": launch.port,
            "grace_s": launch.grace_s,
            "silence_s": self._silence_s,
        }
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already, and said why
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()

    def _started(self, process: subprocess.Popen[bytes], said: _Said) -> int:
        """The server's process number there, once it runs. Raises LaunchError."""
        where = f" on {self._host.name}" if self._host.name else ""
        deadline = time.monotonic() + _START_LIMIT_S
        while time.monotonic() < deadline:
            code = process.poll()  # before its last words are read
            report = said.report
            if "failed" in report:
                raise LaunchError(str(report["failed"]) + where)
            if "started" in report:
                return int(report["started"])
            if code is not None:
                what = f"no {self._host.python} that can be run{where}" if code in _CANNOT_RUN else f"no guard{where}"
                raise LaunchError(f"{what}: {said.others or f'it ended with {code}'}")
            time.sleep(_POLL_S)
        process.kill()
        raise LaunchError(f"nothing was started{where} within {_START_LIMIT_S:g} s: {said.others or 'no answer'}")


class _Said:
    """What guard and ssh say on standard error: the guard's lines begin with a mark that nothing else knows."""

    def __init__(self) -> None:
        self.mark = secrets.token_hex(16)
        self.file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._report: dict[str, Any] = {}
        self._others = ""
        self._read_bytes = 0
        self._beat: object = None
        self._beat_s = time.monotonic()

    @property
    def report(self) -> dict[str, Any]:
        self._read()
        return self._report

    @property
    def others(self) -> str:
        """The last line that is not the guard's."""
        self._read()
        return self._others

    def silent_s(self) -> float:
        """Since a sign of life of the guard was first seen here: none is missed while nobody looks."""
        beat = self.report.get("beat")
        if beat != self._beat:
            self._beat, self._beat_s = beat, time.monotonic()
        return time.monotonic() - self._beat_s

    def close(self) -> None:
        self._read()
        self.file.close()

    def _read(self) -> None:
        if self.file.closed:
            return
        # Its writers share the place in the file, which reading must not move.
        said = os.pread(self.file.fileno(), 1 << 20, self._read_bytes)
        whole, newline, _ = said.rpartition(b"\n")
        self._read_bytes += len(whole) + len(newline)
        mark = self.mark.encode()
        for line in whole.splitlines():
            if line.startswith(mark):
                self._report.update(json.loads(line[len(mark) :]))
            else:
                self._others = last_line(line) or self._others
