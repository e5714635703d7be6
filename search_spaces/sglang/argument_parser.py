"""A launch's words as the engine's argparse takes them apart (Python 3.11's, with abbreviations allowed).

`--flag value`, `--flag=value`, unique beginnings of a flag, and the same refusals in the same order: first what
is ambiguous, then values, then what nothing claimed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from search_spaces.sglang.flag_errors import FlagError, ambiguous, unrecognized
from search_spaces.sglang.option_values import value_of
from search_spaces.sglang.options import Arity, Option, options_of
from search_spaces.sglang.versions import EngineVersion

_NUMBER = re.compile(r"-\d+|-\d*\.\d+")

_EXPECTED = {
    Arity.ONE: "expected one argument",
    Arity.SOME: "expected at least one argument",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention:
    """One option as it stands in a launch.

    value: as the engine would store it; None where the option sets nothing.
    words: the words it was made of, verbatim.
    """

    option: Option
    value: Any
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Word:
    """option: None for a flag that nobody knows. joined: what stands behind an equals sign."""

    option: Option | None
    name: str
    joined: str | None


def mentions(words: Sequence[str], version: EngineVersion) -> tuple[Mention, ...]:
    """Every option in `words`, in order.

    Raises FlagError.
    """
    known = options_of(version)
    flags = _flags(words, known, version)
    found: list[Mention] = []
    unclaimed: list[str] = []
    position = 0
    while position < len(words):
        flag = flags.get(position)
        if flag is None or flag.option is None:
            unclaimed.append(words[position])
            position += 1
            continue
        following = _following(words, flags, position + 1)
        found.append(_mention(flag.option, flag, words[position], following))
        position += len(found[-1].words)
    if unclaimed:
        raise unrecognized(unclaimed, version)
    return tuple(found)


def is_value(word: str) -> bool:
    """Whether `word`, standing on its own, is a value to argparse and no flag."""
    return not word.startswith("-") or word == "-" or _NUMBER.fullmatch(word) is not None or " " in word


def _flags(words: Sequence[str], known: Mapping[str, Option], version: EngineVersion) -> dict[int, _Word]:
    """The words that argparse takes for flags, by place; after a bare `--` there are none."""
    found: dict[int, _Word] = {}
    for position, word in enumerate(words):
        if word == "--":
            break
        flag = _flag(word, known, version)
        if flag is not None:
            found[position] = flag
    return found


def _flag(word: str, known: Mapping[str, Option], version: EngineVersion) -> _Word | None:
    if not word.startswith("-") or word == "-":
        return None
    if word in known:
        return _Word(known[word], word, None)
    name, equals, value = word.partition("=")
    joined = value if equals else None
    if joined is not None and name in known:
        return _Word(known[name], name, joined)
    if name.startswith("--"):
        begun = [option for option in known if option.startswith(name)]
        if len(begun) > 1:
            raise ambiguous(word, begun, version)
        if begun:
            return _Word(known[begun[0]], begun[0], joined)
    if _NUMBER.fullmatch(word) or " " in word:
        return None
    return _Word(None, name, joined)


def _following(words: Sequence[str], flags: Mapping[int, _Word], start: int) -> Sequence[str]:
    end = start
    while end < len(words) and end not in flags and words[end] != "--":
        end += 1
    return words[start:end]


def _mention(option: Option, flag: _Word, word: str, following: Sequence[str]) -> Mention:
    written = "/".join(option.names)
    if option.is_switch:
        if flag.joined is not None:
            raise FlagError(f"argument {written}: ignored explicit argument {flag.joined!r}", word=word)
        if option.error:
            raise FlagError(option.error, rule="flag.removed", word=word)
        if option.arity is Arity.NEGATABLE:
            return Mention(option=option, value=flag.name != option.names[-1], words=(word,))
        return Mention(option=option, value=option.sets, words=(word,))
    taken = following if option.is_list else following[:1]
    words = (word, *taken)
    if flag.joined is not None:
        taken, words = (flag.joined,), (word,)
    if not taken and option.arity in _EXPECTED:
        raise FlagError(f"argument {written}: {_EXPECTED[option.arity]}", word=word)
    values = tuple(value_of(option, text) for text in taken)
    if option.is_list:
        return Mention(option=option, value=values, words=words)
    has_own = bool(values) and (option.sets is None or option.arity is Arity.OPTIONAL)
    return Mention(option=option, value=values[0] if has_own else option.sets, words=words)
