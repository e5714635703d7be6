"""Errors of a full disk, as the system and SQLite raise them."""

from __future__ import annotations

import errno
import sqlite3

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from tuner.full_disk import is_of_a_full_disk


def test_the_system_s_word_for_it_is_known_also_beneath_another_error() -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    assert is_of_a_full_disk(full)
    above = RuntimeError("the commit failed")
    above.__cause__ = full
    assert is_of_a_full_disk(above)


def test_sqlite_s_word_for_it_is_known_beneath_its_layers() -> None:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        connection.execute(text("create table t (x)"))
        connection.execute(text("pragma max_page_count = 2"))  # a database that may not grow is a disk that is full
        with pytest.raises(OperationalError) as caught:
            connection.execute(text("insert into t values (zeroblob(100000))"))
    engine.dispose()
    assert is_of_a_full_disk(caught.value)


@pytest.mark.parametrize("error", [ValueError("no"), OSError(errno.EACCES, "no"), sqlite3.OperationalError("no table")])
def test_others_are_not(error: Exception) -> None:
    assert not is_of_a_full_disk(error)
