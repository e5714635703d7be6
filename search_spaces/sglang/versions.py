"""Versions of the engine whose rules are known here."""

from __future__ import annotations

import re
from dataclasses import dataclass

from search_spaces.errors import MalformedError

_PATTERN = re.compile(r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})(?:\.post\d+|\+\S+)?")
_PREVIEW = re.compile(r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})[.-]?(?:a|b|rc|dev)\d*\S*")
_UNRELEASED = frozenset({"dev", "head", "latest", "main", "master", "nightly"})


@dataclass(frozen=True, slots=True, order=True)
class EngineVersion:
    """A release of SGLang, ordered by age."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"

    @classmethod
    def parse(cls, text: str) -> EngineVersion:
        """Reads `0.5.23`, `v0.5.23` or `0.5.23.post1`.

        Raises MalformedError where it cannot be read or lies outside what is known.
        """
        word = text.strip().lower()
        match = _PATTERN.fullmatch(word)
        preview = _PREVIEW.fullmatch(word)
        if match is None and preview is None and word not in _UNRELEASED:
            raise MalformedError(f"an engine version is written as {NEWEST} (got {text!r})")
        parts = match or preview
        version = cls(*map(int, parts.groups())) if parts is not None else NEWEST
        if match is not None and OLDEST <= version <= NEWEST:
            return version
        raise MalformedError(
            f"the rules of SGLang {text.strip()} are not known here; known: {OLDEST} to {NEWEST}, the nearest is "
            f"{min(max(version, OLDEST), NEWEST)}"
        )


OLDEST = EngineVersion(0, 5, 9)
NEWEST = EngineVersion(0, 5, 23)


def release_0_5(patch: int) -> EngineVersion:
    """0.5.`patch`."""
    return EngineVersion(0, 5, patch)
