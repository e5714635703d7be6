"""What a model is served on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class LinkKind(StrEnum):
    NVLINK = "nvlink"
    PCIE = "pcie"
    HOST = "host"
    """Ranks are processes on one host's CPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Datasheet facts of one accelerator. Efficiencies are fitted elsewhere and are no part of it.

    sm: compute capability times ten (Hopper 90, B200 100, RTX PRO 6000 120); 0 where there is none.
    memory_bytes: what the driver reports as the card's total.
    memory_bytes_per_s, *_flop_per_s: peak rates, dense (without sparsity); None where no source gives one.
    link_bytes_per_s: one direction, between two GPUs of a node.
    """

    key: str
    name: str
    sm: int
    memory_bytes: int
    memory_bytes_per_s: float
    bf16_flop_per_s: float
    fp8_flop_per_s: float | None
    fp4_flop_per_s: float | None
    link: LinkKind
    link_bytes_per_s: float
    source: str

    @property
    def is_cpu(self) -> bool:
        return self.link is LinkKind.HOST

    @property
    def memory_mib(self) -> int:
        return self.memory_bytes // 2**20


class Route(StrEnum):
    """The longest way between two GPUs of a node, as `nvidia-smi topo -m` tells it."""

    NVLINK = "nvlink"
    """NV#"""
    SWITCH = "pcie_switch"
    """PIX, PXB: PCIe switches only."""
    ROOT = "pcie_root"
    """PHB, NODE: through a CPU's host bridges."""
    SOCKETS = "pcie_sockets"
    """SYS: across the link between CPU sockets."""


class CollectiveOp(StrEnum):
    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    SEND_RECV = "send_recv"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCurve:
    """Latency of one collective on this very machine.

    backend: what ran it (`nccl`, `custom`, `gloo`). size_bytes: of the whole message of one rank, rising;
    seconds: one operation each.
    """

    op: CollectiveOp
    backend: str
    num_ranks: int
    size_bytes: tuple[int, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """How the GPUs of a cluster reach each other, where more is known of it than the datasheet's link.

    route: None where it is not known. has_peer_access: whether GPUs read each other's memory directly.
    nic_bytes_per_s: one direction, per GPU, between nodes. curves: measured here. source: who found it.
    """

    source: str
    route: Route | None = None
    has_peer_access: bool | None = None
    nic_bytes_per_s: float | None = None
    curves: tuple[MeasuredCurve, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal nodes of equal GPUs. fabric: None where only the datasheet speaks of its links."""

    gpu: Gpu
    gpus_per_node: int
    num_nodes: int = 1
    fabric: Fabric | None = None

    @property
    def num_gpus(self) -> int:
        return self.gpus_per_node * self.num_nodes

    @property
    def name(self) -> str:
        """The notation it is asked for by: `8xrtx-pro-6000`, `2x8xh200`."""
        nodes = f"{self.num_nodes}x" if self.num_nodes > 1 else ""
        return f"{nodes}{self.gpus_per_node}x{self.gpu.key}"
