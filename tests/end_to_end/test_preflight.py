"""A study of a real engine on a machine whose driver is a program of the name nvidia-smi: what is looked at before."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.fault_campaign import LIMIT_S, comes_true, environment, processes_of
from tuner.gpu_lock_side import FOLDER

MODEL = ("--model", "Qwen/Qwen3-30B-A3B", "--cluster", "1xh200")
SMI = """#!/bin/sh
case "$*" in
*compute-apps*) ;;
*query-gpu=index*) echo "0, {uuid}, {name}, 143771, 4, 570.86.15, 00000000:4E:00.0" ;;
*query-gpu=name*) echo "NVIDIA H200, 143771" ;;
*) exit 9 ;;
esac
"""


class Machine:
    """A folder with a driver that knows one GPU."""

    def __init__(self, folder: Path) -> None:
        self.uuid = f"GPU-{uuid.uuid4()}"
        self.folder = folder
        (folder / "bin").mkdir()
        self.has("NVIDIA H200")

    def has(self, name: str) -> None:
        program = self.folder / "bin" / "nvidia-smi"
        program.write_text(SMI.format(uuid=self.uuid, name=name))
        program.chmod(0o755)

    def tuner(self, name: str) -> subprocess.Popen[str]:
        """At work in a folder of that name, with a server that loads for ever."""
        folder = self.folder / name
        folder.mkdir()
        env = environment(folder)
        server = f"{sys.executable} -c 'import time; print(1, flush=True); time.sleep(600)'"
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "tuner", "--objective", "peak_throughput", *MODEL),
                *("--engine", "sglang", "--engine-version", "0.5.23", "--engine-command", server),
            ],
            cwd=folder,
            env={**env, "PATH": f"{self.folder / 'bin'}:{env['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    (Path(FOLDER) / made.uuid).unlink(missing_ok=True)


def test_a_second_tuner_is_kept_off_the_gpus_of_the_first_until_that_is_gone(machine: Machine) -> None:
    first = machine.tuner("first")
    try:
        logs = machine.folder / "first" / "mlruns" / "work"
        assert comes_true(lambda: any(logs.glob("*/0/server.log")) or first.poll() is not None)
        assert first.poll() is None, first.communicate()
        second = machine.tuner("second")
        said, _ = second.communicate(timeout=LIMIT_S)
        assert second.returncode == 2, said
        assert f"{machine.uuid} is in use by another tuner (process {first.pid} of" in said
    finally:
        first.kill()
        first.communicate()
    assert comes_true(lambda: not processes_of(machine.folder / "first"))
    third = machine.tuner("third")
    try:
        logs = machine.folder / "third" / "mlruns" / "work"
        assert comes_true(lambda: any(logs.glob("*/0/server.log")) or third.poll() is not None)
        assert third.poll() is None, third.communicate()
    finally:
        third.terminate()
        said, _ = third.communicate(timeout=LIMIT_S)
    assert third.returncode == 130, said
    assert processes_of(machine.folder / "third") == []


def test_gpus_that_are_not_what_they_were_found_to_be_start_nothing(machine: Machine) -> None:
    machine.has("NVIDIA H20")
    tuner = machine.tuner("other")
    said, _ = tuner.communicate(timeout=LIMIT_S)
    assert tuner.returncode == 2, said
    assert "NVIDIA H20" in said
    assert not any((machine.folder / "other").glob("mlruns/work/*/0"))
