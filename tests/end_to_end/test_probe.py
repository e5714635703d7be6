"""`tune probe` as a person runs it. Where a machine with GPUs is needed, a program named nvidia-smi that answers with
what such a machine printed stands before the real one, and one named python for a torch that finds those GPUs.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from search_spaces.hardware import CollectiveOp, Route
from tests.waiting import eventually
from tuner.cluster_words import cluster_of

ROOT = Path(__file__).parents[2]
NO_GPU = Path(__file__).parent / "no_gpu"
MACHINES = json.loads((ROOT / "tests" / "golden" / "nvidia_smi_topology.json").read_text())
TWO_SOCKETS = next(each for each in MACHINES if each["source"].endswith("nccl-tests/issues/307"))
ROW = "{i}, GPU-{i}a, {name}, {memory}, 4, 570.86.15, 8.9, [N/A], 450.00, 4, 16, 16\n"
RTX_4090 = {"name": "NVIDIA GeForce RTX 4090", "memory": 24564}
POINTS = [
    {"op": "all_reduce", "backend": "nccl", "num_ranks": n, "size_bytes": size, "seconds": 1e-5 * n + size / 1e10}
    for n in (2, 4, 8)
    for size in (1024, 2**20)
]


def tune(folder: Path, *words: str, path: Path = NO_GPU, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tuner", *words],
        cwd=folder,
        env=environment(path, **env),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def environment(path: Path, **env: str) -> dict[str, str]:
    here = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    return {**here, "PYTHONPATH": str(ROOT), "PATH": f"{path}:{Path(sys.executable).parent}:{os.defpath}", **env}


def machine(folder: Path, *rows: dict[str, Any], shown: dict[str, Any] = TWO_SOCKETS) -> Path:
    """A folder with an nvidia-smi that lists these GPUs, linked as `shown`."""
    programs = folder / "programs"
    programs.mkdir()
    (programs / "gpus").write_text("".join(ROW.format(i=i, **row) for i, row in enumerate(rows)))
    (programs / "topo").write_text(shown["topo"])
    smi = programs / "nvidia-smi"
    smi.write_text(
        '#!/bin/sh\nd=$(dirname "$0")\ncase "$*" in --query-gpu*) cat $d/gpus;; "topo -m") cat $d/topo;; '
        '*compute-apps*) ;; *) echo "Invalid argument"; exit 2;; esac\n'
    )
    smi.chmod(0o755)
    return programs


def torch_of(folder: Path, *said: dict[str, Any]) -> str:
    """A program that says this of the GPUs it measures."""
    python = folder / "python"
    lines = "".join(json.dumps(each) + "\n" for each in said)
    python.write_text(f"#!{sys.executable}\nimport sys\nsys.stdin.readline()\nsys.stdout.write({lines!r})\n")
    python.chmod(0o755)
    return str(python)


HELLO = {"hello": {"torch": "2.9.1+cu128", "num_gpus": 8, "nccl": "2.27.5", "sglang": "0.5.23"}}


def test_without_gpus_it_says_so_in_one_line(tmp_path: Path) -> None:
    probed = tune(tmp_path, "probe", "--save", "box.json")
    assert probed.returncode == 3
    assert probed.stdout == ""
    assert len(probed.stderr.splitlines()) == 1
    assert "no GPU to probe here: `nvidia-smi " in probed.stderr
    assert "--cpu-ranks N" in probed.stderr
    assert list(tmp_path.iterdir()) == []
    assert "no GPU to probe" in json.loads(tune(tmp_path, "probe", "--json").stdout)["error"]


def test_what_is_saved_is_a_cluster_that_other_commands_take(tmp_path: Path) -> None:
    path = machine(tmp_path, *[RTX_4090] * 8)
    python = torch_of(tmp_path, HELLO, *({"point": point} for point in POINTS), {"done": True})
    words = ("probe", "--engine-command", f"{python} -m sglang.launch_server", "--save", "box.json")
    probed = tune(tmp_path, *words, path=path)
    assert probed.returncode == 0, probed.stderr
    assert "8x NVIDIA GeForce RTX 4090 (rtx-4090), 24.0 GiB, driver 570.86.15" in probed.stdout
    assert "SYS (16 pairs), PIX (12 pairs); the farthest pair across CPU sockets" in probed.stdout
    assert "all_reduce (nccl), 8 GPUs" in probed.stdout
    assert "peer access is not known: `nvidia-smi topo -p2p r` ended with code 2: Invalid argument" in probed.stderr
    cluster = cluster_of(str(tmp_path / "box.json"))
    assert cluster.name == "8xrtx-4090"
    assert cluster.fabric is not None
    assert (cluster.fabric.route, cluster.fabric.has_peer_access) == (Route.SOCKETS, None)
    assert "driver 570.86.15, torch 2.9.1+cu128, NCCL 2.27.5" in cluster.fabric.source
    assert [curve.num_ranks for curve in cluster.fabric.curves] == [2, 4, 8]
    checked = tune(tmp_path, "check", "--model", "qwen3-30b-a3b", "--cluster", "box.json", "--", "--tp-size", "8")
    assert checked.returncode == 0, checked.stderr
    assert "8xrtx-4090" in checked.stdout
    again = tune(tmp_path, *words, path=path)
    assert again.returncode == 2
    assert "box.json exists already; --force replaces it" in again.stderr
    forced = tune(tmp_path, *words, "--force", "--nodes", "2", "--json", path=path)
    assert forced.returncode == 0
    assert "one of 2 nodes was measured" in forced.stderr
    assert json.loads(forced.stdout) == json.loads((tmp_path / "box.json").read_text())
    assert cluster_of(str(tmp_path / "box.json")).name == "2x8xrtx-4090"


def test_without_torch_the_topology_is_told_alone(tmp_path: Path) -> None:
    python = torch_of(tmp_path, {"missing": "torch cannot be imported there: ModuleNotFoundError"})
    probed = tune(tmp_path, "probe", "--json", "--engine-command", python, path=machine(tmp_path, *[RTX_4090] * 8))
    assert probed.returncode == 0, probed.stderr
    assert "no collective was measured: torch cannot be imported there" in probed.stderr
    found = json.loads(probed.stdout)
    assert (found["gpu"], found["gpus_per_node"], found["fabric"]["curves"]) == ("rtx-4090", 8, [])
    assert ["GPU0", "GPU4", "SYS"] in found["probed"]["links"]


def test_a_measurement_that_fails_is_exit_code_4_and_keeps_what_there_is(tmp_path: Path) -> None:
    failed = {"failed": {"rank": 5, "error": "DistBackendError: NCCL error, unhandled cuda error"}}
    python = torch_of(tmp_path, HELLO, {"point": POINTS[0]}, failed)
    path = machine(tmp_path, *[RTX_4090] * 8)
    probed = tune(tmp_path, "probe", "--engine-command", python, "--save", "box.json", path=path)
    assert probed.returncode == 4
    assert "not all was measured: rank 5: DistBackendError: NCCL error" in probed.stderr
    fabric = cluster_of(str(tmp_path / "box.json")).fabric
    assert fabric is not None
    assert [curve.op for curve in fabric.curves] == [CollectiveOp.ALL_REDUCE]


def test_ranks_on_cpus_need_a_torch_since_nothing_else_is_found_of_them(tmp_path: Path) -> None:
    python = torch_of(tmp_path, {"missing": "torch cannot be imported there"})
    probed = tune(tmp_path, "probe", "--cpu-ranks", "2", "--engine-command", python, "--save", "cpu.json")
    assert probed.returncode == 3, probed.stderr
    assert "nothing was measured: torch cannot be imported there" in probed.stderr
    assert not (tmp_path / "cpu.json").exists()


def test_cuda_visible_devices_leaves_a_part_of_the_box(tmp_path: Path) -> None:
    path = machine(tmp_path, *[RTX_4090] * 8)
    python = torch_of(tmp_path, {"missing": "nothing there"})
    words = ("probe", "--json", "--engine-command", python)
    found = json.loads(tune(tmp_path, *words, path=path, CUDA_VISIBLE_DEVICES="4,5").stdout)
    assert (found["gpus_per_node"], found["fabric"]["route"]) == (2, "pcie_switch")
    one = tune(tmp_path, *words, path=path, CUDA_VISIBLE_DEVICES="3")
    assert json.loads(one.stdout)["gpus_per_node"] == 1
    assert "one GPU: there is no link to measure" in one.stderr


def test_gpus_of_several_kinds_are_told_and_are_no_cluster(tmp_path: Path) -> None:
    path = machine(tmp_path, RTX_4090, RTX_4090, {"name": "NVIDIA A100-SXM4-80GB", "memory": 81920})
    probed = tune(tmp_path, "probe", path=path)
    assert probed.returncode == 3
    assert "2x NVIDIA GeForce RTX 4090, 1x NVIDIA A100-SXM4-80GB; CUDA_VISIBLE_DEVICES" in probed.stderr


def test_gpus_divided_by_mig_are_no_cluster(tmp_path: Path) -> None:
    path = machine(tmp_path, *[RTX_4090] * 2)
    gpus = path / "gpus"
    gpus.write_text(gpus.read_text().replace("[N/A]", "Enabled", 1))
    probed = tune(tmp_path, "probe", path=path)
    assert probed.returncode == 3
    assert "GPU 0 is divided by MIG" in probed.stderr


def test_a_gpu_of_no_known_kind_leaves_a_file_to_fill_in(tmp_path: Path) -> None:
    path = machine(tmp_path, *[{"name": "NVIDIA RTX A6000", "memory": 49140}] * 2)
    python = torch_of(tmp_path, {"missing": "nothing there"})
    probed = tune(tmp_path, "probe", "--engine-command", python, "--save", "box.json", path=path)
    assert probed.returncode == 0, probed.stderr
    assert "its memory_bytes_per_s, bf16_flop_per_s have to be filled in by hand" in probed.stderr
    used = tune(tmp_path, "check", "--model", "qwen3-30b-a3b", "--cluster", "box.json", "--", "--tp-size", "2")
    assert used.returncode == 2
    assert "memory_bytes_per_s is a number above 0" in used.stderr
    assert "(got None)" in used.stderr
    content = json.loads((tmp_path / "box.json").read_text())
    content["gpu"] |= {"memory_bytes_per_s": 768e9, "bf16_flop_per_s": 154.8e12}
    (tmp_path / "box.json").write_text(json.dumps(content))
    searched = tune(tmp_path, "--objective", "c1_latency", "--cluster", "box.json")
    assert searched.returncode == 2
    assert "NVIDIA RTX A6000 is simulated by nothing" in searched.stderr
    gpu = cluster_of(str(tmp_path / "box.json")).gpu
    assert (gpu.key, gpu.sm, gpu.link_bytes_per_s) == ("rtx-a6000", 89, pytest.approx(31.5e9, rel=1e-2))


def test_a_slot_with_fewer_lanes_is_the_link_of_the_cluster(tmp_path: Path) -> None:
    path = machine(tmp_path, *[RTX_4090] * 8)
    gpus = path / "gpus"
    gpus.write_text(gpus.read_text().replace("4, 16, 16\n", "4, 16, 4\n", 1))
    python = torch_of(tmp_path, {"missing": "nothing there"})
    probed = tune(tmp_path, "probe", "--engine-command", python, "--save", "box.json", path=path)
    assert probed.returncode == 0, probed.stderr
    assert "PCIe gives 7.88 GB/s here, where NVIDIA GeForce RTX 4090 can do 32" in probed.stderr
    assert "PCIe 4.0 x4/16" in probed.stdout
    cluster = cluster_of(str(tmp_path / "box.json"))
    assert (cluster.name, cluster.gpu.link_bytes_per_s) == ("8xrtx-4090", pytest.approx(7.88e9, rel=1e-3))
    assert "uuid" not in (tmp_path / "box.json").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--ops", "all_dance"), "unknown collective in --ops 'all_dance'"),
        (("--sizes", "64KiB,many"), "--sizes takes bytes from 64 to 4 GiB, such as 65536, 64KiB or 1MiB (got 'many')"),
        (("--sizes", "1k", "--max-bytes", "2k"), "no --max-bytes beside it"),
        (("--max-bytes", "512"), "--max-bytes is at least 1024"),
        (("--groups", "2,9", "--cpu-ranks", "4"), "--groups takes counts from 2 to the 4 that are there"),
        (("--groups", "²", "--cpu-ranks", "4"), "--groups takes counts"),
        (("--timeout", "nan"), "--timeout is a number of seconds from 1 to 86400 (got nan)"),
        (("--timeout", "inf"), "--timeout is a number of seconds"),
        (("--cpu-ranks", "1"), "--cpu-ranks is a count from 2 to 64 (got 1)"),
        (("--nodes", "0", "--cpu-ranks", "2"), "--nodes 0 of 2"),
        (("--save", "box"), "a cluster file ends with .json"),
        (("--save", "none/box.json"), "there is no folder none"),
        (("--engine-command", "sglang serve"), "--engine-command names a Python"),
        (("--engine-command", "'"), "--engine-command cannot be read"),
    ],
)
def test_words_that_cannot_be_used_are_told_before_anything_is_started(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    probed = tune(tmp_path, "probe", *words)
    assert probed.returncode == 2, probed.stderr
    assert said in probed.stderr
    assert len(probed.stderr.splitlines()) == 1


@pytest.mark.engine
def test_ranks_on_cpus_are_measured_by_a_real_torch(tmp_path: Path, engine_python: str) -> None:
    words = (
        "probe",
        "--cpu-ranks",
        "2",
        "--engine-command",
        engine_python,
        "--max-bytes",
        "4KiB",
        "--save",
        "cpu.json",
    )
    probed = tune(tmp_path, *words)
    assert probed.returncode == 0, probed.stderr
    assert "2 ranks on this host's CPUs: no GPU is measured" in probed.stdout
    cluster = cluster_of(str(tmp_path / "cpu.json"))
    assert cluster.name == "2xcpu"
    assert cluster.fabric is not None
    assert "no GPU is measured" in cluster.fabric.source
    assert {curve.op for curve in cluster.fabric.curves} == set(CollectiveOp)
    for curve in cluster.fabric.curves:
        assert (curve.backend, curve.num_ranks, curve.size_bytes) == ("gloo", 2, (1024, 2048, 4096))
        assert all(1e-6 < seconds < 1 for seconds in curve.seconds)


@pytest.mark.engine
def test_what_is_called_of_sglang_is_there_under_these_names(engine_python: str) -> None:
    """The part that no CPU can run: that it would find what it calls."""
    where = "import importlib.util as u; print(u.find_spec('sglang').submodule_search_locations[0])"
    package = subprocess.run([engine_python, "-c", where], capture_output=True, text=True, check=True).stdout.strip()
    folder = Path(package) / "srt" / "distributed"
    environment_of = arguments_in(folder / "parallel_state.py", "init_distributed_environment")
    assert {"world_size", "rank", "local_rank", "backend"} <= environment_of
    devices = folder / "device_communicators"
    assert arguments_in(devices / "custom_all_reduce.py", "dispatch_custom_allreduce") == {"group", "device"}
    for name in ("custom_all_reduce.py", "custom_all_reduce_v2.py"):
        assert {"group", "device"} <= arguments_in(devices / name, "__init__")
        assert arguments_in(devices / name, "capture") == {"self"}
        assert len(arguments_in(devices / name, "should_custom_ar")) == 2
        assert len(arguments_in(devices / name, "custom_all_reduce")) == 2
        assert "self.disabled = False" in (devices / name).read_text()


def arguments_in(file: Path, function: str) -> set[str]:
    """Of the only function or method of this name."""
    (found,) = [
        node
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == function
    ]
    return {argument.arg for argument in (*found.args.args, *found.args.kwonlyargs)}


def ranks_of(tuner: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes that measure, once there are some: children of the one that tune started."""
    return [rank for side in psutil.Process(tuner.pid).children() for rank in side.children()]


def measuring(folder: Path, engine_python: str) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A probe that is at work for long, and all processes that it started."""
    tuner = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tuner",
            "probe",
            "--cpu-ranks",
            "2",
            "--engine-command",
            engine_python,
            "--sizes",
            "128MiB",
            "--save",
            "cpu.json",
        ],
        cwd=folder,
        env=environment(NO_GPU),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert eventually(lambda: len(ranks_of(tuner)) == 2), tuner.communicate()
    return tuner, psutil.Process(tuner.pid).children(recursive=True)


def is_gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.engine
@pytest.mark.parametrize(("signal_", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)])
def test_however_it_is_ended_no_rank_is_left(tmp_path: Path, engine_python: str, signal_: int, code: int) -> None:
    tuner, started = measuring(tmp_path, engine_python)
    tuner.send_signal(signal_)
    tuner.communicate(timeout=60)
    assert tuner.returncode == code
    assert eventually(lambda: all(map(is_gone, started)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.engine
def test_a_rank_that_dies_is_told_with_its_signal(tmp_path: Path, engine_python: str) -> None:
    tuner, started = measuring(tmp_path, engine_python)
    ranks_of(tuner)[1].kill()
    _, err = tuner.communicate(timeout=60)
    assert tuner.returncode == 4
    assert "no collective was measured: rank 1: the process was ended by signal 9" in err
    assert eventually(lambda: all(map(is_gone, started)))


@pytest.mark.engine
def test_a_limit_that_is_too_short_is_told(tmp_path: Path, engine_python: str) -> None:
    words = ("probe", "--cpu-ranks", "2", "--engine-command", engine_python, "--sizes", "128MiB", "--timeout", "3")
    probed = tune(tmp_path, *words)
    assert probed.returncode == 4
    assert "it took longer than 3 s (--timeout); " in probed.stderr
