"""What is piped in: UTF-8, whatever the locale says, with or without a mark of the byte order."""

from __future__ import annotations

import sys
from typing import BinaryIO

from search_spaces.errors import MalformedError


def standard_input() -> BinaryIO:
    """Raises MalformedError where stdin was closed before the start."""
    if sys.stdin is None:
        raise MalformedError("- is text on stdin, which is closed")
    return sys.stdin.buffer


def text_on_stdin() -> str:
    """Raises MalformedError."""
    data = standard_input().read()
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise MalformedError(f"the text on stdin is not UTF-8: {error.reason} at byte {error.start}") from None
