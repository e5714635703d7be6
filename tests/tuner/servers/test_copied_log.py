"""A server's output on its way into a file here."""

from __future__ import annotations

import subprocess
import sys
from io import BufferedReader
from pathlib import Path

import pytest

from tuner.servers.copied_log import CopiedLog

FLOOD = "import sys\nfor i in range(1000): sys.stdout.write(f'{i:04}' + 'x' * 995 + '\\n')"


def copied(path: Path) -> int:
    """The exit code of a server whose output goes to `path`."""
    with subprocess.Popen([sys.executable, "-c", FLOOD], stdout=subprocess.PIPE) as server:
        assert isinstance(server.stdout, BufferedReader)
        log = CopiedLog(server.stdout, path)
        code = server.wait(60)
        log.wait()
    return code


def test_all_of_it_arrives_after_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("first\n")
    assert copied(path) == 0
    first, *others = path.read_text().split()
    assert first == "first"
    assert [int(line[:4]) for line in others] == list(range(1000))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's device that is always full")
def test_a_full_disk_neither_ends_nor_stops_the_server() -> None:
    assert copied(Path("/dev/full")) == 0
