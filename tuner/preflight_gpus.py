"""The GPUs of a host as a trial needs them: there, of the right kind, and with nobody's memory on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from search_spaces.hardware import Cluster
from tuner.detection import FoundGpu, holds
from tuner.probe_gpus import ANSWER_LIMIT_S, parse_gpu_list, visible_gpus
from tuner.servers.host import Host, HostError

_PROGRAM = "nvidia-smi"
_FORMAT = "--format=csv,noheader,nounits"
# The columns of an old driver's list, which `tuner.probe_gpus` reads, and behind them the place on the bus.
GPU_QUERY = (_PROGRAM, "--query-gpu=index,uuid,name,memory.total,memory.used,driver_version,pci.bus_id", _FORMAT)
PROCESS_QUERY = (_PROGRAM, "--query-compute-apps=gpu_uuid,pid,process_name,used_memory", _FORMAT)
FREE_MIB = 1024
"""A GPU is free that holds no more: the driver itself takes some, and a desktop or a monitor takes a few hundred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process with memory on a GPU. memory_mib: None where the driver does not say (in containers, under WDDM)."""

    pid: int
    name: str
    memory_mib: int | None

    def __str__(self) -> str:
        held = "" if self.memory_mib is None else f", {self.memory_mib} MiB"
        return f"pid {self.pid} ({self.name}{held})"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """pci_address: as nvidia-smi writes it. used_mib: None where the driver does not say."""

    index: int
    uuid: str
    name: str
    memory_mib: int
    used_mib: int | None
    pci_address: str
    holders: tuple[Holder, ...] = ()

    @property
    def is_free(self) -> bool:
        return (self.used_mib or 0) <= FREE_MIB

    @property
    def held(self) -> str:
        """How much is held, and by whom."""
        who = ", ".join(map(str, self.holders)) or "a process that nvidia-smi does not show from here"
        return f"GPU {self.index} ({self.name}) holds {self.used_mib} MiB: {who}"


class GpuFaultError(Exception):
    """The GPUs are not what a trial needs, in one line."""


def gpu_states(host: Host, cluster: Cluster, env: Mapping[str, str], first: int = 0) -> tuple[GpuState, ...]:
    """Those that a server of `cluster` will use: the first of the visible ones, from `first` on (--base-gpu-id).

    env: of the server, as far as it is known. Raises GpuFaultError where they are not there or not of the cluster's
    kind, and HostError.
    """
    listed = [line for line in _asked(host, GPU_QUERY).splitlines() if line.strip()]
    found = parse_gpu_list("\n".join(line.rpartition(",")[0] or line for line in listed))
    cells = [[cell.strip() for cell in line.split(",")] for line in listed]
    addresses = {each[1]: each[-1] for each in cells if len(each) > 1}
    visible = visible_gpus(found.gpus, env.get("CUDA_VISIBLE_DEVICES"))
    used = visible[first : first + cluster.gpus_per_node]
    if not holds([FoundGpu(name=gpu.name, memory_mib=gpu.memory_mib) for gpu in used], cluster):
        kinds = ", ".join(sorted({gpu.name for gpu in visible})) or "none"
        lost = f"; {'; '.join(found.faults)}" if found.faults else ""
        wanted = f"{cluster.gpus_per_node} GPUs of {cluster.gpu.name}"
        raise GpuFaultError(f"{wanted} are needed, and there are {len(visible)} ({kinds}){lost}")
    states = tuple(
        GpuState(
            index=gpu.index,
            uuid=gpu.uuid,
            name=gpu.name,
            memory_mib=gpu.memory_mib,
            used_mib=gpu.memory_used_mib,
            pci_address=addresses.get(gpu.uuid, ""),
        )
        for gpu in used
    )
    if all(state.is_free for state in states):
        return states
    holders = parse_holders(_asked(host, PROCESS_QUERY))
    return tuple(replace(state, holders=holders.get(state.uuid, ())) for state in states)


def parse_holders(output: str) -> Mapping[str, tuple[Holder, ...]]:
    """The answer to PROCESS_QUERY, by the GPU's uuid. A program's path may hold commas."""
    found: dict[str, tuple[Holder, ...]] = {}
    for line in output.splitlines():
        uuid, _, rest = line.partition(",")
        pid, _, rest = rest.partition(",")
        name, _, memory = rest.rpartition(",")
        if not pid.strip().isdigit():
            continue
        holder = Holder(pid=int(pid), name=name.strip(), memory_mib=int(memory) if memory.strip().isdigit() else None)
        found[uuid.strip()] = (*found.get(uuid.strip(), ()), holder)
    return found


def _asked(host: Host, words: Sequence[str]) -> str:
    try:
        answer = host.run(words, timeout_s=ANSWER_LIMIT_S)
    except HostError as error:
        if host.name:
            raise
        raise GpuFaultError(f"{error}: the driver is in trouble") from None
    except OSError as error:
        raise GpuFaultError(f"{_PROGRAM} cannot be started: {error.strerror}") from None
    if answer.code != 0:
        said = (answer.stdout + answer.stderr).decode(errors="replace").strip().partition("\n")[0] or "it said nothing"
        raise GpuFaultError(f"{_PROGRAM} ended with code {answer.code}: {said}")
    return answer.stdout.decode(errors="replace")
