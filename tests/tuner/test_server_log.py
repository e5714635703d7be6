"""A log that grows while it is read, in the engine's own words."""

from __future__ import annotations

from pathlib import Path

import pytest

from search_spaces.verdict import Stage
from tuner.server_log import LAUNCH, READY, WARM_UP, ServerLog

# As SGLang 0.5.23 printed them on a CPU; the rest of the lines shortened.
LINES = (
    ("[2026-11-29 19:24:12 TP0] Init parallel begin.", Stage.INIT),
    ("[2026-11-29 19:24:13 TP0] Load weight begin. avail mem=21.00 GB", Stage.WEIGHTS),
    ("[2026-11-29 19:24:13 TP0] Load weight end. elapsed=0.04 s", Stage.KV_POOL),
    ("[2026-11-29 19:24:14 TP0] Memory pool end. avail mem=20.89 GB", Stage.GRAPHS),
    ("[2026-11-29 19:24:14 TP0] max_total_num_tokens=8192, chunked_prefill_size=4096", WARM_UP),
    ("[2026-11-29 19:24:16] The server is fired up and ready to roll!", READY),
)


def test_each_milestone_moves_the_stage_on(tmp_path: Path) -> None:
    log = ServerLog(tmp_path / "server.log")
    assert log.read() is False
    assert log.stage == LAUNCH
    with (tmp_path / "server.log").open("a") as f:
        for line, stage in LINES:
            f.write(line + "\n")
            f.flush()
            assert log.read() is True
            assert log.stage == stage
    assert log.read() is False


def test_a_second_rank_that_lags_behind_does_not_move_it_back(tmp_path: Path) -> None:
    log = ServerLog(tmp_path / "server.log")
    (tmp_path / "server.log").write_text(f"{LINES[3][0]}\n{LINES[1][0]}\n")
    log.read()
    assert log.stage == Stage.GRAPHS


@pytest.mark.parametrize("cut", [5, 30, 40])
def test_a_milestone_cut_in_two_by_a_read_is_seen(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "server.log"
    log = ServerLog(path)
    path.write_text(LINES[1][0][:cut])
    log.read()
    with path.open("a") as f:
        f.write(LINES[1][0][cut:] + "\n")
    assert log.read() is True
    assert log.stage == Stage.WEIGHTS


def test_half_a_line_that_stays_half_is_progress_only_once(tmp_path: Path) -> None:
    log = ServerLog(tmp_path / "server.log")
    (tmp_path / "server.log").write_text("compiling")
    assert log.read() is True
    assert log.read() is False


def test_the_tail_of_a_long_log_is_its_last_part(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"x" * 2_000_000 + b"\nlast \xff words")
    tail = ServerLog(path).tail()
    assert tail.endswith("words")
    assert len(tail) < 1_000_000
