"""Versions of the engine whose rules are known here."""

from __future__ import annotations

import re
from dataclasses import dataclass

from search_spaces.errors import MalformedError

_PATTERN = re.compile(r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})(?:\.post\d+|\+\S+)?")


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
        match = _PATTERN.fullmatch(text.strip())
        if match is None:
            raise MalformedError(f"an engine version is written as {NEWEST} (got {text!r})")
        version = cls(*map(int, match.groups()))
        if not OLDEST <= version <= NEWEST:
            raise MalformedError(f"the rules of SGLang {version} are not known here; known: {OLDEST} to {NEWEST}")
        return version


OLDEST = EngineVersion(0, 5, 9)
NEWEST = EngineVersion(0, 5, 23)


def release_0_5(patch: int) -> EngineVersion:
    """0.5.`patch`."""
    return EngineVersion(0, 5, patch)
