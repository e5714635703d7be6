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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal nodes of equal GPUs."""

    gpu: Gpu
    gpus_per_node: int
    num_nodes: int = 1

    @property
    def num_gpus(self) -> int:
        return self.gpus_per_node * self.num_nodes

    @property
    def name(self) -> str:
        """The notation it is asked for by: `8xrtx-pro-6000`, `2x8xh200`."""
        nodes = f"{self.num_nodes}x" if self.num_nodes > 1 else ""
        return f"{nodes}{self.gpus_per_node}x{self.gpu.key}"
