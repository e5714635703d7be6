"""A machine reached by the system's OpenSSH client."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from ipaddress import IPv6Address
from pathlib import Path

from tuner.servers.host import LOOPBACK, Answer, HostError, answer_of, last_line, unused_port
from tuner.servers.host_elsewhere import free_port_of, run_marked

# `[user@]host` and `ssh://[user@]host[:port]`: nothing that a shell or ssh's options would read. ssh takes a password
# in neither, and a port in the second alone.
_USER = r"(?:[A-Za-z0-9_][A-Za-z0-9_.@%+-]*@)?"
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.%+-]*"
_IPV6 = r"(?P<ipv6>[0-9A-Fa-f.]*:[0-9A-Fa-f.:]*(?:%\w+)?)"
_PLAIN = re.compile(rf"{_USER}(?:{_NAME}|{_IPV6})", re.ASCII)
_URI = re.compile(rf"ssh://{_USER}(?:{_NAME}|\[{_IPV6}\])(?::(?P<port>[0-9]+))?/?", re.ASCII)
_COLON = re.compile(r":|%3a", re.IGNORECASE)
_LARGEST_PORT = 65535

_FORWARD_TRIES = 5
_CONNECT_S = 60.0
_POLL_S = 0.02

# $0: the folder of the control socket. The connection ends with this shell's standard input, which the tuner holds
# open: so it ends with the tuner, however that ends.
_CONNECTION = """
exec 3<&0
trap '' INT HUP
"$@" </dev/null 3<&- &
ssh=$!
{ cat >/dev/null; rm -rf "$0"; kill $ssh; } <&3 3<&- 2>/dev/null &
lifeline=$!
exec 3<&- </dev/null
wait $ssh
code=$?
kill $lifeline 2>/dev/null
exit $code
"""


class SshHost:
    """With the user's configuration and agent, over one shared connection, which is made when it is first needed.

    Whatever the login shell there is, no word reaches it but in an alphabet that is plain text to all of them.
    """

    python = "python3"

    def __init__(self, destination: str, options: Sequence[str] = ()) -> None:
        """destination: as ssh reads it. options: more words for ssh. Raises ValueError for what is no destination."""
        if not _is_destination(destination):
            raise ValueError(f"{destination_shown(destination)!r} is no destination of ssh")
        self._destination = destination
        self._folder = Path()
        self._options = tuple(options)
        self._connection: subprocess.Popen[bytes] | None = None
        self._forwarded: dict[int, int] = {}
        self._lock = threading.RLock()

    @property
    def name(self) -> str:
        return self._destination

    def run(self, words: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Answer:
        try:
            return run_marked(words, lambda script: answer_of(self._words(script), stdin, timeout_s))
        except HostError as error:
            raise self._failed(str(error)) from error

    def command(self, words: Sequence[str]) -> list[str]:
        return self._words(f"exec {shlex.join(words)}")

    def address(self) -> str:
        """The name or address that ssh connects to, after the user's configuration. Raises HostError."""
        told = answer_of(["ssh", *self._options, "-G", "--", self._destination], b"", 30.0)
        for line in told.stdout.decode(errors="replace").splitlines():
            key, _, value = line.partition(" ")
            if key == "hostname" and value:
                return value
        raise self._failed(_reason(told.stderr) or "ssh does not say which address it has")

    def free_port(self) -> int:
        return free_port_of(self)

    def reach(self, port: int) -> tuple[str, int]:
        with self._lock:
            self._connect()
            if port in self._forwarded:
                return LOOPBACK, self._forwarded[port]
            said = b""
            for _ in range(_FORWARD_TRIES):  # between its choice and its use a port may be taken by another
                here = unused_port()
                answer = self._control("forward", _forward(here, port))
                if answer.code == 0:
                    self._forwarded[port] = here
                    return LOOPBACK, here
                said = answer.stderr
            raise self._failed(f"no forwarding to port {port} there: {last_line(said)}")

    def unreach(self, port: int) -> None:
        with self._lock:
            here = self._forwarded.pop(port, None)
            if here is not None and self._is_connected():
                with contextlib.suppress(HostError):
                    self._control("cancel", _forward(here, port))

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            self._forwarded.clear()
            if connection is None:
                return
            assert connection.stdin is not None
            connection.stdin.close()
            try:
                connection.wait(10.0)
            except subprocess.TimeoutExpired:
                connection.kill()
                connection.wait()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _failed(self, why: str) -> HostError:
        return HostError(f"{self._destination}: {why.removeprefix(f'{self._destination}: ')}")

    def _words(self, script: str) -> list[str]:
        self._connect()
        encoded = base64.b64encode(os.fsencode(script)).decode()
        remote = f"""exec sh -c 'eval "$(printf %s {encoded} | base64 -d)"'"""
        return [*self._ssh(), "-o", "ClearAllForwardings=yes", "-T", "--", self._destination, remote]

    def _ssh(self, *, is_master: bool = False) -> list[str]:
        return [
            "ssh",
            *self._options,
            *("-a", "-x"),
            *("-o", "BatchMode=yes"),
            *("-o", "LogLevel=ERROR"),  # its warnings would stand in the command's own stderr
            *("-o", f"ControlMaster={'yes' if is_master else 'no'}"),
            *("-o", f"ControlPath={self._folder}/c"),
            *("-o", "ConnectTimeout=15"),
            *("-o", "ServerAliveInterval=10"),
            *("-o", "ServerAliveCountMax=3"),
            *("-o", "RemoteCommand=none"),
            *("-o", "PermitLocalCommand=no"),
        ]

    def _control(self, request: str, words: Sequence[str] = ()) -> Answer:
        return answer_of([*self._ssh(), "-O", request, *words, "--", self._destination], b"", 30.0)

    def _is_connected(self) -> bool:
        return self._connection is not None and self._connection.poll() is None

    def _connect(self) -> None:
        """Makes the shared connection, also anew where it was lost. Raises HostError."""
        with self._lock:
            if self._is_connected():
                return
            self.close()
            # A socket's path has at most 107 characters, and ssh appends 17 while it makes it.
            self._folder = Path(tempfile.mkdtemp(prefix="lt-", dir="/tmp"))
            master = [*self._ssh(is_master=True), "-o", "ControlPersist=no", "-o", "ClearAllForwardings=yes"]
            try:
                with tempfile.TemporaryFile() as said:
                    self._connection = subprocess.Popen(
                        ["sh", "-c", _CONNECTION, str(self._folder), *master, "-N", "-T", "--", self._destination],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.DEVNULL,
                        stderr=said,
                        start_new_session=True,
                    )
                    self._await_connection(said.fileno())
            except BaseException:
                self.close()
                raise

    def _await_connection(self, said: int) -> None:
        deadline = time.monotonic() + _CONNECT_S
        while time.monotonic() < deadline:
            if not self._is_connected():
                why = _reason(os.pread(said, 1 << 16, 0)) or "ssh could not connect"
                raise self._failed(why)
            if (self._folder / "c").exists() and self._control("check").code == 0:
                return
            time.sleep(_POLL_S)
        raise self._failed(f"ssh did not connect within {_CONNECT_S:g} s")


def destination_shown(word: str) -> str:
    """`word` without what may be a password in it."""
    before, at, host = word.rpartition("@")
    scheme = "ssh://" if before.startswith("ssh://") else ""
    user, *password = _COLON.split(before.removeprefix(scheme), maxsplit=1)
    return f"{scheme}{user}:***@{host}" if at and password else word


def _is_destination(word: str) -> bool:
    match = _URI.fullmatch(word) or _PLAIN.fullmatch(word)
    if match is None or destination_shown(word) != word:
        return False
    port = match.groupdict().get("port")
    if port is not None and not 1 <= int(port.lstrip("0")[:6] or "0") <= _LARGEST_PORT:
        return False
    try:
        return match["ipv6"] is None or bool(IPv6Address(match["ipv6"]))
    except ValueError:
        return False


def _reason(said: bytes) -> str:
    """Why ssh did not connect, in its words; its usage is none."""
    return "this ssh takes no such destination" if b"usage: ssh" in said else last_line(said)


def _forward(here: int, there: int) -> list[str]:
    return ["-L", f"{LOOPBACK}:{here}:{LOOPBACK}:{there}"]
