"""What the user said that cannot be used: one small tree, each error one clear line.

UserError               the words themselves; the command line exits with 2
├── UnknownNameError    a name that is not in a closed list: the list is shown, or what of it is near
├── MalformedError      a value that cannot be read: rule, value and an example are shown
├── UnsupportedError    read and understood, but nothing here can serve it: what is missing is said
└── CannotRunError      understood, but illegal or too large: the rule or the bytes; the exit code is 3
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

_SHORT_LIST = 40
_MOST_OFFERED = 12


class UserError(ValueError):
    """The user's words cannot be used as they are. The message is one line for the user."""


class UnknownNameError(UserError):
    """A name outside a closed list.

    The nearest of `known` is offered, or all that begin with the name. A short list is shown in full; of a long one
    what is near, or the families that its names belong to.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = _near(name, names)
        is_plain = len(near) == 1 or (bool(near) and not _begins(near[0], name))
        if is_plain:
            hint = f"; did you mean {near[0]}?"
        else:
            more = ", ..." if len(near) > _MOST_OFFERED else ""
            hint = f"; did you mean one of {', '.join(near[:_MOST_OFFERED])}{more}?" if near else ""
        if len(names) <= _SHORT_LIST:
            told = f"Known: {', '.join(names)}"
        elif near:
            others = [each for each in near[1:] if is_plain]
            told = f"Near it: {', '.join(others)}" if others else f"{len(names)} are known"
        else:
            families = sorted({re.split(r"[-_.\d]", each, maxsplit=1)[0] for each in names})
            told = f"{len(names)} are known, of {', '.join(families)}"
        super().__init__(f"unknown {kind} {name!r}{hint or '.'} {told}")


def _near(name: str, names: Sequence[str]) -> list[str]:
    """The names that begin with `name`; where none does, those that are spelled like it, nearest first."""
    by_lower = {each.lower(): each for each in names}
    spelled = difflib.get_close_matches(name.lower(), by_lower, n=4, cutoff=0.5)
    return [each for each in names if _begins(each, name)] or [by_lower[each] for each in spelled]


def _begins(full: str, name: str) -> bool:
    squeezed = _squeezed(name)
    return bool(squeezed) and _squeezed(full).startswith(squeezed)


def _squeezed(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


class MalformedError(UserError):
    """A value that cannot be read."""


class UnsupportedError(UserError):
    """Understood, but not servable here; the message says what is missing."""


class CannotRunError(UserError):
    """Understood, but the engine refuses it or it does not fit; the message says why, and what would do."""
