"""How many processes share the tests, which examples Hypothesis draws, and real services that tests of several folders use."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.services.machine import Machine, booted_machine
from tests.services.slurm import Slurm, running_slurm
from tests.services.ssh_server import Sshd, running_sshd

MOST_WORKERS = 8

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("searching", deadline=None, max_examples=1000)
settings.load_profile("repeatable")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """A worker for each core, and none where the output is to be seen (`-s`). Real engines start one after the other:
    SGLang chooses its ports long before it binds them.
    """
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    marked = config.option.markexpr
    if config.option.capture == "no" or ("engine" in marked and "not engine" not in marked):
        return 0
    return min(len(os.sched_getaffinity(0)), MOST_WORKERS)


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """An ssh server of this worker's own, with a key for root that only the tests have."""
    with running_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """One that runs systemd, booted for this worker; it sees the folders of this worker's tests."""
    with booted_machine(tmp_path_factory.mktemp("machine"), tmp_path_factory.getbasetemp()) as booted:
        yield booted


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A Slurm of two nodes with eight declared GPUs each, of this worker's own."""
    with running_slurm(tmp_path_factory.mktemp("slurm") / "run") as running:
        yield running


@pytest.fixture(scope="session")
def allocation(slurm: Slurm) -> Iterator[dict[str, str]]:
    """The environment of a process inside an allocation of both nodes."""
    with slurm.allocation() as env:
        yield env
