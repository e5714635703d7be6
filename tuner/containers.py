"""What a container's command line says of the server inside: the release of its image, and the GPUs it is given."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from search_spaces.errors import MalformedError
from search_spaces.sglang.versions import EngineVersion

PROGRAMS = frozenset({"docker", "podman", "nerdctl"})
_IMAGE = re.compile(r"(?:[\w.:-]+/)*sglang[\w-]*:(?P<tag>[\w][\w.-]*)")
_RELEASE = re.compile(r"v?\d+\.\d+\.\d+(?:\.post\d+|\.?rc\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """image: of SGLang, with its tag; empty where none is named. num_gpus: None where all or nothing is said."""

    image: str = ""
    num_gpus: int | None = None

    @property
    def version(self) -> EngineVersion | None:
        """The release that the image's tag names; None where it names none (`latest`, `dev`).

        Raises MalformedError for a release whose rules are not known.
        """
        found = _RELEASE.match(self.image.rpartition(":")[2])
        if found is None:
            return None
        try:
            return EngineVersion.parse(found[0])
        except MalformedError as error:
            raise MalformedError(f"{self.image}: {error}; --engine-version says otherwise") from None


def container_of(words: Sequence[str]) -> Container:
    """From the words before the server's own; an empty one where they start no container."""
    if not any(Path(word).name in PROGRAMS for word in words):
        return Container()
    image = next((word for word in words if _IMAGE.fullmatch(word)), "")
    return Container(image=image, num_gpus=_num_gpus(words))


def _num_gpus(words: Sequence[str]) -> int | None:
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == "--gpus":
            given = value if equals else (words[place + 1] if place + 1 < len(words) else "")
            listed = re.fullmatch(r"['\"]*device=([^'\"]+)['\"]*", given)
            if listed:
                return len(listed[1].split(","))
            return int(given) if given.isdigit() else None
    return None
