"""Flags that the engine's own parser refuses, said in its words and with what was probably meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from search_spaces.errors import MalformedError
from search_spaces.layout import Layout
from search_spaces.sglang.foreign_flags import BEFORE, OTHER_ENGINES, OTHER_WORDS, SWITCHES
from search_spaces.sglang.options import Option, options_of, releases_with
from search_spaces.sglang.versions import NEWEST, OLDEST, EngineVersion, release_0_5
from search_spaces.verdict import Stage, Violation

_SIMILAR = 0.75

_OTHER_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
"""What chats and word processors make of two hyphens: hyphens, dashes and the minus sign."""

_DASHED = re.compile(rf"-?[{_OTHER_DASHES}][-{_OTHER_DASHES}]*(?=[A-Za-z])")
_GLUED = re.compile(r"(--[A-Za-z][A-Za-z0-9_-]*?)(\d+(?:\.\d+)?|\.\d+)")


class FlagError(MalformedError):
    """Flags that the engine's own argument parser refuses too, with exit code 2.

    engine_text: what the engine prints after `error:`.
    rule: which of the parser's rules it is, as the rules of `search_spaces.sglang.rules` are named.
    word: the word that cannot be read, as it was given. nearest: what was probably meant in its place, a flag or
        a value; empty where nothing is near.
    hint: the same in words; may be empty.
    """

    def __init__(
        self,
        engine_text: str,
        *,
        rule: str = "flag.value",
        word: str = "",
        nearest: str | None = None,
        hint: str = "",
    ) -> None:
        self.engine_text = engine_text
        self.rule = rule
        self.word = word
        self.nearest = nearest or ""
        self.hint = hint or (f"did you mean {nearest}?" if nearest else "")
        super().__init__(f"SGLang cannot read these flags: {self._line}")

    @property
    def _line(self) -> str:
        return f"{self.engine_text}; {self.hint}" if self.hint else self.engine_text

    @property
    def violation(self) -> Violation:
        """The refusal as one of a verdict's."""
        return Violation(
            rule=self.rule,
            stage=Stage.PARSE,
            message=self._line,
            source="server_args.py (prepare_server_args)",
            exception="SystemExit(2)",
            engine_text=self.engine_text,
        )


def unrecognized(words: Sequence[str], version: EngineVersion) -> FlagError:
    """For what is left when every known option has been read."""
    names = [word.partition("=")[0] for word in words if is_flag(word)]
    engine_text = f"unrecognized arguments: {' '.join(words)}"
    if "--" in words:
        hint = "a bare -- ends the flags: leave it out"
        return FlagError(engine_text, rule="flag.unknown", word="--", hint=hint)
    return FlagError(
        engine_text,
        rule="flag.unknown",
        word=names[0] if names else words[0],
        nearest=_instead_of(names[0], version) if names else None,
        hint="; ".join(_hint(name, version) for name in names),
    )


def is_flag(word: str) -> bool:
    """Whether `word` was meant as a flag, whatever dashes it begins with."""
    return (word.startswith("-") and word.strip("-") != "") or _DASHED.match(word) is not None


def hyphened(word: str) -> str:
    """`word` with the hyphens that a flag begins with, where it begins with other dashes."""
    return _DASHED.sub("--", word, count=1) if _DASHED.match(word) else word


def unglued(word: str, version: EngineVersion) -> tuple[str, str] | None:
    """`--tp8` as `--tp` and `8`; None where `word` is no option with a number behind it."""
    parts = _GLUED.fullmatch(word)
    if parts is None:
        return None
    known = options_of(version)
    begun = {option.dest for name, option in known.items() if name.startswith(parts[1])}
    is_known = parts[1] in known or len(begun) == 1
    return (parts[1], parts[2]) if is_known else None


def ambiguous(word: str, begun: Sequence[str], version: EngineVersion) -> FlagError:
    """For the beginning of several options."""
    name = word.partition("=")[0]
    about_layout = [option for option in begun if options_of(version)[option].dest in Layout.__dataclass_fields__]
    nearest = replacement(name, version) or (about_layout or begun)[0]
    return FlagError(
        f"ambiguous option: {word} could match {', '.join(begun)}",
        rule="flag.ambiguous",
        word=name,
        nearest=nearest,
        hint=_in_other_releases(name, version) if releases_with(name) else f"write {nearest} in full",
    )


def nearest_option(name: str, version: EngineVersion = NEWEST) -> str | None:
    """The option that was probably meant by a name that `version` does not know; None where none is near."""
    dashed = f"--{name.lstrip('-').replace('_', '-').lower()}"
    known = options_of(version)
    if dashed in known:
        return dashed
    here = OTHER_ENGINES.get(dashed)
    if here in known:
        return here
    begun = [option for option in known if option.startswith(dashed)]
    return begun[0] if len(begun) == 1 else nearest_of(dashed, known)


def nearest_of(word: str, known: Iterable[str]) -> str | None:
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=_SIMILAR)
    return near[0] if near else None


def nearest_choice(option: Option, word: str) -> str | None:
    """The word of an option's closed list that was probably meant by one outside it."""
    choices = [str(choice) for choice in option.choices or ()]
    plain = word.lower().replace("-", "_")
    here = OTHER_WORDS.get((option.dest, plain))
    if here in choices:
        return here
    begun = [choice for choice in choices if plain and choice.startswith(plain)]
    return begun[0] if len(begun) == 1 else nearest_of(word.lower(), choices)


def replacement(name: str, version: EngineVersion = NEWEST) -> str:
    """The flag that the engine, while it still knew `name`, said to write; empty where `version` has none."""
    said = [option.now for option in releases_with(name).values() if option.now]
    now = said[-1].partition("=")[0].split()[0] if said else ""
    return now if now in options_of(version) else ""


def _instead_of(name: str, version: EngineVersion) -> str | None:
    meant = _meant(name, version)
    if meant:
        return meant[0]
    return replacement(name, version) or (None if releases_with(name) else nearest_option(name, version))


def _meant(name: str, version: EngineVersion) -> tuple[str, ...]:
    """Words for what is known to stand for something else here; none where nothing is."""
    if name in BEFORE and releases_with(name) and version < min(releases_with(name)):
        return BEFORE[name]
    if name in SWITCHES:
        return SWITCHES[name]
    plain = hyphened(name)
    if plain != name:
        return (plain,)
    return unglued(name, version) or ()


def _hint(name: str, version: EngineVersion) -> str:
    if releases_with(name):
        return _in_other_releases(name, version)
    meant = _meant(name, version)
    if meant:
        return f"did you mean {' '.join(meant)} (for {name})?"
    near = nearest_option(name, version)
    if near:
        return f"did you mean {near} (for {name})?"
    return f"no release from {OLDEST} to {NEWEST} knows {name}"


def _in_other_releases(name: str, version: EngineVersion) -> str:
    history = releases_with(name)
    newer = [release for release in history if release > version]
    if newer:
        here = f", before it was {' '.join(BEFORE[name])}" if name in BEFORE else ""
        return f"SGLang {version} has no {name}: known since {newer[0]}{here}"
    now = [option.now for option in history.values() if option.now]
    return f"{name} was removed in {release_0_5(max(history).patch + 1)}{f': now {now[-1]}' if now else ''}"
