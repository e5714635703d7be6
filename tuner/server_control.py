"""Short questions to a server beside the load: is it ready, what is it, flush its cache."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import requests

from tuner.server_keys import NO_KEYS, ServerKeys

CONTROL_TIMEOUT_S = 30.0
MOST_ANSWER_BYTES = 2**26
"""What a server says of itself, or of a prompt's probabilities, is far shorter."""
_PART_BYTES = 2**16
_UNAUTHORIZED = (401, 403)
_MOST_COUNTED = 2**63


class KeyRefusedError(requests.HTTPError):
    """The server asks for a key that it was not given."""


class EndlessAnswerError(requests.RequestException):
    """More came than any answer of SGLang's has, or it did not end."""


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
    """body: sent as JSON. Certificates are checked as the load client checks them, by OpenSSL's own variable too.

    Raises requests.RequestException, also where an answer does not end: not within `timeout_s` of its beginning, or not
    within `MOST_ANSWER_BYTES`.
    """
    with requests.Session() as session:
        session.trust_env = False  # a proxy for the world outside is none for the server under test
        session.verify = os.environ.get("SSL_CERT_FILE") or True
        headers = keys.headers(urlsplit(url).path)
        with session.request(method, url, timeout=timeout_s, headers=headers, json=body, stream=True) as response:
            response._content = _whole(response, timeout_s)  # noqa: SLF001 - as the library itself keeps it
            return response


def _whole(response: requests.Response, limit_s: float) -> bytes:
    deadline_s = time.monotonic() + limit_s
    found = bytearray()
    for part in response.iter_content(_PART_BYTES):
        found += part
        if len(found) > MOST_ANSWER_BYTES:
            raise EndlessAnswerError(f"an answer of more than {MOST_ANSWER_BYTES >> 20} MiB")
        if time.monotonic() > deadline_s:
            raise EndlessAnswerError(f"an answer that had not ended after {limit_s:g} s")
    return bytes(found)


def said_count(info: Mapping[str, Any], name: str) -> int:
    """A count that the server says of itself; 0 where it says none, or what is none."""
    value = info.get(name)
    return value if type(value) is int and 0 < value < _MOST_COUNTED else 0
