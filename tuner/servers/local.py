"""Servers as process trees on this machine, each behind a guard that outlives neither tuner nor server."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import psutil

from tuner.servers import guard
from tuner.servers.protocol import Launch, LaunchError

OWNER_VARIABLE = "LAYOUT_TUNE_OWNER"
"""In the environment of every process started here: which tuner it belongs to, as `pid:start time`."""

_START_TIME_SLACK_S = 2.0
_NAMESPACE_LINK = Path("/proc/self/ns/pid")
_PID_NAMESPACE = str(_NAMESPACE_LINK.readlink()) if _NAMESPACE_LINK.is_symlink() else ""


class LocalServer:
    def __init__(self, launch: Launch, process: subprocess.Popen[bytes]) -> None:
        self._launch = launch
        self._process = process

    @property
    def launch(self) -> Launch:
        return self._launch

    @property
    def pid(self) -> int:
        """The guard's process; the server and all it started are its descendants."""
        return self._process.pid

    def exit_code(self) -> int | None:
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def stop(self) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            # The guard needs up to the grace, and then up to its own limit for killing.
            self._process.wait(self._launch.grace_s + 40.0)
        except subprocess.TimeoutExpired:
            guarded = psutil.Process(self._process.pid)
            for process in (*guarded.children(recursive=True), guarded):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self._process.wait()


class LocalLauncher:
    def start(self, launch: Launch) -> LocalServer:
        program = launch.command[0]
        if shutil.which(program) is None:
            raise LaunchError(f"cannot start {program!r}: no such program, or it may not be run")
        if not port_is_free(launch.host, launch.port):
            raise LaunchError(f"port {launch.port} is in use on {launch.host}: another server would answer there")
        try:
            return self._started(launch)
        except OSError as error:
            raise LaunchError(f"cannot start {program!r}: {error}") from error

    @staticmethod
    def _started(launch: Launch) -> LocalServer:
        launch.log_path.parent.mkdir(parents=True, exist_ok=True)
        with launch.log_path.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-I", str(Path(guard.__file__)), str(launch.grace_s), "--", *launch.command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **launch.env, OWNER_VARIABLE: _owner_mark(psutil.Process())},
                start_new_session=True,
            )
        return LocalServer(launch, process)

    def free_port(self) -> int:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            return int(s.getsockname()[1])


def _owner_mark(process: psutil.Process) -> str:
    return f"{process.pid}:{process.create_time():.2f}:{_PID_NAMESPACE}"


def end_orphans() -> int:
    """Kills what a tuner that no longer lives has left running. Returns how many processes that were.

    Only processes that carry the mark of a tuner are looked at, and only those whose tuner is gone: a second
    tuner at work on this machine keeps its servers.
    """
    orphans = []
    for process in psutil.process_iter():
        try:
            mark = process.environ().get(OWNER_VARIABLE, "")
            is_orphan = mark and process.status() != psutil.STATUS_ZOMBIE and not _is_alive(mark)
        except (psutil.Error, OSError):
            continue
        if is_orphan:
            orphans.append(process)
    for process in orphans:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(orphans, timeout=10)
    return len(orphans)


def _is_alive(mark: str) -> bool:
    pid, _, rest = mark.partition(":")
    started, _, namespace = rest.partition(":")
    if namespace != _PID_NAMESPACE:
        return True  # a container's tuner: its process numbers mean nothing here
    try:
        # Start times are derived from the boot time, which a clock correction may move a little.
        return abs(psutil.Process(int(pid)).create_time() - float(started)) < _START_TIME_SLACK_S
    except (psutil.Error, ValueError):
        return False


def port_is_free(host: str, port: int) -> bool:
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((host, port))
        except OSError:
            return False
        return True
