from __future__ import annotations

import io

from rich.table import Table

from tuner.voice import Voice


def spoken(mark: str = "[simulated] ") -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    voice = Voice(mark=mark, out=out, err=err)
    table = Table(title="t")
    table.add_column("a")
    table.add_row("[not markup] 1")
    voice.result(table, "a long command " * 40)
    voice.say("one\ntwo [x]")
    return out.getvalue(), err.getvalue()


def test_every_line_carries_the_mark() -> None:
    for text in spoken():
        assert text
        assert all(line.startswith("[simulated] ") for line in text.splitlines())


def test_without_a_mark_nothing_is_added() -> None:
    assert spoken("")[1] == "one\ntwo [x]\n"


def test_plain_words_are_never_folded_and_square_brackets_survive() -> None:
    out, err = spoken()
    assert f"[simulated] {'a long command ' * 40}".strip() in out
    assert "[x]" in err
