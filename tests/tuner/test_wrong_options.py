"""Options that cannot be read: a line for people, a document for machines, and exit code 2."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "command", [["predict", "--limit", "x"], ["check", "--no-such-option"], ["validate", "--max-tp", "x"]]
)
def test_with_json_the_error_is_a_document_too(command):
    done = subprocess.run(
        [sys.executable, "-m", "tuner", *command, "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"] in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_without_json_stdout_stays_empty():
    done = subprocess.run(
        [sys.executable, "-m", "tuner", "predict", "--limit", "x"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
