"""The fault campaign: whatever befalls a server, the machine or the tuner itself, each study ends with true outcomes,
leaves no process, loses at most the trial in flight, and goes on with the same command.

The real command in a process of its own, on the simulated engine. Faults come at milestones: a server suffers its own
at a line of its log (tuner/simulator/faults.py), and the tuner is killed when a line, a log or a file says how far it
is. `pytest -s` prints the table, and `fault_campaign.txt` under pytest's folder keeps it.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.fault_campaign import (
    LIMIT_S,
    Row,
    Table,
    check_runs,
    comes_true,
    finished,
    left,
    plan,
    processes_of,
    run_statuses,
    said,
    started,
    trials_of,
)
from tests.services.needs import needed, not_here
from tuner.server_log import KEPT_HEAD_BYTES, KEPT_TAIL_BYTES

STAGES = {
    "launch": "argument resolution",
    "init": "scheduler start",
    "weights": "weight load",
    "pool": "KV pool sizing",
    "graphs": "CUDA graph capture",
    "warm-up": "warm-up",
    "ready": "ready",
    "load": "concurrency 1",
}
QUICK = ("--clock-scale", "1e9")
PACED = ("--clock-scale", "300")
"""A start takes a second, so that the stages of one can be told apart from outside."""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    found = Table()
    yield found
    text = f"\n{found}\n"
    print(text)  # noqa: T201
    (tmp_path_factory.getbasetemp() / "fault_campaign.txt").write_text(text)


def outcomes_of(document: dict[str, Any]) -> dict[int, tuple[str, str]]:
    """By trial, how it ended and why, in one line."""
    return {t["number"]: (t["outcome"], t.get("summary") or t.get("reason") or "") for t in document["trials"]}


def told(folder: Path, table: Table, document: dict[str, Any], faults: list[str]) -> dict[int, tuple[str, str]]:
    """Fills the table: `faults` befell the servers of the study, in the order of its trials."""
    ends = outcomes_of(document)
    runs = check_runs(folder, document["trials"])
    num_left = left(folder)
    winner = "won" if document["winner"] else "no winner"
    for number, fault in enumerate(faults):
        name, _, at = fault.partition(" ")
        if name != "none":
            table.rows.append(
                Row(fault=name, at=at, outcome=ends[number][0], processes_left=num_left, study=winner, runs=runs)
            )
    assert num_left == 0
    return ends


STOPPED = [f"stop {at}" for at in STAGES]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A study of servers that are stopped, one at each stage: it waits for them most of the time, so it begins early."""
    folder = tmp_path_factory.mktemp("stopped")
    plan(folder, *STOPPED)
    process = started(folder, *QUICK, "--json", "--trials", str(len(STOPPED)), "--patience", "5s")
    yield folder, process
    process.kill()
    process.wait()


KILLED = [
    each
    for pair in (("launch", "init"), ("weights", "pool"), ("graphs", "warm-up"), ("ready", "load"))
    for each in ("none", *(f"kill {at}" for at in pair))
]
"""Never three in a row: after three trials that the environment ended, a study gives up."""


@pytest.mark.usefixtures("stopped")
def test_a_server_killed_from_outside_at_any_stage_costs_no_layout_its_verdict(tmp_path: Path, table: Table) -> None:
    plan(tmp_path, *KILLED)
    document = finished(tmp_path, *QUICK, "--trials", "5")
    ends = told(tmp_path, table, document, KILLED)
    for number, fault in enumerate(KILLED):
        name, _, at = fault.partition(" ")
        outcome, why = ends[number]
        if name == "kill":
            assert (outcome, STAGES[at] in why, "SIGKILL" in why) == ("environment", True, True), (fault, ends[number])
        else:
            assert outcome == "measured", (number, ends[number])
    flags = [t["flags"] for t in document["trials"]]
    assert flags[1] == flags[2]  # tried once more
    assert document["winner"]


SPOILED = ["none", "port launch", "garbage load", "nonsense load", "reset load", "none"]
WORDS = {
    "port": "address already in use",
    "garbage": "no HTTP",
    "nonsense": "cannot be read",
    "reset": "reset by peer",
}


def test_a_stolen_port_and_streams_that_break_are_told_as_what_they_are(tmp_path: Path, table: Table) -> None:
    plan(tmp_path, *SPOILED)
    document = finished(tmp_path, *QUICK, "--trials", "5")
    ends = told(tmp_path, table, document, SPOILED)
    for number, fault in enumerate(SPOILED):
        name = fault.partition(" ")[0]
        outcome, why = ends[number]
        wanted = {"none": "measured", "port": "environment"}.get(name, "crashed")
        assert outcome == wanted, (fault, ends[number])
        assert WORDS.get(name, "") in why
    assert document["winner"]


def test_503_for_a_minute_is_waited_for_before_the_load_and_a_failure_under_it(tmp_path: Path, table: Table) -> None:
    faults = ["busy ready", "busy load"]
    plan(tmp_path, *faults)
    document = finished(tmp_path, "--clock-scale", "60", "--trials", "2")
    ends = told(tmp_path, table, document, faults)
    assert ends[0][0] == "measured", ends[0]
    assert (ends[1][0], "HTTP 503" in ends[1][1]) == ("crashed", True), ends[1]


def test_a_gigabyte_of_log_costs_neither_the_trial_nor_the_disk(tmp_path: Path, table: Table) -> None:
    faults = ["flood weights", "flood load"]
    plan(tmp_path, *faults)
    document = finished(tmp_path, *QUICK, "--trials", "2")
    ends = told(tmp_path, table, document, faults)
    assert {ends[0][0], ends[1][0]} == {"measured"}
    logs = sorted(tmp_path.glob("mlruns/work/*/[01]/server.log"))
    assert len(logs) == 2
    for log in logs:
        assert log.stat().st_size < KEPT_HEAD_BYTES + KEPT_TAIL_BYTES + 2**20
        assert b" bytes are left out here]" in log.read_bytes()


def test_a_server_stopped_at_any_stage_is_hung_there_and_the_study_goes_on(
    stopped: tuple[Path, subprocess.Popen[str]], table: Table
) -> None:
    folder, process = stopped
    assert process.wait(LIMIT_S) == 4, said(folder)
    ends = outcomes_of(json.loads((folder / "out").read_text()))
    for number, at in enumerate(STAGES):
        assert ends[number][0] == "hung", (at, ends[number])
        assert STAGES[at] in ends[number][1]
    assert left(folder) == 0
    document = finished(folder, *QUICK, "--trials", str(len(STOPPED) + 1))
    told(folder, table, document, STOPPED)
    assert document["winner"]


# Where the tuner is killed: what it has said, or a log, or a file; `trial` stands for the newest one.
MILESTONES = {
    "opening": "stderr:every figure is simulated",
    "study storage": "file:mlruns/optuna.db",
    "MLflow's store": "file:mlruns/mlflow.db",
    "trial announced": "stderr:(sampler)",
    "launch": "log:SIMULATED",
    "init": "log:Init parallel begin",
    "weights": "log:Load weight begin",
    "pool": "log:Load weight end",
    "graphs": "log:Memory pool end",
    "port bound": "log:Uvicorn running",
    "ready": "log:fired up and ready",
    "started": "stderr:started (",
    "prefill": "log:Prefill batch",
    "under load": "log:#running-req: 4",
    "told to end": "log:SIGTERM received",
    "trial told": "stderr: tok/s; best",
}
SEED = 5
KILLS = 20
CHAINS = 4


def milestones() -> list[list[str]]:
    """All of them, and others drawn again until there are twenty, in four chains."""
    names = [*MILESTONES]
    drawn = random.Random(SEED)
    found = [*names, *drawn.choices(names[3:], k=KILLS - len(names))]
    drawn.shuffle(found)
    return [found[i::CHAINS] for i in range(CHAINS)]


def reached(folder: Path, milestone: str, before: set[Path]) -> bool:
    where, _, text = MILESTONES[milestone].partition(":")
    if where == "file":
        return (folder / text).exists()
    if where == "stderr":
        return text in said(folder)
    logs = set(folder.glob("mlruns/work/*/*/server.log")) - before
    return any(text in log.read_text(errors="replace") for log in logs)


def comes_to(folder: Path, milestone: str, tuner: subprocess.Popen[str], before: set[Path]) -> bool:
    """Waits for a milestone; whether the tuner still runs then. before: logs that were there before it was started."""
    comes_true(lambda: reached(folder, milestone, before) or tuner.poll() is not None)
    return tuner.poll() is None


def values_of(folder: Path) -> dict[int, float | None]:
    """Of the trials that are done for good."""
    return {t.number: t.value for t in trials_of(folder) if t.state.is_finished()}


def kill_at_each(folder: Path, names: list[str]) -> list[Row]:
    """One study, whose tuner is killed at one milestone after another. Returns what came of each."""
    rows, known = [], {}
    plan(folder)
    for name in names:
        before = set(folder.glob("mlruns/work/*/*/server.log"))
        process = started(folder, *PACED, "--trials", "50")
        try:
            assert comes_to(folder, name, process, before), said(folder)
        finally:
            process.kill()
            process.wait()
        num_left = left(folder)
        now = values_of(folder)
        assert num_left == 0, processes_of(folder)
        assert known.items() <= now.items(), (name, known, now)
        assert sum(t.state.name == "RUNNING" for t in trials_of(folder)) <= 1
        known = now
        rows.append(
            Row(
                fault="tuner killed -9", at=name, outcome=f"{len(now)} trials kept", processes_left=0, study="", runs=""
            )
        )
    document = finished(folder, *QUICK, "--trials", "2")
    ends = {t["number"]: t for t in document["trials"]}
    assert left(folder) == 0
    assert document["winner"]
    assert all(ends[number]["value"] == value for number, value in known.items() if value is not None)
    assert {t.state.name for t in trials_of(folder)} <= {"COMPLETE", "PRUNED", "FAIL"}
    runs = check_runs(folder, document["trials"])
    return [Row(**{**vars_of(row), "study": "resumed, won", "runs": runs}) for row in rows]


def vars_of(row: Row) -> dict[str, Any]:
    return {name: getattr(row, name) for name in Row.__slots__}


def test_a_tuner_killed_at_twenty_milestones_loses_at_most_the_trial_in_flight(tmp_path: Path, table: Table) -> None:
    chains = milestones()
    assert sum(map(len, chains)) == KILLS
    folders = [tmp_path / str(i) for i in range(CHAINS)]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(max_workers=2) as both:
        for rows in both.map(kill_at_each, folders, chains):
            table.rows += rows


ASKED = {
    signal.SIGTERM: "study storage",
    signal.SIGHUP: "weights",
    signal.SIGINT: "trial told",
}


@pytest.mark.parametrize("asked", ASKED, ids=lambda each: each.name)
def test_a_tuner_asked_to_end_does_so_in_order_wherever_it_is(
    tmp_path: Path, table: Table, asked: signal.Signals
) -> None:
    plan(tmp_path)
    process = started(tmp_path, *PACED, "--trials", "50")
    try:
        assert comes_to(tmp_path, ASKED[asked], process, set()), said(tmp_path)
        process.send_signal(asked)
        assert process.wait(LIMIT_S) == 130, said(tmp_path)
    finally:
        process.kill()
        process.wait()
    assert processes_of(tmp_path) == []
    assert not [status for status, _ in run_statuses(tmp_path).values() if status == "RUNNING"]
    document = finished(tmp_path, *QUICK, "--trials", "1")
    runs = check_runs(tmp_path, document["trials"])
    table.rows.append(
        Row(
            fault=asked.name,
            at=ASKED[asked],
            outcome="exit code 130",
            processes_left=0,
            study="resumed, won" if document["winner"] else "no winner",
            runs=runs,
        )
    )
    assert document["winner"]


@contextlib.contextmanager
def mounted(folder: Path, size: str) -> Iterator[None]:
    needed("mount")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        not_here(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.services
def test_a_full_disk_is_no_verdict_and_a_study_goes_on_where_there_is_room_again(tmp_path: Path, table: Table) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    faults = ["none", "flood weights", "flood load"]
    with mounted(folder, "48m"):
        plan(folder, *faults)
        flooded = finished(folder, *QUICK, "--trials", "2")
        told(folder, table, flooded, faults)
        known = values_of(folder)
        ballast = folder / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb") as f:
            while True:
                f.write(b"x" * 2**12)
                f.flush()
        process = started(folder, *QUICK, "--trials", "3")
        code = process.wait(LIMIT_S)
        num_left = left(folder)
        ballast.unlink()
        document = finished(folder, *QUICK, "--trials", "3")
        now = values_of(folder)
        runs = check_runs(folder, document["trials"])
    ends = outcomes_of(flooded)
    for number in (1, 2):
        assert ends[number][0] == "environment", ends[number]
        assert "the disk of the server's log was full" in ends[number][1]
    assert flooded["winner"]
    assert code in {1, 2}
    assert num_left == 0
    assert document["winner"]
    assert known.items() <= now.items()
    outcome = f"exit code {code}"
    table.rows.append(
        Row(fault="disk full", at="start", outcome=outcome, processes_left=0, study="resumed, won", runs=runs)
    )


TRUE_SLEEP = """
#define _GNU_SOURCE
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left) {
    return syscall(SYS_clock_nanosleep, clock, flags, until, left) == 0 ? 0 : errno;
}
"""
"""libfaketime 0.9.10 takes the wall clock's shift off a sleep until a time of the monotonic one, as Python sleeps."""


def wrong_clock(folder: Path) -> str:
    """What is to be loaded first so that a program's wall clock, and that alone, is what a file says."""
    libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    compiler = needed("cc", root=False)["cc"]
    if not libraries:
        not_here("libfaketime is not installed: tests/services/install.sh installs what these tests start")
    source, library = folder / "true_sleep.c", folder / "true_sleep.so"
    source.write_text(TRUE_SLEEP)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return f"{library}:{libraries[0]}"


JUMPS = {"a day ahead": "+1d", "a day back": "-1d"}


@pytest.mark.services
@pytest.mark.parametrize("jump", JUMPS)
def test_a_clock_that_jumps_changes_no_figure_and_ends_nothing(tmp_path: Path, table: Table, jump: str) -> None:
    clock = tmp_path / "clock"
    clock.write_text("+0\n")
    fake = {
        "LD_PRELOAD": wrong_clock(tmp_path),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }
    plan(tmp_path)
    process = started(tmp_path, "--json", *PACED, "--trials", "2", "--patience", "60s", **fake)
    try:
        assert comes_to(tmp_path, "weights", process, set()), said(tmp_path)
        clock.write_text(f"{JUMPS[jump]}\n")
        assert process.wait(LIMIT_S) == 0, said(tmp_path)
    finally:
        process.kill()
        process.wait()
    document = finished(tmp_path, *PACED, "--trials", "2")
    runs = check_runs(tmp_path, document["trials"])
    num_left = left(tmp_path)
    ends = outcomes_of(document)
    table.rows.append(Row(fault="clock", at=jump, outcome=ends[0][0], processes_left=num_left, study="won", runs=runs))
    assert num_left == 0
    assert {outcome for outcome, _ in ends.values()} == {"measured"}
    assert all(t["duration_s"] < LIMIT_S for t in document["trials"])
