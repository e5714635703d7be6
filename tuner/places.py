"""Where servers run, from the words of the command line: this machine, hosts by ssh or a Slurm allocation; as processes
or as units of systemd.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from search_spaces.errors import UserError
from tuner.server_hosts import Named, check_named, check_python, ssh_host
from tuner.servers.guarded import GuardedLauncher
from tuner.servers.host import Host, HostError, LocalHost
from tuner.servers.local import LocalLauncher
from tuner.servers.nodes import Node, NodesLauncher
from tuner.servers.protocol import Launcher
from tuner.servers.slurm import Allocation, NoAllocationError, SlurmHost, SlurmLauncher, allocation_of
from tuner.servers.ssh_host import SshHost
from tuner.servers.systemd import NoSystemdError, systemd_on
from tuner.servers.wrapped import ContainerLauncher


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """hosts: machines reached by ssh, one for each node of the cluster; none for this one. slurm: the allocation whose
    nodes are taken. systemd: servers are its units.
    """

    hosts: tuple[str, ...] = ()
    slurm: Allocation | None = None
    systemd: bool = False

    @property
    def is_elsewhere(self) -> bool:
        return bool(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        return self.hosts if self.slurm is None else self.slurm.nodes

    @property
    def option(self) -> str:
        """As it was asked for."""
        return "--slurm" if self.slurm is not None else f"--host {self.hosts[0]}" if self.hosts else ""

    def check_named(self, named: Named, *, is_simulated: bool) -> None:
        """Raises UserError where something would have to be found out elsewhere."""
        if self.is_elsewhere:
            check_named(self.option, named, is_simulated=is_simulated)


def place_of(hosts: Sequence[str] | None, *, slurm: bool, systemd: bool) -> Place:
    """Raises UserError for words that exclude each other, outside of an allocation, and where no systemd is."""
    hosts = tuple(hosts or ())
    if not slurm:
        for host in hosts:
            ssh_host(host)
        if len(set(hosts)) != len(hosts):
            raise UserError("--host names a machine twice: each node of a cluster is one of its own")
        if systemd and not hosts:
            _as_units(LocalHost())  # whether it can be, before any work
        return Place(hosts=hosts, systemd=systemd)
    if hosts or systemd:
        raise UserError(f"--slurm and {'--host' if hosts else '--systemd'} exclude each other")
    try:
        return Place(slurm=allocation_of(os.environ))
    except NoAllocationError as error:
        raise UserError(f"--slurm: {error}") from None


def check_nodes(place: Place, num_nodes: int) -> Place:
    """num_nodes: of the cluster, which has to have a machine for each. A larger allocation lends its first nodes.

    Raises UserError.
    """
    if place.slurm is not None and len(place.slurm.nodes) >= num_nodes:
        kept = Allocation(job=place.slurm.job, nodes=place.slurm.nodes[:num_nodes])
        return Place(slurm=kept)
    if place.names and len(place.names) != num_nodes:
        has = "node" if num_nodes == 1 else "nodes"
        whose = f"job {place.slurm.job} has" if place.slurm is not None else "--host names"
        raise UserError(
            f"{whose} {len(place.names)} machines ({', '.join(place.names)}), and the cluster has {num_nodes} {has}: "
            "name one for each"
        )
    return place


@contextlib.contextmanager
def launcher_at(place: Place) -> Iterator[Launcher]:
    """Connects, and gives the connections back. Raises UserError where a machine cannot be reached or lacks what every
    server needs.
    """
    with contextlib.ExitStack() as stack:
        if place.slurm is not None:
            yield _joined([_slurm_node(place.slurm, node) for node in place.slurm.nodes])
        elif place.hosts:
            yield _joined([_ssh_node(destination, stack, systemd=place.systemd) for destination in place.hosts])
        elif place.systemd:
            yield GuardedLauncher(_as_units(LocalHost()))
        else:
            yield LocalLauncher()


def with_containers(launcher: Launcher) -> Launcher:
    """Able to end containers, on each node by itself."""
    return launcher if isinstance(launcher, NodesLauncher) else ContainerLauncher(launcher)


def _joined(nodes: Sequence[Node]) -> Launcher:
    return nodes[0].launcher if len(nodes) == 1 else NodesLauncher([_containing(node) for node in nodes])


def _containing(node: Node) -> Node:
    return Node(launcher=ContainerLauncher(node.launcher), address=node.address)


def _slurm_node(allocation: Allocation, name: str) -> Node:
    host = SlurmHost(allocation, name)
    try:
        check_python(host, "--slurm")
        address = host.address()
        if name == allocation.nodes[0]:
            host.reach(0)  # whether its servers can be asked from here
    except HostError as error:
        raise UserError(f"--slurm: {error}") from None
    return Node(launcher=SlurmLauncher(allocation, name), address=address)


def _ssh_node(destination: str, stack: contextlib.ExitStack, *, systemd: bool) -> Node:
    host = ssh_host(destination)
    stack.callback(host.close)
    check_python(host, "--host")
    return Node(launcher=GuardedLauncher(_as_units(host) if systemd else host), address=_address(host))


def _address(host: SshHost) -> str:
    """Under which the other nodes reach it: as far as is known, where ssh finds it."""
    try:
        return host.address()
    except (HostError, OSError) as error:
        raise UserError(f"--host: {error}") from None


def _as_units(host: Host) -> Host:
    try:
        return systemd_on(host)
    except NoSystemdError as error:
        where = f"on {host.name}" if host.name else "on this machine"
        raise UserError(f"--systemd: nothing {where} starts units: {error}") from None
