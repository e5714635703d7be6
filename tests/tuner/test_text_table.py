from __future__ import annotations

from tuner.text_table import Column, table_lines

NAMES = Column(title="name", cells=["a", "bcd"], is_number=False)
SIZES = Column(title="size", cells=["1", "1,000"], priority=1)
NOTES = Column(title="note", cells=["", "x"], is_number=False, priority=2)


def test_words_stand_left_and_numbers_right() -> None:
    assert table_lines([NAMES, SIZES, NOTES], 80) == ["name   size  note", "a         1", "bcd   1,000  x"]


def test_the_least_needed_columns_go_first_where_the_width_is_small() -> None:
    assert table_lines([NAMES, SIZES, NOTES], 12)[0] == "name   size"
    assert table_lines([NAMES, SIZES, NOTES], 5)[0] == "name"


def test_what_must_stay_stays() -> None:
    assert table_lines([NAMES], 1) == ["name", "a", "bcd"]


def test_empty_columns_are_left_out() -> None:
    assert table_lines([NAMES, Column(title="note", cells=["", ""])], 80)[0] == "name"
    assert table_lines([Column(title="note", cells=[])], 80) == []
