"""What has to be in order on the hosts before a trial's server is started, and again after its end.

A fault here is one of the environment: nothing is started, and no layout is judged by it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from search_spaces.errors import UserError
from search_spaces.hardware import Cluster
from tuner.containers import PROGRAMS
from tuner.gpu_lock_side import FOLDER
from tuner.gpu_locks import locked_gpus
from tuner.preflight_gpus import GpuFaultError, GpuState, gpu_states
from tuner.preflight_model import model_fault
from tuner.preflight_room import room_of
from tuner.request import Request
from tuner.servers.host import Host, HostError, LocalHost

POLL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """hosts: one for each node; none where there is nothing to look at.

    cluster: what is to be found there. model_path: what `--model-path` gets; empty where only a container sees it.
    is_contained: the server runs in a container, whose shared memory and disks are its own.
    free_limit_s: how long GPU memory may take to come back after a server's end. retry_s: until what is amiss is looked
    at once more.
    """

    hosts: tuple[Host, ...] = ()
    cluster: Cluster | None = None
    model_path: str = ""
    extra_args: tuple[str, ...] = ()
    is_contained: bool = False
    free_limit_s: float = 60.0
    retry_s: float = 5.0
    lock_folder: str = FOLDER
    env: Mapping[str, str] = field(default_factory=dict)
    """Of a server on this machine; another's is not known here."""

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other tuners off the GPUs. Raises UserError where one holds them, or they cannot be asked."""
        with contextlib.ExitStack() as locks:
            for host in self.hosts:
                try:
                    uuids = [gpu.uuid for gpu in self._gpus(host)]
                except (GpuFaultError, HostError) as error:
                    raise UserError(_on(host, str(error))) from None
                locks.enter_context(locked_gpus(host, uuids, self.lock_folder))
            yield

    def fault(self, tell: Callable[[str], None] = lambda _: None) -> str:
        """What is amiss, in one line; empty where all is in order. What is amiss is looked at once more before.

        tell: hears of it before it is looked at again, and what may become a fault.
        """
        found = self._fault(tell)
        if not found:
            return ""
        tell(f"{found}; looking again in {self.retry_s:g} s")
        time.sleep(self.retry_s)
        return self._fault(lambda _: None)

    def left_behind(self) -> list[str]:
        """After a server's end: the GPUs whose memory has not come back within the limit, and who holds it."""
        left = []
        for host in self.hosts:
            try:
                occupied = self._occupied(host)
            except (GpuFaultError, HostError) as error:
                left.append(_on(host, str(error)))
                continue
            left += [_on(host, f"{gpu.held}, {self.free_limit_s:g} s after the server's end") for gpu in occupied]
        return left

    def pci_addresses(self) -> frozenset[str]:
        """Of the GPUs of this machine that servers use; empty where none are."""
        found = set()
        for host in self.hosts:
            if not host.name:
                with contextlib.suppress(GpuFaultError):
                    found |= {gpu.pci_address for gpu in self._gpus(host)}
        return frozenset(found)

    def _fault(self, tell: Callable[[str], None]) -> str:
        for host in self.hosts:
            try:
                found = self._of(host, tell)
            except (GpuFaultError, HostError, OSError) as error:
                found = str(error)
            if found:
                return _on(host, found)
        return ""

    def _of(self, host: Host, tell: Callable[[str], None]) -> str:
        assert self.cluster is not None
        if occupied := self._occupied(host):
            return "; ".join(gpu.held for gpu in occupied)
        if self.model_path and (missing := model_fault(host, self.model_path, self.extra_args)):
            return missing
        if self.is_contained:
            return ""
        room, num_ranks = room_of(host), self.cluster.gpus_per_node
        for notice in room.notices(num_ranks):
            tell(_on(host, notice))
        return "; ".join(room.faults(num_ranks))

    def _occupied(self, host: Host) -> Sequence[GpuState]:
        """Those that still hold memory after the time in which a server's end gives it back."""
        give_up_s = time.monotonic() + self.free_limit_s
        while True:
            occupied = [gpu for gpu in self._gpus(host) if not gpu.is_free]
            if not occupied or time.monotonic() > give_up_s:
                return occupied
            time.sleep(POLL_S)

    def _gpus(self, host: Host) -> tuple[GpuState, ...]:
        assert self.cluster is not None
        return gpu_states(host, self.cluster, {} if host.name else self.env, _first_gpu(self.extra_args))


NOTHING_TO_CHECK = Preflight()


def preflight_of(request: Request, hosts: Sequence[Host] = (LocalHost(),)) -> Preflight:
    """For the servers of `request`. A simulated engine uses no GPU and loads no model, and an engine on the CPU has no
    GPU to be free or locked: there is nothing to look at.
    """
    engine = request.engine
    if engine.is_simulated or request.cluster.gpu.is_cpu:
        return NOTHING_TO_CHECK
    is_contained = any(Path(word).name in PROGRAMS for word in engine.program)
    return Preflight(
        hosts=tuple(hosts),
        cluster=request.cluster,
        model_path="" if is_contained else request.model_path,
        extra_args=engine.extra_args,
        is_contained=is_contained,
        env=dict(os.environ),
    )


def _first_gpu(extra_args: Sequence[str]) -> int:
    """`--base-gpu-id` of the server."""
    for place, word in enumerate(extra_args):
        name, equals, value = word.partition("=")
        if name == "--base-gpu-id":
            number = value if equals else " ".join(extra_args[place + 1 : place + 2])
            return int(number) if number.isdigit() else 0
    return 0


def _on(host: Host, text: str) -> str:
    return f"{host.name}: {text}" if host.name else text
