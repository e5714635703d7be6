"""Words of a launch whose values only the running script knows: what may be left out, and what must be said."""

from __future__ import annotations

import re
from collections.abc import Sequence

from search_spaces.errors import MalformedError
from search_spaces.layout import Layout
from search_spaces.sglang.options import options_of
from search_spaces.sglang.versions import NEWEST
from tuner.shell_script import mark, shown, unknown_in, why_unknown

_VARIABLE_ALONE = re.compile(r"(--[\w-]+=)?(\$\{?[A-Za-z_]\w*\}?)")


def with_marks(words: Sequence[str]) -> tuple[str, ...]:
    """`words` as typed, with a variable that no shell has expanded (`--tp '$TP'`) marked as not known."""
    return tuple(
        _VARIABLE_ALONE.sub(lambda m: (m[1] or "") + mark(m[2]), w) if _VARIABLE_ALONE.fullmatch(w) else w
        for w in words
    )


def known_words(words: Sequence[str]) -> tuple[str, ...]:
    """`words` without the options whose values only the running script knows: host, port, rank, names.

    Raises MalformedError where such a value may hold flags, or decides something.
    """
    kept: list[str] = []
    for word in words:
        variable = unknown_in(word)
        if variable is None:
            kept.append(word)
            continue
        alone = not word.startswith("--")
        option = kept.pop() if alone and kept and _awaits_value(kept[-1]) else "" if alone else word.partition("=")[0]
        if not option:
            raise MalformedError(f"{variable} {why_unknown(word)}, and may hold flags: write what it stands for")
        if _decides(option):
            raise MalformedError(f"{option} is {shown(word)}, and {variable} {why_unknown(word)}: write its value")
    return tuple(kept)


def _awaits_value(word: str) -> bool:
    return word.startswith("--") and "=" not in word


def _decides(option: str) -> bool:
    """Whether an option's value has a say in the verdict: a layout's own, in full or begun."""
    known = options_of(NEWEST)
    dests = {named.dest for name, named in known.items() if name == option or name.startswith(option)}
    return not dests.isdisjoint(vars(Layout()))
