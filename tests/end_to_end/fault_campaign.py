"""What the fault campaign shares: studies on the simulated engine with faults, and what has to hold after each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlflow
import optuna
import psutil

from tuner.servers.orphans import OWNER_VARIABLE

VARIABLE = "LAYOUT_TUNE_SIMULATED_FAULTS"
WORDS = (
    *("--objective", "peak_throughput", "--engine", "simulated"),
    *("--concurrency", "1,4", "--output-tokens", "32", "--confirmations", "0"),
)
LIMIT_S = 300.0
"""How long anything may take before a test gives up; far beyond what it takes on a loaded machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the campaign's table."""

    fault: str
    at: str
    outcome: str
    processes_left: int
    study: str
    runs: str


@dataclass(slots=True)
class Table:
    rows: list[Row] = field(default_factory=list)

    def __str__(self) -> str:
        names = ("fault", "at", "outcome", "processes_left", "study", "runs")
        lines = [names, *([str(getattr(row, name)) for name in names] for row in self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
        shown = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        return "\n".join(line.rstrip() for line in shown)


def environment(folder: Path, **env: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "COV_"))}
    path = f"{Path(__file__).parent / 'no_gpu'}:{Path(sys.executable).parent}:{os.defpath}"
    return {
        **kept,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "PATH": path,
        VARIABLE: str(folder / "faults"),
        **env,
    }


def plan(folder: Path, *faults: str) -> None:
    """faults: of the servers that start from now on, one each."""
    (folder / "faults").write_text("".join(f"{each}\n" for each in faults))


def started(folder: Path, *words: str, **env: str) -> subprocess.Popen[str]:
    """A tuner at work in `folder`; what it says is in `out` and `err` there."""
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        return subprocess.Popen(
            [sys.executable, "-m", "tuner", *WORDS, *words],
            cwd=folder,
            env=environment(folder, **env),
            stdout=out,
            stderr=err,
            stdin=subprocess.DEVNULL,
            text=True,
        )


def said(folder: Path) -> str:
    return (folder / "err").read_text(errors="replace")


def finished(folder: Path, *words: str, code: int = 0, **env: str) -> dict[str, Any]:
    """The document of a study that is run to its end."""
    process = started(folder, "--json", *words, **env)
    assert process.wait(LIMIT_S) == code, said(folder)
    found: dict[str, Any] = json.loads((folder / "out").read_text())
    return found


def processes_of(folder: Path) -> list[psutil.Process]:
    """Everything that still runs for a tuner in `folder`: its servers carry its mark and work there."""
    found = []
    for process in psutil.process_iter():
        try:
            marked = OWNER_VARIABLE in process.environ() and process.cwd() == str(folder)
        except (psutil.Error, OSError):
            continue
        if marked and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def comes_true(claim: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if claim():
            return True
        time.sleep(0.005)
    return claim()


def left(folder: Path) -> int:
    """How many processes are left for good, of those that end with the tuner."""
    comes_true(lambda: not processes_of(folder), 60.0)
    return len(processes_of(folder))


def trials_of(folder: Path) -> list[optuna.trial.FrozenTrial]:
    """Empty where the study was not made yet."""
    path = folder / "mlruns" / "optuna.db"
    if not path.exists():
        return []
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    try:
        names = optuna.get_all_study_names(storage)
        return optuna.load_study(study_name=names[0], storage=storage).trials if names else []
    finally:
        storage.engine.dispose()


def run_statuses(folder: Path) -> dict[str, tuple[str, str]]:
    """Of every MLflow run by its trial's number, and of the study's: its status and the outcome it tells."""
    path = folder / "mlruns" / "mlflow.db"
    if not path.exists():
        return {}
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{path}")
    experiments = [e.experiment_id for e in client.search_experiments() if e.name != "Default"]
    runs = client.search_runs(experiments)
    return {
        run.data.tags.get("tune.trial", run.data.tags["tune.kind"]): (
            run.info.status,
            run.data.tags.get("tune.outcome", ""),
        )
        for run in runs
    }


TRUE_STATUS = {"environment": "FAILED", "interrupted": "KILLED"}
"""Of a trial's run; FINISHED where something was learnt about the layout."""


def check_runs(folder: Path, trials: Sequence[Mapping[str, Any]]) -> str:
    """That the record of each trial in MLflow is ended, and tells the truth. Returns it in a word."""
    runs = run_statuses(folder)
    assert runs.pop("study")[0] == "FINISHED", runs
    wanted = {
        str(t["number"]): (TRUE_STATUS.get(t["outcome"], "FINISHED"), t["outcome"])
        for t in trials
        if str(t["number"]) in runs or t["outcome"] != "interrupted"
    }
    assert runs == wanted
    return "ended, true"
