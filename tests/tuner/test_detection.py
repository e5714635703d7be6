"""What `nvidia-smi` and Python environments say, read as they really print it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from search_spaces.catalogue import load_gpu, parse_cluster
from search_spaces.hardware import Cluster
from tuner.detection import found_cluster, holds, installed_engine, known_gpu, parse_gpus


@pytest.mark.parametrize(
    ("name", "memory_mib", "key"),
    [
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "rtx-pro-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887, "rtx-pro-6000-ws"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 97887, "rtx-pro-6000-max-q"),
        ("NVIDIA A100-PCIE-40GB", 40960, "a100-40-pcie"),
        ("NVIDIA H100 80GB HBM3", 81559, "h100"),
        ("NVIDIA H200", 143771, "h200"),
        ("NVIDIA B200", 183359, "b200"),
        ("NVIDIA A100-SXM4-80GB", 81920, "a100"),
        ("NVIDIA L40S", 46068, "l40s"),
    ],
)
def test_a_gpu_is_known_by_the_driver_s_name(name: str, memory_mib: int, key: str) -> None:
    (found,) = parse_gpus(f"{name}, {memory_mib}\n")
    gpu = known_gpu(found)
    assert gpu is not None
    assert gpu.key == key


@pytest.mark.parametrize("line", ["NVIDIA GeForce RTX 3060, 12288", "NVIDIA H200, 70000", "Quadro K600, 1024"])
def test_a_gpu_that_is_not_in_the_catalogue_is_not_taken_for_another(line: str) -> None:
    (found,) = parse_gpus(line)
    assert known_gpu(found) is None


def test_a_box_of_equal_gpus_is_a_cluster_and_a_mixed_one_is_not() -> None:
    cluster = found_cluster(parse_gpus("NVIDIA H200, 143771\n" * 8))
    assert cluster is not None
    assert cluster.name == "8xh200"
    assert found_cluster(parse_gpus("NVIDIA H200, 143771\nNVIDIA L40S, 46068\n")) is None
    assert found_cluster(()) is None


def test_a_cluster_s_gpus_are_held_by_kind_and_count() -> None:
    gpus = parse_gpus("NVIDIA H200, 143771\n" * 8)
    assert holds(gpus, parse_cluster("8xh200"))
    assert holds(gpus, parse_cluster("4xh200"))
    assert not holds(gpus[:4], parse_cluster("8xh200"))
    assert not holds(gpus, parse_cluster("8xh100"))
    assert not holds((), parse_cluster("8xh200"))


def test_a_gpu_that_a_file_describes_is_held_by_the_driver_s_name() -> None:
    mine = replace(load_gpu("rtx-4090"), key="mine", name="NVIDIA RTX A6000")
    gpus = parse_gpus("NVIDIA RTX A6000, 49140\n" * 2)
    assert holds(gpus, Cluster(gpu=mine, gpus_per_node=2))
    assert not holds(gpus, Cluster(gpu=mine, gpus_per_node=4))
    assert not holds(gpus, parse_cluster("2xrtx-4090"))


def test_what_is_no_list_of_gpus_holds_none() -> None:
    assert parse_gpus("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n") == ()


def test_an_engine_s_version_is_asked_of_its_own_python(tmp_path: Path) -> None:
    package = tmp_path / "sglang-0.5.21.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.21\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    found = installed_engine((str(python), "-m", "sglang.launch_server"))
    assert found is not None
    assert (found.version, str(found.rules), found.is_known) == ("0.5.21", "0.5.21", True)


def test_the_version_of_a_command_that_is_no_python_cannot_be_told() -> None:
    assert installed_engine(("docker", "run", "x")) is None
    assert installed_engine((sys.executable, "-m", "something.else")) is None
    assert installed_engine(("/nowhere/python", "-m", "sglang.launch_server")) is None
