"""Stands between the tuner and one server, so that the server cannot outlive the tuner.

Run as a script: `python -I guard.py GRACE_S -- COMMAND ...`. It starts COMMAND in a session of its own and

* when COMMAND ends, ends whatever COMMAND left behind and exits with its code (128 + n for a signal n);
* when its standard input closes, because the tuner asks or because the tuner is gone however it went, or on
  SIGTERM, asks COMMAND to end, waits GRACE_S seconds, and kills every descendant.

Descendants are found even when their parent is gone: the guard is their sub-reaper (Linux, prctl(2)
PR_SET_CHILD_SUBREAPER). Should the guard itself be killed, COMMAND is too (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from types import FrameType

import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.1


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def die_with_the_parent() -> None:
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _kill_descendants(limit_s: float = 30.0) -> None:
    """Kills until none is left: a dying process may start another."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        left = [p for p in psutil.Process().children(recursive=True) if _lives(p)]
        if not left:
            return
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(POLL_S / 2)  # psutil's own waiting would reap the server and lose its exit code


def guard(command: list[str], grace_s: float) -> int:
    """Runs `command` to its end, or to the closing of standard input. Returns the exit code."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    asked_to_end = False

    def on_sigterm(_signal: int, _frame: FrameType | None) -> None:
        nonlocal asked_to_end
        asked_to_end = True

    signal.signal(signal.SIGTERM, on_sigterm)
    # Nothing that a terminal sends may end the guard before the tuner does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # The guard has one thread, so running Python between fork and exec is safe here.
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=die_with_the_parent,  # noqa: PLW1509
    )
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        while child.poll() is None and not asked_to_end:
            if selector.select(POLL_S) and not os.read(sys.stdin.fileno(), 4096):
                asked_to_end = True
    if child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace_s)
    _kill_descendants()
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(guard(sys.argv[sys.argv.index("--") + 1 :], float(sys.argv[1])))
