"""GPUs locked against a second tuner, here and where another host's own process holds them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from search_spaces.errors import UserError
from tests.processes import words_of
from tuner.gpu_locks import locked_gpus
from tuner.servers.host import Host, LocalHost

HERE = LocalHost()
UUIDS = ["GPU-b", "GPU-a"]


class Elsewhere(LocalHost):
    """This machine, as if it were another: what runs there hangs on its standard input alone."""

    @property
    def name(self) -> str:
        return "box"


@pytest.fixture(params=[HERE, Elsewhere()], ids=["here", "elsewhere"])
def host(request: pytest.FixtureRequest) -> Host:
    found: Host = request.param
    return found


def test_two_tuners_do_not_share_a_gpu_but_may_share_a_host(tmp_path: Path, host: Host) -> None:
    folder = str(tmp_path / "locks")
    with locked_gpus(host, UUIDS, folder), locked_gpus(host, ["GPU-c"], folder):
        with pytest.raises(UserError, match=rf"GPU-a.* is in use by another tuner \(process {os.getpid()} of "):
            locked_gpus(host, ["GPU-a", "GPU-c"], folder).__enter__()
        with pytest.raises(UserError, match="GPU-a"), locked_gpus(HERE, ["GPU-a"], folder):
            pass
    with locked_gpus(host, [*UUIDS, "GPU-c"], folder):
        pass


def test_what_is_held_elsewhere_is_given_back_with_the_process_there(tmp_path: Path) -> None:
    with locked_gpus(Elsewhere(), UUIDS, str(tmp_path / "locks")):
        (holder,) = [p for p in psutil.Process().children(recursive=True) if "GPU-b" in words_of(p)]
    assert not psutil.pid_exists(holder.pid)


HOLDS = """
import sys, time
from tuner.gpu_locks import locked_gpus
from tuner.servers.host import LocalHost
with locked_gpus(LocalHost(), ["GPU-a"], sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_killed_tuner_gives_its_gpus_back(tmp_path: Path) -> None:
    folder = str(tmp_path / "locks")
    with subprocess.Popen([sys.executable, "-c", HOLDS, folder], stdout=subprocess.PIPE, text=True) as tuner:
        assert tuner.stdout is not None
        assert tuner.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"process {tuner.pid} of"), locked_gpus(HERE, ["GPU-a"], folder):
            pass
        tuner.send_signal(signal.SIGKILL)
    with locked_gpus(HERE, ["GPU-a"], folder):
        pass


def test_every_user_of_a_host_can_lock_there(tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    with locked_gpus(HERE, ["GPU-a"], str(folder)):
        assert folder.stat().st_mode & 0o7777 == 0o1777
        assert (folder / "GPU-a").stat().st_mode & 0o777 == 0o666


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be locked"), locked_gpus(HERE, UUIDS, str(tmp_path / "file" / "locks")):
        pass
