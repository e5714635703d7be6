"""Whether what failed did so for want of room on a disk."""

from __future__ import annotations

import errno
import sqlite3

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_SQLITE_FULL = ("SQLITE_FULL", "SQLITE_IOERR")
"""SQLite says the one where it has to write more of the database, the other (of a write, of its shared memory) where it
has to write more of its log (sqlite.org/rescode.html). A disk that fails otherwise is as good as full to a study."""


def is_of_a_full_disk(error: BaseException) -> bool:
    """Looks at what `error` was raised from too: databases and their layers have errors of their own."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        if isinstance(each, OSError) and each.errno in _FULL:
            return True
        if isinstance(each, sqlite3.Error) and getattr(each, "sqlite_errorname", "").startswith(_SQLITE_FULL):
            return True
        each = each.__cause__ or each.__context__
    return False
