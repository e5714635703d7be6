"""This machine's GPUs and links, as far as driver and kernel tell of them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from search_spaces.errors import CannotRunError
from tuner.probe_gpus import (
    GPU_QUERY,
    OLD_GPU_QUERY,
    PEER_QUERY,
    PROCESS_QUERY,
    TOPOLOGY_QUERY,
    ProbedGpu,
    ask,
    parse_gpu_list,
    parse_processes,
    visible_gpus,
)
from tuner.probe_topology import Topology, parse_peer_access, parse_topology, peer_access_of

_INFINIBAND = Path("/sys/class/infiniband")
_RATE = re.compile(r"\s*(?P<giga>\d+(?:\.\d+)?) Gb/sec")
_BUSY_MIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """bytes_per_s: one direction, of all its ports that are up."""

    name: str
    bytes_per_s: float
    is_beside_gpu: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """gpus: those that CUDA_VISIBLE_DEVICES leaves. notes: what a reader of the figures has to know, a line each."""

    gpus: tuple[ProbedGpu, ...]
    topology: Topology | None = None
    has_peer_access: bool | None = None
    nics: tuple[Nic, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the GPUs, the most frequent first."""
        names = [gpu.name for gpu in self.gpus]
        return tuple(sorted(set(names), key=lambda name: (-names.count(name), name)))

    @property
    def nic_bytes_per_s(self) -> float | None:
        """One direction, per GPU: of the NICs at a GPU's own switch, or of all where none is."""
        beside = [nic for nic in self.nics if nic.is_beside_gpu] or list(self.nics)
        return sum(nic.bytes_per_s for nic in beside) / len(self.gpus) if beside else None


def found_machine() -> Machine:
    """Raises CannotRunError where there is no GPU; the line says what was asked and what it answered."""
    answer = ask(GPU_QUERY)
    listed = parse_gpu_list(answer.text)
    if not listed.gpus and "not a valid field" in answer.text:
        answer = ask(OLD_GPU_QUERY)
        listed = parse_gpu_list(answer.text)
    if not listed.gpus:
        raise CannotRunError(_no_gpu(answer.fault or next(iter(listed.faults), "nvidia-smi lists none")))
    limit = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible_gpus(listed.gpus, limit)
    if not gpus:
        raise CannotRunError(_no_gpu(f"CUDA_VISIBLE_DEVICES={limit} leaves none of {len(listed.gpus)}"))
    notes = [*(listed.faults or filter(None, [answer.fault]))]
    if len(gpus) < len(listed.gpus):
        notes.append(f"CUDA_VISIBLE_DEVICES={limit} leaves {len(gpus)} of {len(listed.gpus)} GPUs")
    topology = None
    access = None
    if len(gpus) > 1:
        matrix, peers = ask(TOPOLOGY_QUERY), ask(PEER_QUERY)
        whole = parse_topology(matrix.text)
        topology = None if whole is None else whole.of([gpu.index for gpu in gpus])
        access = peer_access_of([f"GPU{gpu.index}" for gpu in gpus], parse_peer_access(peers.text))
        if topology is None or topology.worst_route is None:
            notes.append(
                f"how the GPUs reach each other is not known: {matrix.fault or 'nvidia-smi topo -m is silent'}"
            )
        if access is None:
            notes.append(f"peer access is not known: {peers.fault or 'nvidia-smi topo -p2p r is silent'}")
    return Machine(
        gpus=gpus,
        topology=topology,
        has_peer_access=access,
        nics=_nics(topology),
        notes=(*notes, *_busy(gpus)),
    )


def _no_gpu(why: str) -> str:
    return f"no GPU to probe here: {why}; --cpu-ranks N measures N ranks on this host's CPUs"


def _busy(gpus: Sequence[ProbedGpu]) -> list[str]:
    processes = parse_processes(ask(PROCESS_QUERY).text)
    notes = []
    for gpu in gpus:
        working, used = processes.get(gpu.uuid, 0), gpu.memory_used_mib or 0
        if working or used > _BUSY_MIB:
            by = f" by {working} process{'' if working == 1 else 'es'}" if working else ""
            notes.append(f"GPU {gpu.index} is in use ({used} MiB{by}): what is measured now is slower than it can be")
    return notes


def _nics(topology: Topology | None) -> tuple[Nic, ...]:
    names = (
        topology.nics
        if topology and topology.nics
        else sorted(each.name for each in _INFINIBAND.glob("*"))  # one GPU: there is no matrix
    )
    beside = topology.nics_beside_gpus if topology else ()
    rates = {name: port_rates(_INFINIBAND / name) for name in names}
    return tuple(Nic(name=name, bytes_per_s=rates[name], is_beside_gpu=name in beside) for name in names if rates[name])


def port_rates(device: Path) -> float:
    """Bytes a second of a NIC's ports that are up, from `/sys/class/infiniband/DEVICE`; 0 where it is none."""
    total = 0.0
    for port in sorted(device.glob("ports/*")):
        try:
            is_up = "ACTIVE" in (port / "state").read_text()
            rate = _RATE.match((port / "rate").read_text())
        except OSError:
            continue
        if is_up and rate:
            total += float(rate["giga"]) * 1e9 / 8
    return total
