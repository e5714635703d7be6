"""What a command with `--json` says where the words cannot be used: a document too, beside the line for people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from search_spaces.errors import UserError
from tuner.voice import Voice


@contextmanager
def errors_told(*, json_output: bool) -> Iterator[None]:
    """`{"error": ...}` on stdout, with the key that a line of `check --batch` has; the error itself goes on."""
    try:
        yield
    except UserError as error:
        if json_output:
            Voice().document(json.dumps({"error": " ".join(str(error).split())}, indent=2) + "\n")
        raise
