"""Lines of the report."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tuner.report_text import space_line


def searched(refused: dict[str, int]) -> Any:
    space = SimpleNamespace(refused=refused, considered=9, candidates=("a", "b", "c"))
    return SimpleNamespace(space=space, does_not_fit=("a",))


def test_rules_that_refused_combinations_are_told_most_first_and_not_where_there_are_none() -> None:
    told = space_line(searched({"one": 1, "two": 2}))
    assert told.endswith("; 1 layouts do not fit in memory; combinations refused by rule: two 2, one 1")
    assert space_line(searched({})).endswith("3 layouts with their memory fractions; 1 layouts do not fit in memory")
