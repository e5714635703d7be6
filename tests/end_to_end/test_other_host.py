"""`tune --host` as a user runs it, on a real sshd: the simulated servers there are processes of this machine too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import mlflow
import psutil
import pytest

from tests.services.ssh_server import Sshd
from tests.waiting import eventually
from tuner.servers.orphans import OWNER_VARIABLE, SERVER_VARIABLE

pytestmark = pytest.mark.services

STUDY = ("--objective", "peak_throughput", "--engine", "simulated", "--concurrency", "1,8", "--output-tokens", "32")
QUICK = (*STUDY, "--trials", "2", "--clock-scale", "1e9")
# So that there is time to see a server under load, some seconds of the wall's each trial.
SLOW = (*STUDY, "--trials", "1", "--clock-scale", "300")


@pytest.fixture
def environment(sshd: Sshd, tmp_path: Path) -> dict[str, str]:
    path = f"{sshd.program(tmp_path / 'bin')}:{Path(__file__).parent / 'no_gpu'}:{os.environ['PATH']}"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "COV_"))}
    return {**kept, "PYTHONPATH": str(Path(__file__).parents[2]), "PATH": path}


def begun(folder: Path, environment: dict[str, str], *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tuner", *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def servers_of(tuner: subprocess.Popen[str]) -> list[psutil.Process]:
    """Guards are none: their environment has the owner alone."""
    return [p for p in owned_by(tuner) if SERVER_VARIABLE in p.environ()]


def owned_by(tuner: subprocess.Popen[str]) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            is_ours = process.environ().get(OWNER_VARIABLE, "").startswith(f"{tuner.pid}:")
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def test_a_study_runs_there_from_first_to_last(sshd: Sshd, environment: dict[str, str], tmp_path: Path) -> None:
    tuner = begun(tmp_path, environment, *QUICK, "--host", sshd.destination, "--json")
    out, err = tuner.communicate(timeout=300)
    assert tuner.returncode == 0, err
    document = json.loads(out)
    assert document["winner"]["value"] > 0
    assert {t["outcome"] for t in document["trials"]} <= {"measured", "out of memory"}
    assert f"servers run on {sshd.destination}" in err
    assert not owned_by(tuner)
    assert sshd.sessions() == sshd.daemons()
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlruns' / 'mlflow.db'}")
    (experiment,) = [e for e in client.search_experiments() if e.name != "Default"]
    trials = client.search_runs([experiment.experiment_id], "tags.`tune.kind` = 'trial'")
    assert {run.data.params["hosts"] for run in trials} == {sshd.destination}


def test_a_connection_that_is_cut_is_no_fault_of_the_layout_and_the_study_goes_on(
    sshd: Sshd, environment: dict[str, str], tmp_path: Path
) -> None:
    tuner = begun(tmp_path, environment, *SLOW, "--host", sshd.destination, "--json")
    try:
        assert eventually(lambda: servers_of(tuner))
        lost = servers_of(tuner)
        for daemon in sshd.daemons():
            with suppress(psutil.NoSuchProcess):  # one may go with another
                daemon.kill()
        assert eventually(lambda: not any(p.is_running() and p.status() != "zombie" for p in lost))
        out, err = tuner.communicate(timeout=300)
    finally:
        tuner.kill()
    assert tuner.returncode == 0, err
    first, *later = json.loads(out)["trials"]
    assert first["outcome"] == "environment"
    assert f"the connection to {sshd.destination} was lost" in json.dumps(first)
    assert "measured" in {t["outcome"] for t in later}
    assert not owned_by(tuner)


def test_a_tuner_killed_by_sigkill_leaves_nothing_there_and_the_same_command_goes_on(
    sshd: Sshd, environment: dict[str, str], tmp_path: Path
) -> None:
    tuner = begun(tmp_path, environment, *SLOW, "--host", sshd.destination, "--json")
    try:
        assert eventually(lambda: servers_of(tuner))
    finally:
        tuner.kill()
        tuner.communicate()
    assert eventually(lambda: not owned_by(tuner))
    again = begun(tmp_path, environment, *SLOW, "--host", sshd.destination, "--json")
    out, err = again.communicate(timeout=300)
    assert again.returncode == 0, err
    assert json.loads(out)["trials"][0]["outcome"] == "interrupted"
    assert not owned_by(again)
