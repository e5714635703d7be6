"""Whether what answers at an address is SGLang, in the words of its own `/server_info`, and why not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from textwrap import shorten
from typing import Any

import requests

from search_spaces.errors import UserError
from tuner.server_control import EndlessAnswerError, KeyRefusedError, ask, said_count, server_info
from tuner.server_keys import ServerKeys

_ASK_TIMEOUT_S = 10.0
_COUNTS = ("tp_size", "pp_size", "ep_size", "dp_size", "max_total_num_tokens")


def sglang_info(base_url: str, keys: ServerKeys) -> dict[str, Any]:
    """Raises UserError where nothing answers, or something else, or without that key."""
    try:
        info = server_info(base_url, keys)
    except requests.exceptions.SSLError as error:
        if "WRONG_VERSION_NUMBER" in str(error):
            raise UserError(f"{base_url} speaks no TLS: give its address with http://") from None
        raise UserError(
            f"the certificate of {base_url} is not trusted: {reason_of(error)}; "
            "SSL_CERT_FILE names certificates to trust"
        ) from None
    except KeyRefusedError as error:
        raise UserError(f"{base_url}: {error}; --api-key-env names the variable that holds it") from None
    except requests.HTTPError as error:
        raise UserError(_no_sglang(base_url, keys, str(error))) from None
    except requests.exceptions.InvalidJSONError:
        raise UserError(_no_sglang(base_url, keys, "/server_info is no JSON object")) from None
    except EndlessAnswerError as error:
        raise UserError(f"what answers at {base_url} is no SGLang server: its /server_info is {error}") from None
    except requests.RequestException as error:
        raise UserError(f"nothing answers at {base_url}: {reason_of(error)}") from None
    if why := _unlike_sglang(info):
        raise UserError(_no_sglang(base_url, keys, f"/server_info {why}"))
    return info


def _unlike_sglang(info: Mapping[str, Any]) -> str:
    """What an SGLang server would not say of itself; empty where there is nothing."""
    if "tp_size" not in info or "model_path" not in info:
        return "names no tp_size"
    for name in _COUNTS:
        if info.get(name) is not None and not said_count(info, name):
            return f"says {name} {shorten(repr(info[name]), 40)}"
    return ""


def reason_of(error: requests.RequestException) -> str:
    """The innermost reason, without the layers of HTTP libraries around it."""
    reason: BaseException = error
    while (inner := getattr(reason, "reason", None) or next(iter(reason.args), None)) is not None:
        if not isinstance(inner, BaseException):
            break
        reason = inner
    found = re.search(r"\[Errno -?\d+\] ([^'\")]+)|(certificate verify failed: [^(]+)|timed out", str(reason))
    return shorten(next(filter(None, found.groups()), found[0]).strip() if found else str(reason), 120)


def _no_sglang(base_url: str, keys: ServerKeys, why: str) -> str:
    """/version is vLLM's alone (SGLang says its version in /server_info)."""
    try:
        version = ask("GET", f"{base_url}/version", keys=keys, timeout_s=_ASK_TIMEOUT_S).json()["version"]
    except (requests.RequestException, ValueError, KeyError, TypeError):
        return f"what answers at {base_url} is no SGLang server: {why}"
    return (
        f"what answers at {base_url} is no SGLang server but vLLM {version}, by its /version: only SGLang is measured"
    )
