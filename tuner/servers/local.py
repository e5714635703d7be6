"""Servers as process trees on this machine."""

from __future__ import annotations

from tuner.servers.guarded import GuardedLauncher, GuardedServer
from tuner.servers.host import LocalHost

LocalServer = GuardedServer


class LocalLauncher(GuardedLauncher):
    def __init__(self) -> None:
        super().__init__(LocalHost())
