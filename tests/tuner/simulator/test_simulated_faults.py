"""The file of faults, from which each simulated server takes the first line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.simulator.faults import FaultError, next_fault


def taken(path: Path) -> tuple[str, str]:
    fault = next_fault(str(path), host="127.0.0.1", port=1, scale=1.0)
    return fault.name, fault.at


def test_each_server_takes_one_line_and_then_there_are_none(tmp_path: Path) -> None:
    path = tmp_path / "faults"
    path.write_text("kill weights\nnone\nreset load\n")
    assert [taken(path) for _ in range(4)] == [
        ("kill", "weights"),
        ("none", "launch"),
        ("reset", "load"),
        ("none", "launch"),
    ]
    assert taken(tmp_path / "no file") == ("none", "launch")


@pytest.mark.parametrize("line", ["explode", "kill tomorrow", "stop  load"])
def test_what_is_no_fault_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "faults"
    path.write_text(f"{line}\n")
    with pytest.raises(FaultError, match="no fault"):
        taken(path)
