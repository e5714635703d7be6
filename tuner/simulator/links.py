"""What GPUs need to talk to each other: latency plus bytes over a share of the link."""

from __future__ import annotations

from search_spaces.hardware import Cluster, LinkKind


class Links:
    """Collectives of one cluster.

    PCIe latencies follow NCCL 2.29 on eight RTX PRO 6000 (6 us on two GPUs, 13 on four, 25 on eight; 24 GB/s
    of bus bandwidth of 64); NVLink ones SGLang's custom all-reduce (about 9 us on eight H100).
    """

    def __init__(self, cluster: Cluster) -> None:
        self._gpus_per_node = cluster.gpus_per_node
        match cluster.gpu.link:
            case LinkKind.NVLINK:
                self._start_s, self._rank_s, share = 3e-6, 0.8e-6, 0.75
            case LinkKind.PCIE:
                self._start_s, self._rank_s, share = 2e-6, 3.2e-6, 0.387
            case LinkKind.HOST:
                self._start_s, self._rank_s, share = 200e-6, 100e-6, 0.5
        self._bytes_per_s = share * cluster.gpu.link_bytes_per_s

    def all_reduce_s(self, size_bytes: float, ranks: int) -> float:
        if ranks <= 1 or size_bytes == 0:
            return 0.0
        bus_bytes = 2.0 * size_bytes * (ranks - 1) / ranks
        return self._latency_s(ranks) + bus_bytes / self._rate(ranks)

    def all_to_all_s(self, size_bytes: float, ranks: int, copies: int) -> float:
        """Each rank sends `copies` of its rows to the experts (1 byte a value) and gets them back (2 bytes)."""
        if ranks <= 1:
            return 0.0
        sent_bytes = size_bytes * copies * (ranks - 1) / ranks * 1.5
        return 2.0 * self._latency_s(ranks) + sent_bytes / self._rate(ranks)

    def _latency_s(self, ranks: int) -> float:
        across_nodes_s = 20e-6 if ranks > self._gpus_per_node else 0.0
        return self._start_s + self._rank_s * (ranks - 1) + across_nodes_s

    def _rate(self, ranks: int) -> float:
        """Between nodes: 400 Gbit/s a GPU at the same share."""
        return min(self._bytes_per_s, 0.75 * 50e9) if ranks > self._gpus_per_node else self._bytes_per_s
