"""A log that grows while it is read, in the engine's own words."""

from __future__ import annotations

from pathlib import Path

import pytest

from search_spaces.verdict import Stage
from tuner.patience import WARM_UP
from tuner.server_log import KEPT_HEAD_BYTES, KEPT_TAIL_BYTES, LAUNCH, READY, ServerLog

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


def seen(log: ServerLog) -> tuple[str, int | None]:
    return log.stage, log.percent


def test_a_progress_bar_behind_carriage_returns_is_progress_and_its_percentage_is_known(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    log = ServerLog(path)
    path.write_text(f"{LINES[1][0]}\n")
    log.read()
    assert seen(log) == (Stage.WEIGHTS, None)
    with path.open("a") as f:
        for drawn, percent in (
            ("\rLoading safetensors checkpoint shards:   0% Completed | 0/64 [00:00<?, ?it/s]\n", 0),
            ("\rLoading safetensors checkpoint shards:  12% Completed | 8/64 [00:09<01:03,  1.13s/it]\n", 12),
        ):
            f.write(drawn)
            f.flush()
            assert log.read() is True
            assert seen(log) == (Stage.WEIGHTS, percent)
        f.write(f"{LINES[3][0]}\n")
        f.flush()
        log.read()
        assert seen(log) == (Stage.GRAPHS, None)
        f.write("\rCapturing batches (bs=8 avail_mem=3.10 GB):  50%|#####     | 26/52")
        f.flush()
        assert log.read() is True
        assert seen(log) == (Stage.GRAPHS, 50)


def test_a_flood_without_a_line_end_keeps_head_and_tail_and_says_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    log = ServerLog(path)
    flood = b"x" * 2**20
    with path.open("wb") as f:
        f.write(b"first words\n")
        for _ in range(100):
            f.write(flood)
            f.flush()
            log.read()
        f.write(b"\nLoad weight begin. last words")
    assert log.read() is True
    assert log.stage == Stage.WEIGHTS
    size = path.stat().st_size
    left_out = log.shorten()
    kept = path.read_bytes()
    assert kept.startswith(b"first words\n")
    assert kept.endswith(b"last words")
    assert f"[cut: {left_out} of {size} bytes are left out here]".encode() in kept
    assert left_out == size - KEPT_HEAD_BYTES - KEPT_TAIL_BYTES
    assert [p.name for p in tmp_path.iterdir()] == ["server.log"]


@pytest.mark.parametrize("cut", [3, 40, 45])
def test_a_secret_that_the_server_prints_is_overwritten_also_where_a_read_cuts_it(tmp_path: Path, cut: int) -> None:
    line = b"server_args=ServerArgs(admin_api_key='canary-7f3a', api_key='canary-7f3a-longer')\n"
    path = tmp_path / "server.log"
    log = ServerLog(path, secrets=("canary-7f3a-longer", "canary-7f3a"))
    path.write_bytes(line[:cut])
    log.read()
    with path.open("ab") as f:
        f.write(line[cut:])
    log.read()
    text = path.read_text()
    assert "canary" not in text
    assert len(text) == len(line)
    assert text.startswith("server_args=ServerArgs(admin_api_key='***********', api_key='***")
