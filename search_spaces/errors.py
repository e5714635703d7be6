"""What the user said that cannot be used: one small tree, each error one clear line.

UserError               the words themselves; the command line exits with 2
├── UnknownNameError    a name that is not in a closed list: the list is shown
├── MalformedError      a value that cannot be read: rule, value and an example are shown
├── UnsupportedError    read and understood, but nothing here can serve it: what is missing is said
└── CannotRunError      understood, but illegal or too large: the rule or the bytes; the exit code is 3
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """The user's words cannot be used as they are. The message is one line for the user."""


class UnknownNameError(UserError):
    """A name outside a closed list.

    `known` is shown in full, and the nearest of it is offered.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name.lower(), [n.lower() for n in names], n=1, cutoff=0.5)
        by_lower = {n.lower(): n for n in names}
        hint = f"; did you mean {by_lower[near[0]]}?" if near else ""
        super().__init__(
            f"unknown {kind} {name!r}{hint} Known: {', '.join(names)}"
            if hint
            else f"unknown {kind} {name!r}. Known: {', '.join(names)}"
        )


class MalformedError(UserError):
    """A value that cannot be read."""


class UnsupportedError(UserError):
    """Understood, but not servable here; the message says what is missing."""


class CannotRunError(UserError):
    """Understood, but the engine refuses it or it does not fit; the message says why, and what would do."""
