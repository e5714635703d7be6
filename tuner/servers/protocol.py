"""What the trial needs from a place where servers run: start one, see whether it lives, end it with all it started.

Ways to start a server differ (this machine, another host, a service manager); trials do not know which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tuner.servers.host import Host


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """command: the words of the server's own process. env: added to the environment that it finds on its host.

    host, port: where it listens, seen from its own host. log_path: the file here into which its output goes.
    grace_s: how long it may take to end when asked gently.
    """

    command: tuple[str, ...]
    host: str
    port: int
    log_path: Path
    env: Mapping[str, str] = field(default_factory=dict)
    grace_s: float = 20.0


class Server(Protocol):
    """One started server. After `stop` nothing that it started is left."""

    @property
    def launch(self) -> Launch: ...

    @property
    def base_url(self) -> str:
        """Where it answers from here."""
        ...

    def exit_code(self) -> int | None:
        """None while it runs, and where `lost`; 128 + n where a signal n ended it."""
        ...

    def lost(self) -> str:
        """Why no more can be known of it: its host or the connection to it is gone. Empty while it is in our hands."""
        ...

    def stop(self) -> None:
        """Ends the server and every process it started, gently and then by force. Safe to call twice."""
        ...


class Launcher(Protocol):
    @property
    def hosts(self) -> tuple[Host, ...]:
        """Where its servers run, the one that answers first."""
        ...

    def start(self, launch: Launch) -> Server:
        """Returns once the program runs. Raises `LaunchError` when it cannot be started at all."""
        ...

    def free_port(self) -> int:
        """A TCP port on the server's host that nothing listens on at the moment; 0 where that cannot be asked, of
        which `start` says why.
        """
        ...


class LaunchError(RuntimeError):
    """The program could not be started: it does not exist or may not be run, or its host was not reached."""
