"""Stands between the tuner and one server, on the machine where the server runs, so that it cannot outlive the tuner.

It needs nothing but Python 3.8 and its standard library: `python3 -I -c SOURCE` runs it where nothing of ours is. Its
standard input brings one line of JSON, the order, and stays open for as long as the server is wanted:

    {"mark": word, "command": [words], "env": {name: value}, "host": address, "port": number,
     "grace_s": seconds, "silence_s": seconds}

It starts the command in a session of its own, its output on the guard's standard output, and

* when the command ends, ends whatever it left behind and exits with its code (128 + n for a signal n);
* when standard input closes, because the tuner asks or is gone however it went, or the connection is; when nothing
  came from there for `silence_s` (0: ever), because a cut network closes nothing; or on SIGTERM: asks the command to
  end, waits `grace_s`, and kills every descendant.

Descendants are found even when their parent is gone: the guard is their sub-reaper (Linux, prctl(2)
PR_SET_CHILD_SUBREAPER). Should the guard itself be killed, the command is too (PR_SET_PDEATHSIG).

What became of it stands on standard error, in lines that begin with the mark, one of `{"started": pid}` and
`{"failed": why}`, and at last `{"exit": code}`: an exit code alone may be of ssh or of a shell on the way. In between,
where `silence_s` is a limit, `{"beat": number}` says several times within it that the guard lives.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.1
KILLING_S = 30.0
FAILED = 127
BEATS = 10
_PROXIES = frozenset({b"http_proxy", b"https_proxy", b"all_proxy"})
"""So many in the time after which their lack means the end."""


def _prctl(option: int, value: int) -> None:
    if sys.platform != "linux":
        return
    try:
        import ctypes  # noqa: PLC0415 - the smallest installations of Python lack it

        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
    except (ImportError, OSError):
        pass


def die_with_the_parent() -> None:
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _parents() -> dict[int, int]:
    """Of every process that lives, its parent's number."""
    parents = {}
    if os.path.isdir("/proc/self"):  # noqa: PTH112
        for name in os.listdir("/proc"):  # noqa: PTH208
            if name.isdigit():
                try:
                    with open(f"/proc/{name}/stat", "rb") as stat:  # noqa: PTH123
                        state, parent = stat.read().rpartition(b")")[2].split()[:2]
                except (OSError, ValueError):
                    continue
                if state not in {b"Z", b"X"}:
                    parents[int(name)] = int(parent)
        return parents
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], stdout=subprocess.PIPE, check=False).stdout
    for line in listed.splitlines():
        pid, parent, state = line.split()[:3]
        if not state.startswith(b"Z"):
            parents[int(pid)] = int(parent)
    return parents


def descendants(root: int) -> list[int]:
    parents = _parents()
    children = {}  # type: dict[int, list[int]]
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found = list(children.get(root, ()))
    for pid in found:  # grows while it is read
        found += children.get(pid, ())
    return found


def _send(pids: list[int], signal_number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal_number)


def _occupied(address: str, port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((address, port))
        except OSError:
            return True
    return False


def _environment(given: dict[str, str]) -> dict[bytes, bytes]:
    """`given` over this process's own. A proxy is for the world outside: SGLang warms itself up over HTTP, by a client
    that would ask one for 127.0.0.1.
    """
    found = {**os.environb, **{_bytes(name): _bytes(value) for name, value in given.items()}}
    if any(name.lower() in _PROXIES for name in found):
        spared = found.get(b"no_proxy") or found.get(b"NO_PROXY")
        found[b"no_proxy"] = found[b"NO_PROXY"] = b",".join(filter(None, [spared, b"127.0.0.1,localhost"]))
    return found


class Guard:
    """One server. `order`: as it came. Its words and environment may hold any byte, in the way of os.fsdecode."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order
        self._code = None  # type: int | None
        self._main = 0
        self._asked_to_end = False
        self._heard_s = time.monotonic()

    def say(self, **what: object) -> None:
        with contextlib.suppress(OSError):  # where nobody listens any more
            os.write(2, f"\n{self._order['mark']} {json.dumps(what)}\n".encode())

    def start(self) -> bool:
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        # Handlers, not SIG_IGN, which the command would inherit. Nothing that a terminal sends may end the guard.
        signal.signal(signal.SIGTERM, self._on_sigterm)
        for harmless in (signal.SIGINT, signal.SIGHUP):
            signal.signal(harmless, lambda *_: None)
        address, port = str(self._order["host"]), int(self._order["port"])
        words = [_bytes(word) for word in self._order["command"]]
        if port and _occupied(address, port):
            self.say(failed=f"port {port} is in use on {address}: another server would answer there")
            return False
        try:
            # The guard has one thread, so running Python between fork and exec is safe here.
            child = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stderr=1,
                env=_environment(self._order["env"]),
                start_new_session=True,
                preexec_fn=die_with_the_parent,  # noqa: PLW1509
            )
        except (OSError, ValueError) as error:
            why = f"cannot start {os.fsdecode(words[0])!r}: {getattr(error, 'strerror', None) or error}"
            if isinstance(error, (FileNotFoundError, PermissionError)):
                why += ": no such program, or it may not be run"
            self.say(failed=why)
            return False
        self._main = child.pid
        child.returncode = 0  # it is waited for here, with all that the guard inherits
        self.say(started=child.pid)
        return True

    def run(self) -> int:
        """To the server's end, or until it is to end. Returns its exit code."""
        order = self._order
        silence_s, grace_s = float(order["silence_s"]), float(order["grace_s"])
        watched = [0]
        beats, began_s = 0, time.monotonic()
        while self._lives() and not self._asked_to_end:
            if silence_s and time.monotonic() - began_s > beats * silence_s / BEATS:
                beats += 1
                self.say(beat=beats)
            if select.select(watched, [], [], POLL_S)[0]:
                if not _read():
                    self._asked_to_end = True
                self._heard_s = time.monotonic()
            elif silence_s and time.monotonic() - self._heard_s > silence_s:
                self._asked_to_end = True
        if self._asked_to_end:
            self._end_gently(grace_s)
        self._end()
        code = 137 if self._code is None else self._code
        self.say(exit=code)
        return code

    def _on_sigterm(self, *_: object) -> None:
        self._asked_to_end = True

    def _lives(self) -> bool:
        """Whether the command's own process lives. Buries whatever has died."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return self._code is None
            if pid == self._main:
                self._code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def _end_gently(self, grace_s: float) -> None:
        """The command first, which knows how to end its own; what it leaves in the rest of the grace."""
        deadline = time.monotonic() + grace_s
        if self._lives():
            _send([self._main], signal.SIGTERM)
            _send(descendants(os.getpid()), signal.SIGCONT)  # what is stopped takes no other signal
        while self._lives() and time.monotonic() < deadline:
            time.sleep(POLL_S / 5)
        left = descendants(os.getpid())
        if self._code is not None and left:
            _send(left, signal.SIGTERM)
            while time.monotonic() < deadline and descendants(os.getpid()):
                self._lives()
                time.sleep(POLL_S / 2)

    def _end(self) -> None:
        """Kills until none is left: a dying process may start another."""
        deadline = time.monotonic() + KILLING_S
        while time.monotonic() < deadline:
            left = descendants(os.getpid())
            _send(left, signal.SIGKILL)
            if not self._lives() and not left:
                return
            time.sleep(POLL_S / 5)


def _bytes(word: object) -> bytes:
    # Not by the locale of a machine that may have none.
    return str(word).encode("utf-8", "surrogateescape")


def _read() -> bytes:
    try:
        return os.read(0, 4096)
    except OSError:
        return b""


def ordered() -> dict[str, Any]:
    """The order, from standard input. Raises ValueError where it ended before."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            raise ValueError("no order came")
        line += byte
    return dict(json.loads(line))


def main() -> int:
    guard = Guard(ordered())
    return guard.run() if guard.start() else FAILED


if __name__ == "__main__":
    sys.exit(main())
