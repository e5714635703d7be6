"""A server that somebody else started: it is measured, and never stopped."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests

from search_spaces.errors import UserError
from tuner.server_control import server_info
from tuner.server_keys import NO_KEYS, ServerKeys
from tuner.servers.protocol import Launch, LaunchError
from tuner.sglang_answering import reason_of, sglang_info

_POLL_S = 0.25
_CONNECT_S = 5.0
_ANSWER_S = 5.0
_TRIES = 3
"""A server that is busy may let one connection wait; one that is gone refuses them all."""
_BETWEEN_TRIES_S = 0.1
_BETWEEN_CONNECTIONS_S = 0.5
_ITS_OWN = ("model_path", "version", "tp_size", "launch_command", "random_seed")
"""What a server goes on saying of itself, and another in its place does not: the seed is drawn at its start, unless
--random-seed names it. Releases that lack one of these say nothing of it, each time.
"""


def attach(base_url: str, keys: ServerKeys = NO_KEYS) -> AttachedServer:
    """base_url: with scheme and host. Raises LaunchError where no SGLang server answers there."""
    try:
        info = sglang_info(base_url, keys)
    except UserError as error:
        raise LaunchError(str(error)) from error
    return AttachedServer(base_url, keys, info)


class AttachedServer:
    """Whether it is still there is seen beside the load, by a connection that is held and says nothing: its end is the
    server's, or that of a connection too long idle, so that it is asked then who answers. `lost` itself takes no time.

    How it ended can never be known, so that there is no exit code. A server that takes connections and says nothing is
    there: that it makes no progress is for the load to see.
    """

    def __init__(self, base_url: str, keys: ServerKeys, info: Mapping[str, Any]) -> None:
        """base_url: with scheme and host. info: what it says of itself."""
        parts = urlsplit(base_url)
        words = (("--api-key", keys.api_key), ("--admin-api-key", keys.admin_api_key))
        self._base_url = base_url
        self._keys = keys
        self._identity = _identity(info)
        self._launch = Launch(
            command=tuple(word for flag, key in words if key for word in (flag, key)),
            host=parts.hostname or "",
            port=parts.port or (443 if parts.scheme == "https" else 80),
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
        self._lost = self._lost or self._why_lost()

    def stop(self) -> None:
        """Lets it go: it runs on."""
        self._let_go.set()

    def _watch(self) -> None:
        while True:
            self._hold_a_connection()
            if self._let_go.is_set():
                return
            self.look()
            if self._lost or self._let_go.wait(_BETWEEN_CONNECTIONS_S):
                return

    def _hold_a_connection(self) -> None:
        """Returns when it has ended, when there is none to be had, or when the server is let go."""
        address = (self._launch.host, self._launch.port)
        with suppress(OSError), socket.create_connection(address, _CONNECT_S) as held:
            # A host that is gone closes nothing.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
                if hasattr(socket, option):
                    held.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
            held.settimeout(_POLL_S)
            while not self._let_go.is_set():
                with suppress(TimeoutError):
                    if not held.recv(4096):
                        return

    def _why_lost(self) -> str:
        """Empty where it answers as itself, or is too busy to answer."""
        why = ""
        for attempt in range(_TRIES):
            time.sleep(_BETWEEN_TRIES_S if attempt else 0.0)
            try:
                info = server_info(self._base_url, self._keys, timeout_s=_ANSWER_S)
            except requests.ReadTimeout:
                return ""
            except requests.HTTPError as error:
                if error.response.status_code >= 500:  # its own trouble, of which the load tells
                    return ""
                return self._another
            except requests.exceptions.InvalidJSONError:
                return self._another
            except requests.RequestException as error:
                why = f"{self._base_url} no longer answers: {reason_of(error)}"
            else:
                return "" if _identity(info) == self._identity else self._another
        return why

    @property
    def _another(self) -> str:
        return f"another server answers at {self._base_url} now"


def _identity(info: Mapping[str, Any]) -> dict[str, Any]:
    return {name: info.get(name) for name in _ITS_OWN}
