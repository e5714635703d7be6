"""Servers inside a real Slurm of two nodes, which are two places of this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from search_spaces.errors import UserError
from tests.services.slurm import GPUS_PER_NODE, NODES, Slurm, running_slurm
from tests.tuner.servers.implementations import slurm_words
from tests.tuner.servers.test_nodes import killed_tuner_leaves
from tests.tuner.servers.two_nodes import FOLDER_VARIABLE, KillAt, run_trial, servers_of
from tuner import places
from tuner.outcome import Environment, Measured
from tuner.servers.nodes import Node, NodesLauncher
from tuner.servers.slurm import Allocation, NoAllocationError, SlurmHost, SlurmLauncher, allocation_of
from tuner.watcher import Watcher

pytestmark = pytest.mark.services


@pytest.fixture
def own(slurm: Slurm, allocation: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Allocation:
    """That of the session."""
    monkeypatch.setenv("SLURM_CONF", slurm.env["SLURM_CONF"])
    return allocation_of(allocation)


@pytest.fixture
def passing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A Slurm of this test's own, whose job may be cancelled."""
    with running_slurm(tmp_path_factory.mktemp("slurm") / "run") as running:
        yield running


def launcher_in(allocation: Allocation) -> NodesLauncher:
    return NodesLauncher(
        [
            Node(launcher=SlurmLauncher(allocation, node), address=SlurmHost(allocation, node).address())
            for node in allocation.nodes
        ]
    )


def test_an_allocation_has_its_nodes_and_a_step_the_gpus_of_its_node(own: Allocation) -> None:
    assert own.nodes == NODES
    assert own.end() == ""
    for node in own.nodes:
        host = SlurmHost(own, node)
        answer = host.run(["sh", "-c", "echo $SLURMD_NODENAME; echo $CUDA_VISIBLE_DEVICES; echo said >&2; exit 7"])
        assert answer.code == 7
        assert answer.stdout.split() == [node.encode(), ",".join(map(str, range(GPUS_PER_NODE))).encode()]
        assert b"said" in answer.stderr
        assert host.address() == "127.0.0.1"


def test_what_was_asked_for_by_task_does_not_narrow_a_step(own: Allocation, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_GPUS_PER_TASK", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"):
        monkeypatch.setenv(name, "2")
    answer = SlurmHost(own, "n2").run(["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"])
    assert answer.stdout.strip() == b"0,1,2,3,4,5,6,7"


def test_a_layout_over_two_nodes_is_measured(own: Allocation, tmp_path: Path) -> None:
    result = run_trial(launcher_in(own), tmp_path)
    assert isinstance(result.outcome, Measured), (result.outcome, (tmp_path / "server.log").read_text())
    assert [rung.concurrency for rung in result.outcome.measurement.rungs] == [1, 4]
    assert " TP8 EP8]" in (tmp_path / "server.node1.log").read_text()


@pytest.mark.parametrize("node", [0, 1])
def test_the_first_node_to_die_ends_all(own: Allocation, tmp_path: Path, node: int) -> None:
    outcome = run_trial(launcher_in(own), tmp_path, KillAt(tmp_path, node=node)).outcome
    assert isinstance(outcome, Environment), outcome
    assert outcome.exit_code == 137
    assert f"(first node to die: node {node} ({NODES[node]}))" in outcome.cause


@dataclass
class CancelAtReady(Watcher):
    slurm: Slurm
    job: str

    def on_stage(self, stage: str) -> None:
        if stage == "ready":
            self.slurm.ask("scancel", self.job)


def test_a_cancelled_job_ends_all_and_says_nothing_of_the_layout(
    passing: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", passing.env["SLURM_CONF"])
    with passing.allocation() as env:
        allocation = allocation_of(env)
        outcome = run_trial(launcher_in(allocation), tmp_path, CancelAtReady(passing, allocation.job)).outcome
        assert isinstance(outcome, Environment), outcome
        assert f"the Slurm job {allocation.job} has ended: CANCELLED" in outcome.cause
        # What is tried afterwards says so too, before anything is started.
        later = run_trial(launcher_in_gone(allocation), tmp_path).outcome
        assert isinstance(later, Environment)
        assert later.stage == "launch"


def launcher_in_gone(allocation: Allocation) -> NodesLauncher:
    return NodesLauncher([Node(launcher=SlurmLauncher(allocation, node), address="127.0.0.1") for node in NODES])


KILLED = """
import os
from tuner.servers.slurm import allocation_of
from tests.tuner.servers.test_slurm import launcher_in
launcher = launcher_in(allocation_of(os.environ))
"""


def test_a_tuner_killed_by_sigkill_leaves_no_node(own: Allocation, allocation: dict[str, str], tmp_path: Path) -> None:
    killed_tuner_leaves(KILLED, tmp_path, {**os.environ, **slurm_words(allocation)})


TUNE = ("--engine", "simulated", "--cluster", "2x8xh200", "--objective", "peak_throughput", "--trials", "1")


def test_tune_uses_the_nodes_of_the_allocation_that_it_runs_in(
    own: Allocation, allocation: dict[str, str], tmp_path: Path
) -> None:
    words = [
        *TUNE,
        "--slurm",
        "--concurrency",
        "1,8",
        "--output-tokens",
        "32",
        "--confirmations",
        "0",
        "--pin",
        "pp_size=1",
    ]
    done = tune(tmp_path, *words, env=slurm_words(allocation))
    assert done.returncode == 0, done.stderr
    assert "servers run on n1, n2" in done.stdout + done.stderr
    assert "--nnodes 2" in done.stdout
    assert list(tmp_path.glob("mlruns/work/*/*/server.node1.log"))
    assert not servers_of(tmp_path)


def test_outside_of_an_allocation_it_says_how_to_get_one(tmp_path: Path) -> None:
    done = tune(tmp_path, *TUNE, "--slurm")
    assert done.returncode == 2
    assert "salloc --nodes" in done.stderr
    with pytest.raises(NoAllocationError, match="SLURM_JOB_ID and SLURM_JOB_NODELIST are not set"):
        allocation_of({})


def test_a_node_whose_loopback_is_not_ours_is_refused_with_the_way_to_it(
    own: Allocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "login")
    with (
        pytest.raises(UserError, match=r"--slurm: n1: .*run tune on that node: .*--nodelist n1 --pty bash"),
        places.launcher_at(places.Place(slurm=own)),
    ):
        pass


def tune(folder: Path, *words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return subprocess.run(
        [sys.executable, "-m", "tuner", *words],
        cwd=folder,
        env={**clean, **(env or {}), FOLDER_VARIABLE: str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
