"""How a Python that measures is started, heard and ended. Here a program that speaks its protocol stands for it; the
real one, with a real torch, is in tests/end_to_end/test_probe.py.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import psutil
import pytest

from search_spaces.hardware import CollectiveOp, MeasuredCurve
from tuner.probe_collectives import Plan, Skipped, TorchFound, measure

PLAN = Plan(
    is_on_gpus=True,
    num_ranks=(2, 4),
    ops=(CollectiveOp.ALL_REDUCE,),
    size_bytes=(1024, 2048),
    limit_s=30,
    with_custom=True,
)
HELLO = {"hello": {"torch": "2.9.1+cu128", "num_gpus": 8, "nccl": "2.27.5", "sglang": "0.5.23"}}
DONE = {"done": True}


def point(size: int, seconds: float = 1e-5, **other):
    return {
        "point": {
            "op": "all_reduce",
            "backend": "nccl",
            "num_ranks": 2,
            "size_bytes": size,
            "seconds": seconds,
            **other,
        }
    }


def program(folder, *said, then: str = "") -> tuple[str, ...]:
    """Takes the plan, says these lines, and goes on with `then`."""
    script = folder / "python.py"
    lines = "".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in said)
    script.write_text(
        "import json, os, subprocess, sys, time\n"
        "plan = json.loads(sys.stdin.readline())\n"
        f"open({str(folder / 'plan.json')!r}, 'w').write(json.dumps(plan))\n"
        f"sys.stdout.write({lines!r}); sys.stdout.flush()\n{then}\n"
    )
    return (sys.executable, str(script))


def heard(folder, *said, plan=PLAN, then=""):
    points = []
    measured = measure(program(folder, *said, then=then), plan, lambda *each: points.append(each))
    return measured, points


def left_of(folder) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and str(folder) in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_points_become_curves_by_rising_size(tmp_path):
    measured, points = heard(tmp_path, HELLO, point(2048, 2e-5), point(1024), point(1024, backend="custom"), DONE)
    assert measured.failure == ""
    assert measured.found == TorchFound(torch="2.9.1+cu128", num_gpus=8, nccl="2.27.5", sglang="0.5.23")
    assert measured.curves == (
        MeasuredCurve(
            op=CollectiveOp.ALL_REDUCE, backend="nccl", num_ranks=2, size_bytes=(1024, 2048), seconds=(1e-5, 2e-5)
        ),
        MeasuredCurve(op=CollectiveOp.ALL_REDUCE, backend="custom", num_ranks=2, size_bytes=(1024,), seconds=(1e-5,)),
    )
    assert points == [
        ("all_reduce", "nccl", 2, 2048),
        ("all_reduce", "nccl", 2, 1024),
        ("all_reduce", "custom", 2, 1024),
    ]


def test_it_is_told_what_to_measure(tmp_path):
    heard(tmp_path, HELLO, DONE)
    told = json.loads((tmp_path / "plan.json").read_text())
    assert told == {
        "device": "cuda",
        "groups": [2, 4],
        "ops": ["all_reduce"],
        "sizes": [1024, 2048],
        "limit_s": 30,
        "custom": True,
    }


def test_the_first_failure_is_told_and_what_was_measured_before_is_kept(tmp_path):
    failed = {"failed": {"rank": 3, "error": "OutOfMemoryError: CUDA out of memory."}}
    measured, _ = heard(tmp_path, HELLO, point(1024), failed, then="sys.stdin.read()")
    assert measured.failure == "rank 3: OutOfMemoryError: CUDA out of memory."
    assert [curve.size_bytes for curve in measured.curves] == [(1024,)]


def test_what_was_left_out_is_told(tmp_path):
    why = {"skipped": {"op": "all_reduce", "backend": "custom", "num_ranks": 4, "why": "SGLang turns it off"}}
    measured, _ = heard(tmp_path, HELLO, why, DONE)
    assert measured.skipped == (Skipped(op="all_reduce", backend="custom", num_ranks=4, why="SGLang turns it off"),)


@pytest.mark.parametrize(
    ("said", "then", "failure"),
    [
        ((HELLO,), "", "ended without a word"),
        ((HELLO,), "raise SystemError('no more')", "ended with: SystemError: no more"),
        (("Segmentation fault",), "", "answered with something else: Segmentation fault"),
        (("[1]",), "", "answered with something else"),
        ((HELLO, {"point": {"op": "all_reduce"}}), "", "answered with something else"),
        ((HELLO, point(1024, 0.0)), "", "took a time of 0.0 s"),
        ((HELLO, point(1024, op="all_dance"), DONE), "", "answered with something else"),
        (
            ({"hello": {**HELLO["hello"], "num_gpus": 2}},),
            "sys.stdin.read()",
            "sees 2 GPUs, where 4 are to be measured",
        ),
    ],
)
def test_whatever_else_it_says_is_a_failure_in_one_line(tmp_path, said, then, failure):
    measured, _ = heard(tmp_path, *said, then=then)
    assert failure in measured.failure
    assert "\n" not in measured.failure


@pytest.mark.parametrize(
    "said", [{"missing": "torch cannot be imported there"}, {"hello": {**HELLO["hello"], "num_gpus": 0}}]
)
def test_what_is_lacking_there_is_no_failure(tmp_path, said):
    measured, _ = heard(tmp_path, said, then="sys.stdin.read()")
    assert measured.failure == ""
    assert "torch" in measured.lacks


def test_a_program_that_is_not_there_is_told(tmp_path):
    assert "No such file" in measure((str(tmp_path / "python"),), PLAN, lambda *_: None).failure
    assert "without a word" in measure(("/bin/false",), PLAN, lambda *_: None).failure


def test_past_the_limit_nothing_is_left_running(tmp_path):
    plan = Plan(is_on_gpus=True, num_ranks=(2,), ops=PLAN.ops, size_bytes=(1024,), limit_s=1)
    deaf = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', {str(tmp_path)!r}])\n"
        "while True: time.sleep(1)"
    )
    start = time.monotonic()
    measured, _ = heard(tmp_path, HELLO, point(1024), plan=plan, then=deaf)
    assert time.monotonic() - start < 20
    assert "longer than 1 s (--timeout); the last that was measured is all_reduce (nccl) between 2" in measured.failure
    assert len(measured.curves) == 1
    until = time.monotonic() + 5
    while left_of(tmp_path) and time.monotonic() < until:
        time.sleep(0.05)
    assert left_of(tmp_path) == []


def test_an_interrupt_leaves_nothing_running(tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(program(tmp_path, HELLO, point(1024), then="sys.stdin.read()"), PLAN, interrupt)
    assert left_of(tmp_path) == []


def test_no_descriptor_is_left_open(tmp_path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        heard(tmp_path, HELLO, DONE)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
