"""What `tune probe` measures on: this machine's GPUs as one node of a cluster, or ranks on its CPUs."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import asdict, dataclass, replace
from typing import Any

from search_spaces.errors import CannotRunError, MalformedError
from search_spaces.hardware import Fabric, Gpu, LinkKind, Route
from tuner.detection import FoundGpu, known_gpu
from tuner.probe_machine import Machine, found_machine
from tuner.probe_text import lines_of_machine

_MOST_CPU_RANKS = 64
_NEEDED = ("sm", "memory_bytes_per_s", "bf16_flop_per_s", "link_bytes_per_s")
"""Of a GPU; the driver does not tell all of them."""

_NARROW = 0.9
"""A link below this share of the datasheet's is another link: a slot with fewer lanes, an older generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """gpu: a name of the catalogue, or what is known of one that is not in it, or differs. lines: for people."""

    num_gpus: int
    is_on_gpus: bool
    fabric: Fabric
    gpu: str | dict[str, Any]
    details: dict[str, Any]
    notes: tuple[str, ...]
    lines: tuple[str, ...]

    @property
    def has_unknown_facts(self) -> bool:
        return not isinstance(self.gpu, str) and any(self.gpu[name] is None for name in _NEEDED)


def gpus_here() -> Subject:
    """Raises CannotRunError where there is none, or where they are no cluster."""
    machine = found_machine()
    _refuse_what_is_no_cluster(machine)
    first = machine.gpus[0]
    known = known_gpu(FoundGpu(name=first.name, memory_mib=first.memory_mib))
    route = machine.topology.worst_route if machine.topology else None
    driver = f", driver {first.driver}" if first.driver else ""
    gpu, notes = _unknown(machine, route) if known is None else _as_linked(known, machine)
    return Subject(
        num_gpus=len(machine.gpus),
        is_on_gpus=True,
        fabric=Fabric(
            source=f"tune probe, {dt.datetime.now(dt.UTC).date()}: {len(machine.gpus)}x {first.name}{driver}",
            route=route,
            has_peer_access=machine.has_peer_access,
            nic_bytes_per_s=machine.nic_bytes_per_s,
        ),
        gpu=gpu,
        details=_details(machine),
        notes=(*machine.notes, *notes),
        lines=lines_of_machine(machine, known.key if known else None),
    )


def ranks_on_cpus(count: int) -> Subject:
    if not 2 <= count <= _MOST_CPU_RANKS:
        raise MalformedError(f"--cpu-ranks is a count from 2 to {_MOST_CPU_RANKS} (got {count})")
    said = f"{count} ranks on this host's CPUs: no GPU is measured"
    return Subject(
        num_gpus=count,
        is_on_gpus=False,
        fabric=Fabric(source=f"tune probe, {dt.datetime.now(dt.UTC).date()}: {said}"),
        gpu="cpu",
        details={},
        notes=(),
        lines=(said,),
    )


def _refuse_what_is_no_cluster(machine: Machine) -> None:
    names = [gpu.name for gpu in machine.gpus]
    if len(machine.kinds) > 1:
        told = ", ".join(f"{names.count(kind)}x {kind}" for kind in machine.kinds)
        raise CannotRunError(
            f"GPUs of several kinds are no cluster: {told}; CUDA_VISIBLE_DEVICES leaves those of one kind"
        )
    divided = [str(gpu.index) for gpu in machine.gpus if gpu.has_mig]
    if divided:
        raise CannotRunError(
            f"GPU {', '.join(divided)} is divided by MIG: its slices reach no other GPU, so no model can be split over "
            "them; CUDA_VISIBLE_DEVICES leaves the other GPUs, `nvidia-smi -mig 0` makes it whole"
        )


def _as_linked(known: Gpu, machine: Machine) -> tuple[str | dict[str, Any], tuple[str, ...]]:
    """A GPU of the catalogue, with the PCIe link that it really has where that is slower; and what to say of it."""
    rate = _slowest_pcie(machine)
    if known.link is not LinkKind.PCIE or rate is None or rate >= _NARROW * known.link_bytes_per_s:
        return known.key, ()
    note = (
        f"PCIe gives {rate / 1e9:.3g} GB/s here, where {known.name} can do {known.link_bytes_per_s / 1e9:.3g}: "
        "see generation and lanes of each GPU"
    )
    return asdict(replace(known, link_bytes_per_s=rate, source=f"{known.source}; link: tune probe")), (note,)


def _unknown(machine: Machine, route: Route | None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What is known of a GPU that the catalogue does not hold, by the names of `Gpu`; and what is missing."""
    gpu = machine.gpus[0]
    is_nvlink = route is Route.NVLINK
    facts = {
        "key": re.sub(r"[^a-z0-9]+", "-", gpu.name.lower().removeprefix("nvidia ")).strip("-"),
        "name": gpu.name,
        "source": "tune probe; rates by hand",
        "sm": gpu.sm,
        "memory_bytes": gpu.memory_mib * 2**20,
        "memory_bytes_per_s": None,
        "bf16_flop_per_s": None,
        "fp8_flop_per_s": None,
        "fp4_flop_per_s": None,
        "link": str(LinkKind.NVLINK if is_nvlink else LinkKind.PCIE),
        "link_bytes_per_s": None if is_nvlink else _slowest_pcie(machine),
    }
    missing = ", ".join(name for name in _NEEDED if facts[name] is None)
    return facts, (f"{gpu.name} is not in the catalogue: its {missing} have to be filled in by hand in the file",)


def _slowest_pcie(machine: Machine) -> float | None:
    return min((gpu.pcie_bytes_per_s for gpu in machine.gpus if gpu.pcie_bytes_per_s is not None), default=None)


def _details(machine: Machine) -> dict[str, Any]:
    """For people; nothing that tells one machine of a kind from another."""
    topology = machine.topology
    return {
        "gpus": [{name: value for name, value in asdict(gpu).items() if name != "uuid"} for gpu in machine.gpus],
        "links": [] if topology is None else [list(pair) for pair in topology.pairs],
        "nics": [asdict(nic) for nic in machine.nics],
    }
