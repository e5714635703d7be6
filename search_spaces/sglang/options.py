"""Every command-line option of every release of the engine, as its own parser holds them (options.json).

The table was asked of the releases themselves (tests/engine_support/options_table.py); it is read when the
first launch is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any

from search_spaces.sglang.versions import EngineVersion


class Arity(StrEnum):
    """How many values follow an option."""

    NONE = "none"
    ONE = "one"
    OPTIONAL = "optional"
    ANY = "any"
    SOME = "some"
    NEGATABLE = "negatable"
    """None; the last of the names, `--no-...`, means False."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of one or more releases.

    dest: the engine's name for what it sets.
    names: how it can be written, as the engine lists them.
    reads: the engine's name of the function that reads a value.
    sets: the value of an option that none is written for, or whose written one does not matter; None where it
        sets nothing.
    now: the newer flag that the engine names in its deprecation warning.
    error: what the engine prints where the option only remains to say that it is gone.
    """

    dest: str
    names: tuple[str, ...]
    arity: Arity = Arity.ONE
    reads: str = "str"
    choices: tuple[str | int, ...] | None = None
    default: Any = None
    sets: Any = None
    now: str = ""
    error: str = ""

    @property
    def is_list(self) -> bool:
        return self.arity in (Arity.ANY, Arity.SOME)

    @property
    def is_switch(self) -> bool:
        return self.arity in (Arity.NONE, Arity.NEGATABLE)


@cache
def options_of(version: EngineVersion) -> Mapping[str, Option]:
    """By every name an option has in `version`, in the parser's order."""
    options, releases = _table()
    return {name: options[number] for number in releases[version] for name in options[number].names}


@cache
def option_setting(dest: str, version: EngineVersion) -> Option | None:
    """The option that sets `dest`; where a deprecated one does too, not that one."""
    setting = [option for option in options_of(version).values() if option.dest == dest]
    return min(setting, key=lambda option: bool(option.now), default=None)


@cache
def choices_of(dest: str, version: EngineVersion) -> tuple[str, ...]:
    """The words that the option which sets `dest` accepts; empty where it has no closed list."""
    option = option_setting(dest, version)
    return tuple(map(str, option.choices)) if option is not None and option.choices is not None else ()


@cache
def releases_with(name: str) -> Mapping[EngineVersion, Option]:
    """The releases that know an option of this name, oldest first."""
    return {version: options_of(version)[name] for version in _table()[1] if name in options_of(version)}


@cache
def _table() -> tuple[tuple[Option, ...], Mapping[EngineVersion, tuple[int, ...]]]:
    raw = json.loads((files("search_spaces.sglang") / "options.json").read_text(encoding="utf-8"))
    options = tuple(_option(entry) for entry in raw["options"])
    return options, {EngineVersion.parse(release): tuple(has) for release, has in raw["releases"].items()}


def _option(entry: dict[str, Any]) -> Option:
    fixed: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
    fixed["arity"] = Arity(entry.get("arity", Arity.ONE))
    return Option(**fixed)
