"""An option's value as the engine reads it from a word: the same values accepted, the same texts where not.

The readers are those of sglang 0.5.23 (utils/common.py:3388, :3394, :4818, model_executor/cuda_graph_config.py:237);
the earlier releases read with them what they read at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from search_spaces.sglang.flag_errors import FlagError, nearest_choice
from search_spaces.sglang.options import Option

_SI = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_IEC = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_WITH_SUFFIX = re.compile(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)")

_NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight")

_SHORT_NAMES = {"moe_a2a_backend": "a2a", "moe_runner_backend": "runner"}
"""As in the ids of `search_spaces.sglang.rules_arguments`."""


class _RefusedError(Exception):
    """A reader's own text, where the engine gives one."""


def value_of(option: Option, text: str) -> Any:
    """Raises FlagError."""
    written = "/".join(option.names)
    try:
        value = _READERS.get(option.reads, str)(text)
    except _RefusedError as refused:
        raise FlagError(f"argument {written}: {refused}", word=text) from None
    except ValueError:
        raise FlagError(
            f"argument {written}: invalid {option.reads} value: {text!r}", word=text, nearest=_number_in(option, text)
        ) from None
    if option.choices is not None and value not in option.choices:
        listed = ", ".join(map(repr, option.choices))
        raise FlagError(
            f"argument {written}: invalid choice: {value!r} (choose from {listed})",
            rule=f"{_SHORT_NAMES.get(option.dest, option.dest)}.choice",
            word=text,
            nearest=nearest_choice(option, text),
        )
    return value


def _number_in(option: Option, text: str) -> str | None:
    """The number that was probably meant by `eight`, `8,` or `0,9`."""
    plain = text.strip().lower()
    if option.reads == "int":
        digits = re.fullmatch(r"(\d+)[,;.x]", plain)
        return digits[1] if digits else str(_NUMBER_WORDS.index(plain)) if plain in _NUMBER_WORDS else None
    comma = re.fullmatch(r"(\d*),(\d+)", plain) if option.reads == "float" else None
    return f"{comma[1] or 0}.{comma[2]}" if comma else None


def _human_readable_int(text: str) -> int:
    value = text.strip()
    match = _WITH_SUFFIX.fullmatch(value)
    if match is None:
        try:
            return int(value)
        except ValueError:
            raise _RefusedError(
                f"Invalid integer value: '{value}'. Use a plain integer, SI suffixes (1k, 1M), or IEC suffixes "
                "(1Ki, 1Mi). Suffixes are case-sensitive."
            ) from None
    number, suffix = match.groups()
    if suffix in _SI:
        return int(Decimal(number) * _SI[suffix])
    if "." in number:
        raise _RefusedError(
            f"Decimals are not allowed with IEC suffixes like '{suffix}'. Use an integer IEC value such as "
            f"'{int(Decimal(number))}{suffix}', or an SI value such as '{number}{suffix[0]}'."
        )
    return int(number) * _IEC[suffix]


def _nullable_str(text: str) -> str | None:
    return None if text in ("", "None") else text


def _json_list(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise _RefusedError(f"Invalid JSON list: {text}. Please provide a valid JSON list.") from None


def _graph_backend(text: str) -> str:
    if text == "tc_piecewise":
        raise _RefusedError("tc_piecewise was removed; select breakable, full, or disabled")
    return text


def _graph_config(text: str) -> Any:
    option = "--cuda-graph-config"
    try:
        config = json.loads(text)
    except ValueError as error:
        raise _RefusedError(f"{option} must be JSON: {error}") from None
    if not isinstance(config, dict):
        raise _RefusedError(f"{option} must be a JSON object, got {type(config).__name__}")
    for phase, settings in config.items():
        if phase not in ("decode", "prefill"):
            raise _RefusedError(f"{option}: unknown phase '{phase}', expected one of ('decode', 'prefill')")
        if not isinstance(settings, dict):
            raise _RefusedError(f"{option}['{phase}'] must be a JSON object, got {type(settings).__name__}")
    return config


_READERS: dict[str, Callable[[str], Any]] = {
    "float": float,
    "human_readable_int": _human_readable_int,
    "int": int,
    "json_list_type": _json_list,
    "loads": json.loads,
    "nullable_str": _nullable_str,
    "parse_cuda_graph_backend_arg": _graph_backend,
    "parse_cuda_graph_config_arg": _graph_config,
    "str": str,
}
