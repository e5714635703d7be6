"""What the trial needs from a place where servers run: start one, see whether it lives, end it with all it started.

Ways to start a server differ (this machine, another host, a service manager); trials do not know which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """command: the words of the server's own process. env: added to this process's environment.

    log_path: where its output goes. grace_s: how long it may take to end when asked gently.
    """

    command: tuple[str, ...]
    host: str
    port: int
    log_path: Path
    env: Mapping[str, str] = field(default_factory=dict)
    grace_s: float = 20.0

    @property
    def base_url(self) -> str:
        return f"http://{self.host}:{self.port}"


class Server(Protocol):
    """One started server. After `stop` nothing that it started is left."""

    @property
    def launch(self) -> Launch: ...

    def exit_code(self) -> int | None:
        """None while it runs; 128 + n where a signal n ended it."""
        ...

    def stop(self) -> None:
        """Ends the server and every process it started, gently and then by force. Safe to call twice."""
        ...


class Launcher(Protocol):
    def start(self, launch: Launch) -> Server:
        """Raises `LaunchError` when the program cannot be started at all."""
        ...

    def free_port(self) -> int:
        """A TCP port on the server's host that nothing listens on at the moment."""
        ...


class LaunchError(RuntimeError):
    """The program could not be started: it does not exist, or may not be run."""
