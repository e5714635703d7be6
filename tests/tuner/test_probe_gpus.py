"""What `nvidia-smi` says of GPUs. Its answers to our own queries are published nowhere: the rows are put together from
values that real machines printed, and a program of that name in front of the real one stands for a driver in trouble.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from search_spaces.errors import CannotRunError
from tuner.probe_gpus import GPU_QUERY, ask, parse_gpu_list, parse_processes, visible_gpus
from tuner.probe_machine import Machine, Nic, found_machine, port_rates

H200 = "{i}, GPU-{i}a5, NVIDIA H200, 143771, 4, 570.86.15, 9.0, Disabled, 700.00, 5, 16, 16"
LOST = "Unable to determine the device handle for GPU0000:07:00.0: Unknown Error"
"""https://github.com/pdbear/syno_nvidia_gpu_driver/issues/22."""


def rows(count: int) -> str:
    return "".join(H200.format(i=i) + "\n" for i in range(count))


def put_program(folder: Path, script: str) -> str:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def test_a_row_holds_what_the_driver_says_of_a_gpu():
    (gpu,) = parse_gpu_list(rows(1)).gpus
    assert (gpu.name, gpu.memory_mib, gpu.driver, gpu.sm) == ("NVIDIA H200", 143771, "570.86.15", 90)
    assert (gpu.power_limit_w, gpu.pcie_generation, gpu.pcie_lanes, gpu.has_mig) == (700.0, 5, 16, False)
    assert gpu.pcie_bytes_per_s == pytest.approx(63.0e9, rel=1e-3)


def test_what_a_driver_cannot_tell_is_not_known():
    # The words: https://github.com/enkore/i3pystatus/pull/850
    line = "0, GPU-1, NVIDIA GeForce RTX 4090, 24564, [N/A], 550.54, [Not Supported], [Unknown Error], ERR!, [N/A], 16, [N/A]"
    (gpu,) = parse_gpu_list(line).gpus
    assert (gpu.memory_used_mib, gpu.sm, gpu.has_mig, gpu.power_limit_w) == (None, None, False, None)
    assert (gpu.pcie_generation, gpu.pcie_lanes, gpu.pcie_bytes_per_s) == (None, 16, None)


def test_a_slot_with_fewer_lanes_than_the_card_counts():
    # https://github.com/noonghunna/club-3090/pull/44: "x4 lanes negotiated (GPU max x16, Gen up to 3)"
    line = "0, GPU-1, NVIDIA GeForce RTX 3090, 24576, 1, 595.58.03, 8.6, [N/A], 300.00, 3, 16, 4"
    (gpu,) = parse_gpu_list(line).gpus
    assert gpu.pcie_bytes_per_s == pytest.approx(3.94e9, rel=1e-2)


def test_a_gpu_that_fell_off_the_bus_is_a_fault_beside_the_others():
    listed = parse_gpu_list(rows(2) + LOST + "\n")
    assert len(listed.gpus) == 2
    assert listed.faults == (f"nvidia-smi says: {LOST}",)


@pytest.mark.parametrize(
    "line",
    [
        "[Unknown Error], GPU-1, NVIDIA H200, 143771, 4, 570.86.15",
        "0, GPU-1, NVIDIA H200, [N/A], 4, 570.86.15",
        "0, GPU-1, NVIDIA H200, nan, 4, 570.86.15",
        "0, GPU-1, [Unknown Error], 143771, 4, 570.86.15",
    ],
)
def test_a_gpu_without_its_name_or_memory_is_none(line):
    listed = parse_gpu_list(line)
    assert listed.gpus == ()
    assert len(listed.faults) == 1


def test_processes_are_counted_by_gpu():
    assert parse_processes("GPU-a, 255873, 33246\nGPU-a, 2, [N/A]\nGPU-b, 3, 5\n") == {"GPU-a": 2, "GPU-b": 1}
    assert parse_processes("No running processes found\n") == {}


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        (None, [0, 1, 2, 3]),
        ("2,0", [2, 0]),
        ("GPU-3a", [3]),
        ("1,-1,2", [1]),
        ("1,9", [1]),
        ("1,1", [1]),
        ("", []),
        ("GPU-", []),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(value, indices):
    # CUDA C++ Programming Guide, "CUDA Environment Variables": devices before the first invalid one are visible
    gpus = parse_gpu_list(rows(4)).gpus
    assert [gpu.index for gpu in visible_gpus(gpus, value)] == indices


def test_a_driver_that_does_not_answer_is_told_after_the_limit(tmp_path):
    program = put_program(tmp_path, "sleep 600; echo late")
    start = time.monotonic()
    answered = ask(GPU_QUERY, program=program, limit_s=0.2)
    assert time.monotonic() - start < 10
    assert "did not answer within 0.2 s" in answered.fault


def test_a_driver_that_fails_is_told_in_its_own_words(tmp_path):
    program = put_program(tmp_path, "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    answered = ask(GPU_QUERY, program=program)
    assert "ended with code 18: Failed to initialize NVML: Driver/library version mismatch" in answered.fault
    assert "not installed" in ask(GPU_QUERY, program=str(tmp_path / "none")).fault


@pytest.fixture
def only_program(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def test_an_old_driver_is_asked_for_less(only_program):
    put_program(
        only_program,
        'case "$1" in *compute_cap*) echo \'Field "compute_cap" is not a valid field to query.\'; exit 2;; '
        "--query-gpu*) echo '0, GPU-1, Tesla V100-PCIE-16GB, 16160, 0, 418.226.00';; *) exit 6;; esac",
    )
    machine = found_machine()
    assert [(gpu.name, gpu.sm) for gpu in machine.gpus] == [("Tesla V100-PCIE-16GB", None)]


def test_gpus_in_use_are_told_with_how_much_of_them(only_program):
    busy = H200.format(i=1).replace(" 4,", " 90000,")
    put_program(
        only_program,
        f'case "$1" in --query-gpu*) printf "{H200.format(i=0)}\\n{busy}\\n";; '
        '--query-compute*) echo "GPU-1a5, 77, 89000";; *) echo broken; exit 9;; esac',
    )
    machine = found_machine()
    told = "\n".join(machine.notes)
    assert "GPU 1 is in use (90000 MiB by 1 process)" in told
    assert "GPU 0" not in told
    assert "`nvidia-smi topo -m` ended with code 9: broken" in told
    assert machine.topology is None
    assert machine.has_peer_access is None


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 9", "ended with code 9: it said nothing"),
        (f"echo '{LOST}'; exit 2", "Unable to determine the device handle"),
        ("echo No devices were found; exit 6", "No devices were found"),
        (f"echo '{H200.format(i=0)}'", ""),
    ],
)
def test_a_machine_without_gpus_says_why_in_one_line(only_program, monkeypatch, script, said):
    put_program(only_program, script)
    if not said:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        said = "CUDA_VISIBLE_DEVICES= leaves none of 1"
    with pytest.raises(CannotRunError, match="no GPU to probe here") as refused:
        found_machine()
    assert said in str(refused.value)
    assert "--cpu-ranks" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_ports_of_a_nic_add_up_where_they_are_up(tmp_path):
    for port, (state, rate) in enumerate(
        [("4: ACTIVE", "400 Gb/sec (4X NDR)"), ("1: DOWN", "400 Gb/sec (4X NDR)"), ("4: ACTIVE", "2.5 Gb/sec (1X SDR)")]
    ):
        folder = tmp_path / "mlx5_0" / "ports" / str(port + 1)
        folder.mkdir(parents=True)
        (folder / "state").write_text(f"{state}\n")
        (folder / "rate").write_text(f"{rate}\n")
    assert port_rates(tmp_path / "mlx5_0") == pytest.approx(402.5e9 / 8)
    assert port_rates(tmp_path / "none") == 0


def test_a_gpu_s_share_is_of_the_nics_at_its_switch_where_there_are_such():
    gpus = parse_gpu_list(rows(4)).gpus
    beside = [Nic(name=f"mlx5_{i}", bytes_per_s=50e9, is_beside_gpu=True) for i in range(4)]
    storage = Nic(name="mlx5_9", bytes_per_s=25e9, is_beside_gpu=False)
    assert Machine(gpus=gpus, nics=(*beside, storage)).nic_bytes_per_s == 50e9
    assert Machine(gpus=gpus, nics=(storage,)).nic_bytes_per_s == 25e9 / 4
    assert Machine(gpus=gpus).nic_bytes_per_s is None
