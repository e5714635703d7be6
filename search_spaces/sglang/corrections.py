"""Flags that the engine's parser refuses, put right where it is plain what was meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from search_spaces.sglang.flag_errors import FlagError, nearest_option
from search_spaces.sglang.flags import from_argv
from search_spaces.sglang.options import options_of
from search_spaces.sglang.versions import EngineVersion

_MOST_MISTAKES = 8
_CHOICE = re.compile(r"argument (?P<names>\S+): invalid choice: '(?P<word>[^']*)' \(choose from (?P<choices>.*)\)")
_AMBIGUOUS = re.compile(r"ambiguous option: (?P<word>\S+?)(?:=\S*)? could match (?P<options>.*)")


def corrected(words: Sequence[str], version: EngineVersion) -> tuple[str, ...] | None:
    """`words` with every misspelt, ambiguous or unknown option and choice replaced by the nearest known one.

    None where one has none near it, or where nothing is wrong with them.
    """
    now = tuple(words)
    for _ in range(_MOST_MISTAKES):
        try:
            from_argv(now, version)
        except FlagError as error:
            better = _one_better(now, error, version)
            if better is None or better == now:
                return None
            now = better
        else:
            return None if now == tuple(words) else now
    return None


def _one_better(words: tuple[str, ...], error: FlagError, version: EngineVersion) -> tuple[str, ...] | None:
    if choice := _CHOICE.match(error.engine_text):
        known = re.findall(r"[^\s,']+", choice["choices"])
        near = difflib.get_close_matches(choice["word"].lower(), known, n=1, cutoff=0.5)
        return _replaced(words, choice["word"], near[0]) if near else None
    if ambiguous := _AMBIGUOUS.match(error.engine_text):
        options = ambiguous["options"].replace(",", " ").split()
        size = f"{ambiguous['word']}-size"
        return _replaced(words, ambiguous["word"], size if size in options else options[0])
    known_options = options_of(version)
    for word in words:
        name = word.partition("=")[0]
        if name.startswith("-") and name not in known_options and name in error.engine_text:
            near_option = nearest_option(name, version)
            return _replaced(words, name, near_option) if near_option else None
    return None


def _replaced(words: tuple[str, ...], old: str, new: str) -> tuple[str, ...]:
    """The first `old`, as a word of its own or before or behind an equals sign."""
    found = list(words)
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if old in {word, name}:
            found[place] = new + equals + value
            break
        if equals and value == old:
            found[place] = f"{name}={new}"
            break
    return tuple(found)
