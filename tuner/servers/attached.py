"""A server that somebody else started: it is measured, and never stopped."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit

from tuner.server_keys import ServerKeys
from tuner.servers.protocol import Launch

_EVERY_S = 1.0
_CONNECT_S = 5.0
_SILENT_TIMES = 3
"""A server that is busy may let one connection wait; one that is gone refuses them all."""


class AttachedServer:
    """Whether it is still there is asked beside the load, by connecting: `lost` itself takes no time.

    How it ended can never be known, so that there is no exit code. A server that takes connections and says nothing is
    there: that it makes no progress is for the load to see.
    """

    def __init__(self, base_url: str, keys: ServerKeys) -> None:
        """base_url: with scheme and host."""
        parts = urlsplit(base_url)
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        words = (("--api-key", keys.api_key), ("--admin-api-key", keys.admin_api_key))
        self._base_url = base_url
        self._launch = Launch(
            command=tuple(word for flag, key in words if key for word in (flag, key)),
            host=host,
            port=port,
            log_path=Path(os.devnull),
        )
        self._lost = ""
        self._let_go = threading.Event()
        threading.Thread(target=self._watch, name="attached", daemon=True).start()

    @property
    def launch(self) -> Launch:
        """command: no more than the keys that it asks for, as it was given them."""
        return self._launch

    @property
    def base_url(self) -> str:
        return self._base_url

    def exit_code(self) -> int | None:
        return None

    def lost(self) -> str:
        return self._lost

    def look(self) -> None:
        """Asks at once, for who knows already that something is wrong."""
        self._lost = self._lost or self._said()

    def stop(self) -> None:
        """Lets it go: it runs on."""
        self._let_go.set()

    def _watch(self) -> None:
        failures = 0
        while not self._lost and not self._let_go.wait(_EVERY_S):
            said = self._said()
            failures = failures + 1 if said else 0
            if failures >= _SILENT_TIMES:
                self._lost = said

    def _said(self) -> str:
        """Empty where it takes a connection."""
        try:
            socket.create_connection((self._launch.host, self._launch.port), _CONNECT_S).close()
        except OSError as error:
            return f"{self._base_url} no longer answers: {error.strerror or error}"
        return ""
