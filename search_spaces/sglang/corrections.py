"""Flags that the engine's parser refuses, put right where it is plain what was meant, and left out elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from search_spaces.errors import UnsupportedError
from search_spaces.sglang.flag_errors import FlagError, hyphened, is_flag, nearest_option, replacement, unglued
from search_spaces.sglang.flags import from_argv, to_argv
from search_spaces.sglang.foreign_flags import SWITCHES, TP_SIZE
from search_spaces.sglang.options import releases_with
from search_spaces.sglang.versions import EngineVersion

_MOST_MISTAKES = 64
_TP_NAMES = ("--tp-size", "--tensor-parallel-size", "--tp")


def corrected(words: Sequence[str], version: EngineVersion) -> tuple[str, ...] | None:
    """`words` as the parser takes them: every option and value that it refuses replaced by what was probably meant,
    and left to the engine where that is not plain.

    None where nothing is wrong with them.
    """
    now = tuple(words)
    for _ in range(_MOST_MISTAKES):
        try:
            from_argv(now, version)
        except FlagError as error:
            better = _one_better(now, error, version)
            if better == now:
                return ()
            now = better
        else:
            return None if now == tuple(words) else now
    return ()


def _one_better(words: tuple[str, ...], error: FlagError, version: EngineVersion) -> tuple[str, ...]:
    place = _place(words, error)
    if place is None:
        return words
    flag, _, joined = words[place].partition("=")
    end = _end(words, place)
    now: tuple[str, ...] = ()
    match error.rule:
        case "flag.unknown":
            now = _instead(words, place, end, version)
        case "flag.ambiguous":
            now = (error.nearest + words[place][len(flag) :], *words[place + 1 : end])
        case _ if error.nearest and joined:
            now = (f"{flag}={error.nearest}", *words[place + 1 : end])
        case _ if error.nearest:
            now = (flag, *(error.nearest if word == error.word else word for word in words[place + 1 : end]))
        case _ if words[place] == error.word and joined:
            now = (flag, *words[place + 1 : end])  # a switch that was given a value
    return (*words[:place], *now, *words[end:])


def _instead(words: tuple[str, ...], place: int, end: int, version: EngineVersion) -> tuple[str, ...]:
    """What an unknown flag with its values, or a stray word, was meant as; nothing where that is not plain."""
    word, values = words[place], words[place + 1 : end]
    name, equals, joined = word.partition("=")
    if not is_flag(word):
        return values  # a stray word, or a bare `--`
    if hyphened(word) != word:
        return (hyphened(word), *values)
    if parts := unglued(name, version):
        return (*parts, *values)
    if name in SWITCHES:
        meant = _switched(SWITCHES[name], words)
        return () if meant and _is_refused(meant, version) else meant
    if releases_with(name):
        return _in_words_of(version, words[place:end], name)
    near = nearest_option(name, version)
    return (f"{near}{equals}{joined}", *values) if near else ()


def _switched(meant: tuple[str, ...], words: Sequence[str]) -> tuple[str, ...]:
    if TP_SIZE not in meant:
        return meant
    for place, word in enumerate(words):
        name, equals, joined = word.partition("=")
        if name in _TP_NAMES:
            size = joined if equals else (words[place + 1] if place + 1 < len(words) else "")
            return tuple(size if each == TP_SIZE else each for each in meant) if size.isdigit() else ()
    return ()


def _in_words_of(version: EngineVersion, words: tuple[str, ...], name: str) -> tuple[str, ...]:
    """A flag of other releases, as the nearest of them reads it, in the words of `version`."""
    history = releases_with(name)
    newer = [release for release in history if release > version]
    try:
        parsed = from_argv(words, newer[0] if newer else max(history))
        layout_words = to_argv(parsed.layout, version)
    except (FlagError, UnsupportedError):
        return ()
    if not parsed.rest and layout_words and not _is_refused(layout_words, version):
        return layout_words
    now = replacement(name, version)
    renamed = (now + words[0][len(name) :], *words[1:])
    return renamed if now and not _is_refused(renamed, version) else ()


def _is_refused(words: Sequence[str], version: EngineVersion) -> bool:
    try:
        from_argv(words, version)
    except FlagError:
        return True
    return False


def _place(words: tuple[str, ...], error: FlagError) -> int | None:
    """Where the flag stands that cannot be read, itself or its value."""
    of_flag = [i for i, word in enumerate(words) if error.word in {word, word.partition("=")[0]}]
    if error.rule in {"flag.unknown", "flag.ambiguous"}:
        return _unclaimed(of_flag, error)
    flags = [i for i, word in enumerate(words) if is_flag(word)]
    written = error.engine_text.removeprefix("argument ").partition(":")[0].split("/")
    for i in flags:
        name, equals, joined = words[i].partition("=")
        if any(option.startswith(name) for option in written) and (
            words[i] == error.word or (joined == error.word if equals else error.word in words[i + 1 : _end(words, i)])
        ):
            return i
    return of_flag[0] if of_flag else None


def _unclaimed(places: list[int], error: FlagError) -> int | None:
    """Of equal words the one that nothing claims: a stray word may equal a flag's value."""
    if not places or is_flag(error.word):
        return places[0] if places else None
    return places[-1]


def _end(words: tuple[str, ...], place: int) -> int:
    end = place + 1
    while end < len(words) and not (is_flag(words[end]) and not words[end].lstrip("-").replace(".", "").isdigit()):
        end += 1
    return end
