"""Which words on SGLang's command line are SGLang's at all.

The simulator acts on few of them and lets the others pass, as long as the real parser would.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files


class OptionError(ValueError):
    """What argparse would print of the words."""


def check_options(words: Sequence[str]) -> None:
    """Raises OptionError for words that the argument parser of sglang 0.5.23 would refuse."""
    known = _followed_by()
    strangers: list[str] = []
    rest = _Words(words)
    for word in rest:
        name, _, value = word.partition("=")
        option = _option(name, known) if name.startswith("--") else None
        if option is None:
            strangers.append(word)
            continue
        follows = known[option]
        if "=" in word:
            if follows == "switch":
                raise OptionError(f"argument {option}: ignored explicit argument {value!r}")
            continue
        if follows == "value" and not rest.skip_value():
            raise OptionError(f"argument {option}: expected one argument")
        if follows == "optional":
            rest.skip_value()
        while follows == "values" and rest.skip_value():
            pass
    if strangers:
        raise OptionError(f"unrecognized arguments: {' '.join(strangers)}")


class _Words(Iterator[str]):
    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._at = 0

    def __next__(self) -> str:
        if self._at == len(self._words):
            raise StopIteration
        self._at += 1
        return self._words[self._at - 1]

    def skip_value(self) -> bool:
        """Passes over the next word if it can be an option's value."""
        if self._at == len(self._words) or self._words[self._at].startswith("--"):
            return False
        self._at += 1
        return True


def _option(name: str, known: Mapping[str, str]) -> str | None:
    """The option that `name` spells out or, as argparse has it, begins; None where it is none."""
    if name in known:
        return name
    begun = [option for option in known if option.startswith(name)]
    if len(begun) > 1:
        raise OptionError(f"ambiguous option: {name} could match {', '.join(begun)}")
    return begun[0] if begun else None


@cache
def _followed_by() -> Mapping[str, str]:
    """Option to what follows it: `switch` (nothing), `value`, `values` or `optional` (a value or none)."""
    data = json.loads(files(__package__).joinpath("engine_options.json").read_text(encoding="utf-8"))
    kinds = ("switch", "value", "values", "optional")
    return {option: kind for kind in kinds for option in data[kind]}
