"""Closed, full and oddly encoded streams, and interrupts at any moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINE = {"id": "\u00e9", "model": "qwen3-30b-a3b", "gpu": "h200", "n_gpus": 4, "argv": "--tp 4"}
CHECK = "check --model qwen3-30b-a3b --cluster 4xh200 -- --tp 4"


def shell(words: str, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["/bin/sh", "-c", f"{sys.executable} -m tuner {words}"],
        input=stdin,
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, **env},
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("words", ["check - <&-", "check --batch - <&-"])
def test_a_closed_stdin_is_told_in_one_line(words: str) -> None:
    done = shell(words)
    assert done.returncode == 2
    assert done.stderr == b"tune: - is text on stdin, which is closed\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize(
    "words",
    [
        "--help",
        CHECK,
        CHECK.replace("check", "check --json", 1),
        "check --batch -",
        "space --model qwen3-30b-a3b --cluster 4xh200",
    ],
)
def test_output_that_finds_no_room_is_told_and_is_no_success(words: str) -> None:
    done = shell(f"{words} > /dev/full", json.dumps(LINE).encode())
    assert done.returncode == 1
    assert done.stderr == b"tune: the output could not be written: No space left on device\n"


def test_a_reader_that_has_seen_enough_is_no_failure() -> None:
    assert b"Traceback" not in shell(f"{CHECK} | true").stderr


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_stdin_is_utf_8_with_or_without_a_byte_order_mark(locale: str) -> None:
    line = json.dumps(LINE, ensure_ascii=False).encode()
    for data in (line, b"\xef\xbb\xbf" + line):
        done = shell("check --batch -", data, LC_ALL=locale)
        assert json.loads(done.stdout)["id"] == "\u00e9"
    done = shell("check --model qwen3-30b-a3b --cluster 4xh200 -", b"\xef\xbb\xbfTP4", LC_ALL=locale)
    assert done.stdout.startswith(b"legal")
    assert shell("check -", b"\xff").stderr.startswith(b"tune: the text on stdin is not UTF-8")


@pytest.mark.parametrize("after", [0.1, 0.2, 0.4])
def test_an_interrupt_while_it_starts_leaves_no_traceback(after: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "from tuner.cli import main; print('up', flush=True); main()", "check", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told in {b"", b"tune: interrupted\n"}
