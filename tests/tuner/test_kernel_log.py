"""The kernel's log, as a program named dmesg prints it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tuner.kernel_log import kernel_log_since

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
