"""A machine on which commands and servers run: what the rest needs of it, and this machine itself."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

LOOPBACK = "127.0.0.1"


class HostError(Exception):
    """The host was not reached, the connection was lost, or the command took too long: no answer of the command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """code: the command's exit code, 128 + n where signal n ended it."""

    code: int
    stdout: bytes
    stderr: bytes


class Host(Protocol):
    """name: empty for this machine. python: a Python there, 3.8 or newer, of which the standard library is enough."""

    @property
    def name(self) -> str: ...

    @property
    def python(self) -> str: ...

    def run(self, words: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Answer:
        """Runs `words` to its end, each word as it is. Raises HostError; OSError where this machine lacks it."""
        ...

    def command(self, words: Sequence[str]) -> list[str]:
        """The words that, started here, run `words` there with input, outputs and exit code connected.

        Closing its standard input closes that of `words`; that `words` ends with the connection is for `words` to see
        to. Raises HostError.
        """
        ...

    def free_port(self) -> int:
        """A TCP port of its loopback address that nothing listens on at the moment. Raises HostError."""
        ...

    def reach(self, port: int) -> tuple[str, int]:
        """Address and port here under which a server answers that listens on 127.0.0.1:port there. Raises HostError."""
        ...

    def unreach(self, port: int) -> None:
        """Takes `reach` back. Safe to call twice, and where the host is gone."""
        ...

    def close(self) -> None:
        """Gives back what it holds. Safe to call twice; used again, it connects again."""
        ...


def answer_of(words: Sequence[str], stdin: bytes, timeout_s: float) -> Answer:
    """Runs `words` here. Raises HostError after `timeout_s`, OSError where it cannot be started."""
    with subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(stdin, timeout_s)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # children hold the pipes too
            if isinstance(error, subprocess.TimeoutExpired):
                raise HostError(f"{words[0]} did not end within {timeout_s:g} s") from error
            raise
    code = process.returncode
    return Answer(code=code if code >= 0 else 128 - code, stdout=stdout, stderr=stderr)


@dataclass(frozen=True, slots=True)
class LocalHost:
    """This machine."""

    @property
    def name(self) -> str:
        return ""

    @property
    def python(self) -> str:
        return sys.executable

    def run(self, words: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Answer:
        return answer_of(words, stdin, timeout_s)

    def command(self, words: Sequence[str]) -> list[str]:
        return list(words)

    def free_port(self) -> int:
        return unused_port()

    def reach(self, port: int) -> tuple[str, int]:
        return LOOPBACK, port

    def unreach(self, port: int) -> None:
        pass

    def close(self) -> None:
        pass


def unused_port() -> int:
    """A TCP port of this machine's loopback address that nothing listens on at the moment."""
    with socket.socket() as s:
        s.bind((LOOPBACK, 0))
        return int(s.getsockname()[1])


def port_is_free(address: str, port: int) -> bool:
    """On this machine."""
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((address, port))
        except OSError:
            return False
        return True


def last_line(said: bytes) -> str:
    """Where ssh, srun and shells say what went wrong."""
    lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""
