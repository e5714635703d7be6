"""What a command with `--json` says where the words cannot be used: a document too, beside the line for people."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from search_spaces.errors import UserError
from tuner.secret_words import masked, secret_values
from tuner.voice import Voice


@contextmanager
def errors_told(*, json_output: bool) -> Iterator[None]:
    """`{"error": ...}` on stdout, with the key that a line of `check --batch` has; the error itself goes on."""
    try:
        yield
    except UserError as error:
        if json_output:
            Voice().document(json.dumps({"error": told(error)}, indent=2) + "\n")
        raise


def told(error: UserError) -> str:
    """In one line, without the secrets that stood among the words it complains of."""
    return masked(" ".join(str(error).split()), secret_values(sys.argv, os.environ))
