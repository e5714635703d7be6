"""What is looked at before a server is started, and after its end: with programs named nvidia-smi and files that are
real. The shape of what nvidia-smi prints: tests/tuner/test_probe_gpus.py.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from search_spaces.catalogue import parse_cluster
from search_spaces.errors import UserError
from search_spaces.layout import Layout
from search_spaces.sglang.versions import NEWEST
from search_spaces.workload import Workload
from tuner.engine import Engine
from tuner.patience import Patience
from tuner.preflight import NOTHING_TO_CHECK, Preflight
from tuner.preflight_gpus import GpuFaultError, gpu_states
from tuner.preflight_model import model_fault
from tuner.preflight_room import GIB, Room, room_of
from tuner.servers.host import LocalHost
from tuner.servers.local import LocalLauncher
from tuner.servers.protocol import Launch
from tuner.trial import Trial
from tuner.watcher import Watcher

HERE = LocalHost()
TWO_H200 = parse_cluster("2xh200")
ROW = "{i}, GPU-{i}a5, {name}, 143771, {used}, 570.86.15, 00000000:{i}A:00.0"
LOST = "Unable to determine the device handle for GPU0000:07:00.0: Unknown Error"
"""https://github.com/pdbear/syno_nvidia_gpu_driver/issues/22."""


class Driver:
    """Answers as nvidia-smi from two files, which may change between two questions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        program = folder / "nvidia-smi"
        program.write_text(
            f'#!/bin/sh\ncase "$1" in *compute-apps*) cat {folder}/apps ;; *) echo >>{folder}/asked; cat {folder}/gpus ;; esac\n'
        )
        program.chmod(0o755)
        self.holds([4, 4])

    def holds(self, used_mib: list[int], apps: str = "", name: str = "NVIDIA H200") -> None:
        rows = "".join(ROW.format(i=i, used=used, name=name) + "\n" for i, used in enumerate(used_mib))
        (self._folder / "apps").write_text(apps)
        self._put(rows)

    def says(self, text: str) -> None:
        self._put(text)

    def breaks(self, script: str) -> None:
        (self._folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")

    @property
    def num_asked(self) -> int:
        path = self._folder / "asked"
        return len(path.read_text()) if path.exists() else 0

    def _put(self, text: str) -> None:
        new = self._folder / "new"
        new.write_text(text)
        new.replace(self._folder / "gpus")


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return Driver(folder)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "a model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = {"weight_map": {f"layer.{i}": name for i, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in names:
        (folder / name).write_bytes(b"x" * 5000)
    return folder


@pytest.fixture
def preflight(driver: Driver, model: Path, tmp_path: Path) -> Preflight:
    return Preflight(
        hosts=(HERE,),
        cluster=TWO_H200,
        model_path=str(model),
        is_contained=True,  # this machine's memory and disks are of no interest
        free_limit_s=0.0,
        retry_s=0.0,
        lock_folder=str(tmp_path / "locks"),
    )


HELD = "GPU-1a5, 4242, /usr/bin/python3, with a comma, 70000\nGPU-1a5, 4243, [Not Found], [N/A]\nGPU-9, 1, x, 5\n"


def test_all_in_order_is_no_fault(preflight: Preflight) -> None:
    assert preflight.fault() == ""
    assert preflight.left_behind() == []
    assert preflight.pci_addresses() == {"00000000:0A:00.0", "00000000:1A:00.0"}
    with preflight.locked():
        pass


def test_who_holds_a_gpu_is_named(preflight: Preflight, driver: Driver) -> None:
    driver.holds([4, 70512], HELD)
    assert preflight.fault() == (
        "GPU 1 (NVIDIA H200) holds 70512 MiB: pid 4242 (/usr/bin/python3, with a comma, 70000 MiB), "
        "pid 4243 ([Not Found])"
    )
    driver.holds([4, 70512])
    assert preflight.fault().endswith("holds 70512 MiB: a process that nvidia-smi does not show from here")


def test_what_is_amiss_is_looked_at_once_more_and_told(preflight: Preflight, driver: Driver) -> None:
    driver.holds([70512, 4], HELD)
    heard: list[str] = []

    def tell(text: str) -> None:
        heard.append(text)
        driver.holds([4, 4])

    assert preflight.fault(tell) == ""
    assert len(heard) == 1
    assert "GPU 0" in heard[0]
    assert "looking again" in heard[0]


def test_memory_that_comes_back_within_the_limit_is_waited_for(preflight: Preflight, driver: Driver) -> None:
    driver.holds([70512, 4])
    asked = driver.num_asked

    def free_after_two_looks() -> None:
        while driver.num_asked < asked + 2:
            time.sleep(0.01)
        driver.holds([4, 4])

    other = threading.Thread(target=free_after_two_looks)
    other.start()
    assert replace(preflight, free_limit_s=300.0).left_behind() == []
    other.join()


@pytest.mark.parametrize(
    ("says", "fault"),
    [
        (ROW.format(i=0, used=4, name="NVIDIA H200"), "2 GPUs of .*H200.* are needed, and there are 1"),
        ("\n".join([ROW.format(i=0, used=4, name="NVIDIA H200"), LOST]), "there are 1 .*device handle"),
        ("\n".join(ROW.format(i=i, used=4, name="NVIDIA L4") for i in (0, 1)), "NVIDIA L4"),
        ("", r"there are 0 \(none\)"),
    ],
)
def test_gpus_that_are_gone_or_of_another_kind_are_a_fault(
    preflight: Preflight, driver: Driver, says: str, fault: str
) -> None:
    driver.says(says)
    with pytest.raises(GpuFaultError, match=fault):
        gpu_states(HERE, TWO_H200, {})
    with pytest.raises(UserError, match=fault), preflight.locked():
        pass


def test_a_driver_that_fails_is_a_fault_and_not_a_crash(preflight: Preflight, driver: Driver) -> None:
    driver.breaks("echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.'; exit 9")
    assert preflight.fault() == (
        "nvidia-smi ended with code 9: NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver."
    )
    assert preflight.left_behind() == [preflight.fault()]
    assert preflight.pci_addresses() == frozenset()


def test_only_the_gpus_that_a_server_uses_are_looked_at(preflight: Preflight, driver: Driver) -> None:
    driver.holds([70512, 4, 4, 4])
    assert "GPU 0" in preflight.fault()
    assert replace(preflight, env={"CUDA_VISIBLE_DEVICES": "2,3"}).fault() == ""
    assert replace(preflight, extra_args=("--base-gpu-id", "1")).fault() == ""
    assert replace(preflight, extra_args=("--base-gpu-id=0",)).fault() != ""


def test_two_studies_do_not_run_on_the_same_gpus(preflight: Preflight) -> None:
    told = f"GPU-0a5 is in use by another tuner .process {os.getpid()} "
    with preflight.locked(), pytest.raises(UserError, match=told):
        preflight.locked().__enter__()
    with preflight.locked():
        pass


def test_where_there_is_nothing_to_check_nothing_is_asked(driver: Driver) -> None:
    with NOTHING_TO_CHECK.locked():
        assert NOTHING_TO_CHECK.fault() == ""
    assert (NOTHING_TO_CHECK.left_behind(), NOTHING_TO_CHECK.pci_addresses(), driver.num_asked) == ([], frozenset(), 0)


def test_a_model_that_is_not_there_is_a_fault(preflight: Preflight, model: Path) -> None:
    (model / "model-00002-of-00002.safetensors").unlink()
    assert preflight.fault() == (
        f"1 of 2 files that model.safetensors.index.json names are missing in {model}: model-00002-of-00002.safetensors"
    )
    (model / "model-00002-of-00002.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "Git LFS" in preflight.fault()
    (model / "model.safetensors.index.json").write_text("half of a fi")
    assert "cannot be read as JSON" in preflight.fault()
    (model / "model.safetensors.index.json").unlink()
    assert model_fault(HERE, str(model)) == ""
    (model / "model-00001-of-00002.safetensors").unlink()
    (model / "model-00002-of-00002.safetensors").unlink()
    assert "holds no weights" in model_fault(HERE, str(model))
    assert model_fault(HERE, str(model), ("--load-format", "dummy")) == ""
    (model / "config.json").unlink()
    assert model_fault(HERE, str(model)) == f"{model} holds no config.json"
    assert model_fault(HERE, str(model / "no")) == f"there is no folder {model / 'no'}"
    assert model_fault(HERE, "moonshotai/Kimi-K2.6") == ""


def test_what_is_linked_into_a_cache_is_there(tmp_path: Path) -> None:
    """A hub's cache holds links into its blobs."""
    folder, blobs = tmp_path / "snapshot", tmp_path / "blobs"
    for each in (folder, blobs):
        each.mkdir()
    (blobs / "1").write_bytes(b"x" * 5000)
    (blobs / "2").write_text("{}")
    (folder / "model.safetensors").symlink_to(blobs / "1")
    (folder / "config.json").symlink_to(blobs / "2")
    assert model_fault(HERE, str(folder)) == ""
    (blobs / "1").unlink()
    assert "holds no weights" in model_fault(HERE, str(folder))


def test_room_is_counted_where_a_server_takes_it() -> None:
    plenty = {"/dev/shm": 8 * GIB, "/home/me": 100 * GIB, "/tmp": 100 * GIB}
    assert Room(available_bytes=64 * GIB, free_bytes=plenty).faults(8) == []
    assert Room(available_bytes=64 * GIB, free_bytes=plenty).notices(8) == []
    assert Room(available_bytes=None, free_bytes={}).faults(8) == []
    (memory,) = Room(available_bytes=15 * GIB, free_bytes=plenty).faults(8)
    assert memory == "main memory: 15 GiB are available, and 8 ranks take 16 GiB at least"
    small = Room(available_bytes=64 * GIB, free_bytes=plenty | {"/dev/shm": 64 * 2**20, "/tmp": GIB})
    assert small.faults(8) == []
    assert len(small.notices(8)) == 2
    none = Room(available_bytes=64 * GIB, free_bytes=plenty | {"/dev/shm": 2**20, "/home/me": 0})
    assert [each.split()[0] for each in none.faults(8)] == ["/dev/shm", "/home/me"]
    assert [each.split()[0] for each in none.faults(1)] == ["/home/me"]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/meminfo is Linux's")
def test_this_machine_says_what_room_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    room = room_of(HERE)
    assert room.available_bytes is not None
    assert 2**20 < room.available_bytes < 2**50
    free = os.statvfs(tmp_path)
    assert room.free_bytes[str(tmp_path)] == pytest.approx(free.f_bavail * free.f_frsize, rel=0.2)


SERVER = Path(__file__).parent / "small_server.py"


def test_memory_that_a_server_leaves_behind_is_told_and_the_next_one_is_not_started_into_it(
    preflight: Preflight, driver: Driver, tmp_path: Path
) -> None:
    launcher = LocalLauncher()
    port = launcher.free_port()
    heard: list[str] = []

    class Hears(Watcher):
        def on_notice(self, text: str) -> None:
            heard.append(text)

    trial = Trial(
        engine=Engine(name="sglang", version=NEWEST, program=(sys.executable,)),
        launcher=launcher,
        workload=Workload(input_tokens=16, output_tokens=16, concurrencies=(1,)),
        vocab_size=32000,
        seed=0,
        patience=Patience(),
        preflight=preflight,
    )
    driver.holds([4, 70512], HELD)
    launch = Launch(
        command=(sys.executable, str(SERVER), str(port), json.dumps({"dies": "ValueError: no such thing"})),
        host="127.0.0.1",
        port=port,
        log_path=tmp_path / "server.log",
    )
    trial.run(launch, Layout(tp_size=2), Hears())
    assert heard == [f"{preflight.fault()}, 0 s after the server's end"]
