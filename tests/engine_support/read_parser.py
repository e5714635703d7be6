"""Prints the options of an SGLang release as its own parser holds them; runs under the engine's Python.

Releases older than the environment's transformers package are met half-way: they register model types that
transformers has learned since, which it refuses unless told that they may exist.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings

_ARITIES = {None: "one", 0: "none", "?": "optional", "*": "any", "+": "some"}


def options() -> list[dict[str, object]]:
    """One entry an option, in the parser's order."""
    from sglang.srt.server_args import ServerArgs  # noqa: PLC0415

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return [_entry(action) for action in parser._actions]


def _entry(action: argparse.Action) -> dict[str, object]:
    """Only what differs from an option that takes one str and defaults to None."""
    kind = type(action).__name__
    entry: dict[str, object] = {"dest": action.dest, "names": list(action.option_strings)}
    arity = "negatable" if kind == "BooleanOptionalAction" else _ARITIES[action.nargs]
    if arity != "one":
        entry["arity"] = arity
    reader = getattr(action.type, "__name__", "str")
    if reader != "str":
        entry["reads"] = reader
    if action.choices is not None:
        # Some are sets, whose order differs from one process to the next.
        is_set = isinstance(action.choices, set | frozenset)
        entry["choices"] = sorted(action.choices) if is_set else list(action.choices)
    if action.default not in (None, argparse.SUPPRESS):
        entry["default"] = action.default
    if kind not in {"BooleanOptionalAction", "DeprecatedAction"}:
        sets = getattr(action, "const_value", None) or action.const
        if sets is not None:
            entry["sets"] = sets
    if getattr(action, "new_flag", None):
        entry["now"] = action.new_flag
    if getattr(action, "error_message", None):
        entry["error"] = action.error_message
    return entry


def let_old_releases_register() -> None:
    from transformers import AutoConfig  # noqa: PLC0415

    register = AutoConfig.register

    def register_again(model_type: str, config: type, **_: object) -> None:
        register(model_type, config, exist_ok=True)

    AutoConfig.register = register_again


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    let_old_releases_register()
    json.dump(options(), sys.stdout)
