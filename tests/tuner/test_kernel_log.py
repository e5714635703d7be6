"""The kernel's log, as a program named dmesg prints it."""

from __future__ import annotations

import os
import signal
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tuner.kernel_log import KernelWatch, kernel_log_since, lines_about

LINES = (
    "2026-11-30T05:00:00,000001+00:00 Out of memory: Killed process 1 (sglang::schedul)\n"
    "2026-11-30T05:22:01,123456+00:00 NVRM: Xid (PCI:0000:4e:00): 31, pid=4242, MMU Fault\n"
    "no time at all\n"
    "2026-11-30T07:22:02,5+02:00 a line in another zone\n"
)


@pytest.fixture
def dmesg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "dmesg"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{LINES}END\n", encoding="utf-8")
    program.chmod(0o755)
    return program


@pytest.mark.usefixtures("dmesg")
def test_only_what_was_said_since_the_start_counts() -> None:
    told = kernel_log_since(datetime(2026, 11, 30, 5, 22, tzinfo=UTC)).splitlines()
    assert [line.partition(" ")[2] for line in told] == [
        "NVRM: Xid (PCI:0000:4e:00): 31, pid=4242, MMU Fault",
        "a line in another zone",
    ]


def test_a_log_that_may_not_be_read_says_nothing(dmesg: Path) -> None:
    dmesg.write_text("#!/bin/sh\necho 'dmesg: read kernel buffer failed: Operation not permitted' >&2\nexit 1\n")
    assert kernel_log_since(datetime(2026, 11, 30, tzinfo=UTC)) == ""


def test_without_the_program_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert kernel_log_since(datetime(2026, 11, 30, tzinfo=UTC)) == ""


OTHERS = """\
2026-11-30T05:22:01,1+00:00 NVRM: Xid (PCI:0000:4e:00): 31, pid=4242, name=python3, Ch 00000010, intr 00000000. MMU Fault
2026-11-30T05:22:02,1+00:00 NVRM: Xid (PCI:0000:5f:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
2026-11-30T05:22:03,1+00:00 NVRM: Xid (PCI:0000:60:00): 13, pid=77, Graphics Exception
2026-11-30T05:22:04,1+00:00 oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task=python3,pid=4243,uid=0
2026-11-30T05:22:05,1+00:00 Out of memory: Killed process 4243 (python3) total-vm:1kB, anon-rss:1kB, UID:0
2026-11-30T05:22:06,1+00:00 Out of memory: Killed process 9 (python3) total-vm:1kB, anon-rss:1kB, UID:0
2026-11-30T05:22:07,1+00:00 eth0: link is up
"""


@pytest.mark.parametrize(
    ("pids", "gpus", "seconds"),
    [
        ({4242, 4243}, set(), [1, 4, 5]),
        (set(), {"00000000:5F:00.0"}, [2]),
        ({9}, {"00000000:60:00.0", "00000000:4E:00.0"}, [1, 3, 6]),
        (set(), set(), []),
    ],
)
def test_what_befell_others_is_not_taken_for_this_server_s(pids: set[int], gpus: set[str], seconds: list[int]) -> None:
    # The lines' forms: NVIDIA, "Xid Errors"; Linux, mm/oom_kill.c.
    told = lines_about(OTHERS, pids, gpus).splitlines()
    assert [int(line[18:19]) for line in told] == seconds


@pytest.mark.usefixtures("dmesg")
def test_the_processes_of_a_server_are_known_after_its_end() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        child = int(server.stdout.readline())
        watch = KernelWatch()
        watch.look(server.pid)
        os.kill(child, signal.SIGKILL)
        server.kill()
    watch.look(server.pid)
    assert watch.pids == {server.pid, child}
