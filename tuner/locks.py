"""What keeps two tuners on one host out of each other's way."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from search_spaces.errors import UserError
from tuner.request import Request

_SQLITE = "sqlite:///"


@contextlib.contextmanager
def only_one(request: Request) -> Iterator[None]:
    """Two tuners on one study would settle each other's trials.

    The lock goes with the storage, not with the folder that a tuner runs in, and holds on one host. Raises
    UserError when it is held.
    """
    with _lock_file(request.storage_url, f"study {request.study}") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            raise UserError(
                f"study {request.study!r} is being run by process {holder}; wait for it, or name another with --study"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


@contextlib.contextmanager
def while_stores_open(request: Request) -> Iterator[None]:
    """New stores are laid out by one tuner at a time: neither Optuna nor MLflow expects company then."""
    with _lock_file(request.storage_url, "opening") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _lock_file(url: str, name: str) -> IO[str]:
    """Beside the database where it is a file, else in the host's folder for temporary files."""
    is_file = url.startswith(_SQLITE)
    where = str(Path(url.removeprefix(_SQLITE)).absolute()) if is_file else url
    mark = hashlib.sha256(f"{where} {name}".encode()).hexdigest()[:16]
    folder = Path(where).parent if is_file else Path(tempfile.gettempdir())
    path = folder / f".layout-tune-{mark}.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return path.open("a+", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}") from None
