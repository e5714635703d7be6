"""The keys that a server asks of its clients, and which question needs which.

SGLang 0.5.23 (utils/auth.py:74, decide_request_auth): `/health*`, `/ready*` and `/metrics*` need none; what steers
the server, such as `/flush_cache` (ADMIN_OPTIONAL, entrypoints/http_server.py:1026), needs --admin-api-key where there
is one, else --api-key; everything else needs --api-key where there is one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from search_spaces.errors import MalformedError
from tuner.secret_words import secrets_in

_OPEN = ("/health", "/ready", "/metrics")
_STEERING = ("/flush_cache", "/abort_request")
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})")


def checked_key(origin: str, key: str) -> str:
    """`key`, where a header can carry it to a server that then knows it: SGLang compares it with the header's text, in
    which bytes beyond ASCII are read as Latin-1. Raises MalformedError, which does not show it.
    """
    if key.isascii() and key.isprintable() and key == key.strip():
        return key
    raise MalformedError(
        f"{origin} holds a key that no request can carry: it is printable ASCII, without spaces or line ends around it"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerKeys:
    """Empty where the server asks for none."""

    api_key: str = field(default="", repr=False)
    admin_api_key: str = field(default="", repr=False)

    def headers(self, path: str) -> dict[str, str]:
        """What a question to `path` has to carry."""
        if path.startswith(_OPEN):
            return {}
        key = (self.admin_api_key or self.api_key) if path.startswith(_STEERING) else self.api_key
        return {"Authorization": f"Bearer {key}"} if key else {}


NO_KEYS = ServerKeys()


def keys_of(words: Sequence[str], env: Mapping[str, str] | None = None) -> ServerKeys:
    """From the words that start a server, the last one where they name a key twice.

    env: beside this process's own, for words that a shell expands (`bash -c '... --api-key $KEY'`).
    """
    known = {**os.environ, **(env or {})}
    keys = {"api": "", "admin": ""}
    for flag, value in secrets_in(words):
        name = flag.replace("_", "-")
        kind = "api" if "--api-key".startswith(name) else "admin" if "--admin-api-key".startswith(name) else ""
        if kind:
            expanded = _VARIABLE.fullmatch(value)
            keys[kind] = value if expanded is None else known.get(expanded[1] or expanded[2], value)
    return ServerKeys(api_key=keys["api"], admin_api_key=keys["admin"])
