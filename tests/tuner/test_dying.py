"""A failure under load, and what the server makes of it: it goes on, it says what it was, or it dies."""

from __future__ import annotations

from pathlib import Path

from tests.tuner.test_trial import run
from tuner.dying import DYING_S, EXIT_UNKNOWN
from tuner.fault import Fault
from tuner.outcome import Crashed

INFO = {"tp_size": 8, "max_total_num_tokens": 100000}
EXCEPTION = (
    "[2026-11-01 10:00:08 TP3] Scheduler hit an exception: Traceback (most recent call last):\n"
    '  File "sglang/srt/managers/scheduler.py", line 4111, in run_scheduler_process\n'
    "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
)


def test_a_healthy_server_that_failed_one_request_is_not_waited_for(tmp_path: Path) -> None:
    result = run(tmp_path, {"info": INFO})
    assert isinstance(result.outcome, Crashed)
    assert "HTTP 500" in result.outcome.cause
    assert result.duration_s < DYING_S


def test_a_server_that_lives_with_its_exception_is_told_by_it(tmp_path: Path) -> None:
    result = run(tmp_path, {"info": INFO, "complains": EXCEPTION})
    assert isinstance(result.outcome, Crashed)
    assert result.outcome.fault is Fault.ILLEGAL_ACCESS
    assert (result.outcome.exit_code, result.outcome.rank) == (EXIT_UNKNOWN, "TP3")
    assert result.duration_s < DYING_S


def test_a_server_that_dies_of_it_is_waited_for(tmp_path: Path) -> None:
    result = run(
        tmp_path, {"info": INFO, "complains": "Traceback (most recent call last):\nKeyError: 'no'", "ends": True}
    )
    assert isinstance(result.outcome, Crashed)
    assert (result.outcome.exit_code, result.outcome.cause) == (1, "KeyError: 'no'")
