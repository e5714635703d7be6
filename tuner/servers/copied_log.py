"""A server's output on its way into a file here."""

from __future__ import annotations

import contextlib
import threading
from io import BufferedReader
from pathlib import Path

_CHUNK_BYTES = 1 << 16
_END_LIMIT_S = 10.0


class CopiedLog:
    """Copies until its source ends. What a full disk does not take is dropped: a server whose output nobody reads
    stands still, and one whose output is closed dies of it.
    """

    def __init__(self, source: BufferedReader, path: Path) -> None:
        self._source = source
        self._thread = threading.Thread(target=self._copy, args=(path,), name=f"log {path}", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until all is copied, once the server has ended."""
        self._thread.join(_END_LIMIT_S)

    def _copy(self, path: Path) -> None:
        with self._source, path.open("ab", buffering=0) as log:
            while chunk := self._source.read1(_CHUNK_BYTES):
                with contextlib.suppress(OSError):
                    while chunk:
                        chunk = chunk[log.write(chunk) :]
