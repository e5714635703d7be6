"""What `nvidia-smi` says of this machine's GPUs, each question with a limit: a driver in trouble does not answer."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

_PROGRAM = "nvidia-smi"
_FIELDS = (
    "index",
    "uuid",
    "name",
    "memory.total",
    "memory.used",
    "driver_version",
    "compute_cap",
    "mig.mode.current",
    "power.limit",
    "pcie.link.gen.max",
    "pcie.link.width.max",
    "pcie.link.width.current",
)
_OLD_FIELDS = ("index", "uuid", "name", "memory.total", "memory.used", "driver_version")
_FORMAT = "--format=csv,noheader,nounits"
GPU_QUERY = (f"--query-gpu={','.join(_FIELDS)}", _FORMAT)
OLD_GPU_QUERY = (f"--query-gpu={','.join(_OLD_FIELDS)}", _FORMAT)
PROCESS_QUERY = ("--query-compute-apps=gpu_uuid,pid,used_memory", _FORMAT)
TOPOLOGY_QUERY = ("topo", "-m")
PEER_QUERY = ("topo", "-p2p", "r")
ANSWER_LIMIT_S = 30.0

PCIE_BYTES_PER_S_BY_GENERATION = {
    generation: 16 * giga_transfers * 1e9 * payload / 8
    for generation, giga_transfers, payload in (
        (1, 2.5, 8 / 10),
        (2, 5.0, 8 / 10),
        (3, 8.0, 128 / 130),
        (4, 16.0, 128 / 130),
        (5, 32.0, 128 / 130),
        (6, 64.0, 242 / 256),
    )
}
"""Of sixteen lanes, one direction: transfers a second times the share of payload bits (PCI Express Base Specification:
8b/10b up to 2.0, 128b/130b from 3.0, FLIT mode of 6.0)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedGpu:
    """None where the driver does not say: `[N/A]`, `[Not Supported]`, `ERR!`, or not asked of an old one.

    pcie_lanes: as negotiated, which a narrow slot makes fewer than the card has.
    """

    index: int
    uuid: str
    name: str
    memory_mib: int
    memory_used_mib: int | None = None
    driver: str | None = None
    sm: int | None = None
    has_mig: bool = False
    power_limit_w: float | None = None
    pcie_generation: int | None = None
    pcie_lanes: int | None = None

    @property
    def pcie_bytes_per_s(self) -> float | None:
        of_sixteen = PCIE_BYTES_PER_S_BY_GENERATION.get(self.pcie_generation or 0)
        return None if of_sixteen is None or self.pcie_lanes is None else of_sixteen * self.pcie_lanes / 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """text: what was printed. fault: why there is no answer, or not a whole one; empty where all is well."""

    text: str
    fault: str = ""


def ask(words: Sequence[str], *, program: str = _PROGRAM, limit_s: float = ANSWER_LIMIT_S) -> Answered:
    """`nvidia-smi` with these words. A process that even SIGKILL does not end, asleep in the driver, is left to it."""
    if shutil.which(program) is None:
        return Answered(text="", fault=f"{program} is not installed")
    said = " ".join((program, *words))
    try:
        process = subprocess.Popen(
            [program, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return Answered(text="", fault=f"`{said}` cannot be started: {error.strerror}")
    try:
        text, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        _kill(process)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=2)
        return Answered(text="", fault=f"`{said}` did not answer within {limit_s:g} s: the driver is in trouble")
    except BaseException:
        _kill(process)
        raise
    if process.returncode == 0:
        return Answered(text=text)
    first = next((line.strip() for line in text.splitlines() if line.strip()), "it said nothing")
    return Answered(text=text, fault=f"`{said}` ended with code {process.returncode}: {first}")


def _kill(process: subprocess.Popen[str]) -> None:
    """With its children, where it is a script in front of the real one."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuList:
    """faults: one line for each GPU that could not be read, and for whatever else stood between them."""

    gpus: tuple[ProbedGpu, ...]
    faults: tuple[str, ...] = ()


def parse_gpu_list(output: str) -> GpuList:
    """The answer to GPU_QUERY, or to OLD_GPU_QUERY."""
    gpus, faults = [], []
    for line in filter(None, map(str.strip, output.splitlines())):
        cells = [cell.strip() for cell in line.split(",")]
        fields = next((fields for fields in (_FIELDS, _OLD_FIELDS) if len(fields) == len(cells)), None)
        gpu = None if fields is None else _gpu(dict(zip(fields, cells, strict=True)))
        if gpu is None:
            faults.append(f"nvidia-smi says: {line}")
        else:
            gpus.append(gpu)
    return GpuList(gpus=tuple(gpus), faults=tuple(faults))


def _gpu(cells: Mapping[str, str]) -> ProbedGpu | None:
    index, memory = _number(cells["index"]), _number(cells["memory.total"])
    if index is None or not memory or _number(cells["name"]) is not None or cells["name"].startswith("["):
        return None
    used = _number(cells["memory.used"])
    capability, generation = _number(cells.get("compute_cap")), _number(cells.get("pcie.link.gen.max"))
    lanes = _number(cells.get("pcie.link.width.current")) or _number(cells.get("pcie.link.width.max"))
    driver = cells["driver_version"]
    return ProbedGpu(
        index=int(index),
        uuid=cells["uuid"],
        name=cells["name"],
        memory_mib=int(memory),
        memory_used_mib=None if used is None else int(used),
        driver=driver if driver[:1].isdigit() else None,
        sm=None if capability is None else round(capability * 10),
        has_mig=cells.get("mig.mode.current") == "Enabled",
        power_limit_w=_number(cells.get("power.limit")),
        pcie_generation=None if generation is None else int(generation),
        pcie_lanes=None if lanes is None else int(lanes),
    )


def _number(cell: str | None) -> float | None:
    try:
        value = float(cell or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def parse_processes(output: str) -> Mapping[str, int]:
    """The answer to PROCESS_QUERY: how many processes compute on a GPU, by its uuid."""
    found: dict[str, int] = {}
    for line in output.splitlines():
        uuid, comma, _ = line.partition(",")
        if comma and uuid.strip().startswith(("GPU-", "MIG-")):
            found[uuid.strip()] = found.get(uuid.strip(), 0) + 1
    return found


def visible_gpus(gpus: Sequence[ProbedGpu], value: str | None) -> tuple[ProbedGpu, ...]:
    """Those that CUDA_VISIBLE_DEVICES=`value` leaves, by index or by the beginning of a uuid, up to the first that
    names none, as CUDA reads it. All where it is not set.
    """
    if value is None:
        return tuple(gpus)
    seen: list[ProbedGpu] = []
    for word in (each.strip() for each in value.split(",")):
        named = [
            gpu for gpu in gpus if word == str(gpu.index) or (word.startswith("GPU-") and gpu.uuid.startswith(word))
        ]
        if len(named) != 1 or named[0] in seen:
            break
        seen.append(named[0])
    return tuple(seen)
