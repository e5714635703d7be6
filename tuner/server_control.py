"""Short questions to a server beside the load: is it ready, what is it, flush its cache."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import requests

from tuner.server_keys import NO_KEYS, ServerKeys

CONTROL_TIMEOUT_S = 30.0
_UNAUTHORIZED = (401, 403)


class KeyRefusedError(requests.HTTPError):
    """The server asks for a key that it was not given."""


def is_ready(base_url: str) -> bool:
    """`/ready` answers without generating; engines that lack it are asked for `/health`. Neither needs a key."""
    with contextlib.suppress(requests.RequestException):
        status = ask("GET", f"{base_url}/ready", timeout_s=5.0).status_code
        if status == 404:
            status = ask("GET", f"{base_url}/health").status_code
        return status == 200
    return False


def server_info(base_url: str, keys: ServerKeys = NO_KEYS, *, timeout_s: float = CONTROL_TIMEOUT_S) -> dict[str, Any]:
    """Raises requests.RequestException, also for an answer that is no JSON object; KeyRefusedError among them."""
    response = ask("GET", f"{base_url}/server_info", keys=keys, timeout_s=timeout_s)
    if response.status_code == 404:  # its name before SGLang 0.5.6 or so
        response = ask("GET", f"{base_url}/get_server_info", keys=keys, timeout_s=timeout_s)
    if response.status_code in _UNAUTHORIZED:
        known = "another key than ours" if keys.headers("/server_info") else "a key (--api-key) that is not known here"
        raise KeyRefusedError(f"HTTP {response.status_code}: the server asks for {known}", response=response)
    response.raise_for_status()
    parsed = response.json()
    if not isinstance(parsed, dict):
        raise requests.exceptions.InvalidJSONError(f"not an object: {str(parsed)[:80]}")
    return parsed


def flush_cache(base_url: str, keys: ServerKeys = NO_KEYS) -> bool:
    """No rung may profit from what the last one left in the prefix cache. Refused (False) while requests run."""
    with contextlib.suppress(requests.RequestException):
        return ask("POST", f"{base_url}/flush_cache", keys=keys).status_code == 200
    return False


def ask(
    method: str,
    url: str,
    *,
    timeout_s: float = CONTROL_TIMEOUT_S,
    keys: ServerKeys = NO_KEYS,
    body: Mapping[str, Any] | None = None,
) -> requests.Response:
    """body: sent as JSON. Certificates are checked as the load client checks them, by OpenSSL's own variable too."""
    with requests.Session() as session:
        session.trust_env = False  # a proxy for the world outside is none for the server under test
        session.verify = os.environ.get("SSL_CERT_FILE") or True
        headers = keys.headers(urlsplit(url).path)
        return session.request(method, url, timeout=timeout_s, headers=headers, json=body)
