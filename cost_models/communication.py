"""Time of the messages that ranks exchange: all-reduce, expert all-to-all, pipeline hops.

All-reduces are read off measured curves (`collectives.json`), interpolated in log-log; groups and GPUs
without a curve fall back to a start-up time plus the bytes of a ring over the link.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files

from search_spaces.hardware import Cluster, Gpu, LinkKind

_SAME_FABRIC = {"rtx-pro-6000-ws": "rtx-pro-6000", "h20": "h200"}
"""GPUs that share PCIe 5.0 or NVLink 4 with one that was measured."""

_CROSS_NODE_START_S = 80e-6
"""What a small all-reduce takes longer over two nodes: DeepSeek-R1 on 2x 8 H100 with tp 16 was measured at
23.1 ms per token (https://github.com/tenstorrent/tt-inference-server/issues/356), 122 all-reduces each."""
_NIC_BYTES_PER_S = 50e9
"""One 400 Gbit/s adapter per GPU; a cluster's own figure is not known."""
_WIRE_EFFICIENCY = 0.8
_HOP_START_S = 30e-6
_ALL_TO_ALL_EFFICIENCY = 0.65
"""Of the link rate, DeepEP 0.5.12 in normal mode at 4096 tokens of 7168 on 8 H200 (0.69) and in low-latency
mode at 1024 (0.62 H200, 0.5 to 0.69 B200); github:ai-dynamo/aiconfigurator@095f58a5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Curve:
    """Seconds at sizes `first_bytes * 2**i`, as base-2 logarithms; never falling with the size."""

    first_bytes: int
    log2_s: tuple[float, ...]

    @property
    def last_bytes(self) -> int:
        return self.first_bytes << (len(self.log2_s) - 1)

    def seconds(self, size_bytes: float) -> float:
        """Interpolated; below the first point flat, beyond the last along the last slope."""
        place = max(0.0, math.log2(size_bytes / self.first_bytes))
        left = min(int(place), len(self.log2_s) - 2)
        a, b = self.log2_s[left : left + 2]
        return float(2.0 ** (a + (place - left) * (b - a)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ring:
    """start_s + start_per_rank_s * n + the ring's bytes over `efficiency` of the link rate."""

    start_s: float
    start_per_rank_s: float
    efficiency: float


_RINGS = {
    # Rounded from the curves: H200 and B200, RTX PRO 6000; host processes share memory, a nominal figure.
    LinkKind.NVLINK: _Ring(start_s=4e-6, start_per_rank_s=0.0, efficiency=0.8),
    LinkKind.PCIE: _Ring(start_s=0.0, start_per_rank_s=3.2e-6, efficiency=0.35),
    LinkKind.HOST: _Ring(start_s=10e-6, start_per_rank_s=10e-6, efficiency=0.5),
}
_ALL_TO_ALL_START_S = {
    # Either way of one exchange with few tokens, DeepEP low latency: 12 to 13 us on H200, 22 us on B200.
    LinkKind.NVLINK: 17e-6,
    LinkKind.PCIE: 40e-6,
    LinkKind.HOST: 40e-6,
}


@lru_cache(maxsize=65536)
def all_reduce_s(cluster: Cluster, num_ranks: int, size_bytes: float, *, is_custom_allowed: bool = True) -> float:
    """One all-reduce of `size_bytes` over `num_ranks` neighbouring ranks, in seconds.

    Inside a node the faster of SGLang's custom all-reduce and NCCL, as far as the engine offers the former.
    Across nodes, NCCL inside the node and a ring of one share over the network adapters on top.
    """
    if num_ranks <= 1 or size_bytes <= 0:
        return 0.0
    gpu = cluster.gpu
    local_ranks = min(num_ranks, cluster.gpus_per_node)
    num_nodes = math.ceil(num_ranks / local_ranks)
    is_custom = is_custom_allowed and num_nodes == 1
    local = _local_s(gpu, local_ranks, size_bytes, is_custom=is_custom) if local_ranks > 1 else 0.0
    if num_nodes == 1:
        return local
    share_bytes = size_bytes / local_ranks
    ring_bytes = 2 * (num_nodes - 1) / num_nodes * share_bytes
    return (
        local + _CROSS_NODE_START_S * math.log2(2 * num_nodes) / 2 + ring_bytes / (_WIRE_EFFICIENCY * _NIC_BYTES_PER_S)
    )


def all_to_all_s(cluster: Cluster, num_ranks: int, size_bytes: float) -> float:
    """One direction of an expert exchange in which each rank sends `size_bytes`, in seconds."""
    if num_ranks <= 1 or size_bytes <= 0:
        return 0.0
    rate = _ALL_TO_ALL_EFFICIENCY * cluster.gpu.link_bytes_per_s
    start = _ALL_TO_ALL_START_S[cluster.gpu.link]
    if num_ranks > cluster.gpus_per_node:
        rate = min(rate, _WIRE_EFFICIENCY * _NIC_BYTES_PER_S)
        start += _CROSS_NODE_START_S / 2
    return start + size_bytes * (num_ranks - 1) / num_ranks / rate


def hop_s(cluster: Cluster, size_bytes: float) -> float:
    """Handing `size_bytes` from one pipeline stage to the next, in seconds."""
    rate = cluster.gpu.link_bytes_per_s
    if cluster.num_nodes > 1:
        rate = min(rate, _NIC_BYTES_PER_S)
    return _HOP_START_S + size_bytes / (_WIRE_EFFICIENCY * rate)


def _local_s(gpu: Gpu, num_ranks: int, size_bytes: float, *, is_custom: bool) -> float:
    curves = _curves(gpu.key, num_ranks)
    if curves is None:
        ring = _RINGS[gpu.link]
        ring_bytes = 2 * (num_ranks - 1) / num_ranks * size_bytes
        return ring.start_s + ring.start_per_rank_s * num_ranks + ring_bytes / (ring.efficiency * gpu.link_bytes_per_s)
    seconds = curves["nccl"].seconds(size_bytes)
    custom = curves.get("custom")
    if is_custom and custom is not None and size_bytes <= custom.last_bytes:
        return min(seconds, custom.seconds(size_bytes))
    return seconds


@cache
def _curves(gpu_key: str, num_ranks: int) -> dict[str, _Curve] | None:
    """The curves of the smallest measured group that holds `num_ranks`."""
    groups = _all_curves().get(_SAME_FABRIC.get(gpu_key, gpu_key), {})
    sizes = [size for size in groups if size >= num_ranks]
    return groups[min(sizes)] if sizes else None


@cache
def _all_curves() -> dict[str, dict[int, dict[str, _Curve]]]:
    text = (files(__package__) / "collectives.json").read_text(encoding="utf-8")
    return {
        key: {
            int(size): {
                backend: _Curve(
                    first_bytes=points["first_bytes"],
                    log2_s=tuple(math.log2(us * 1e-6) for us in _never_falling(points["us"])),
                )
                for backend, points in backends.items()
            }
            for size, backends in gpu["groups"].items()
        }
        for key, gpu in json.loads(text)["gpus"].items()
    }


def _never_falling(values: list[float]) -> list[float]:
    """A larger message takes at least as long, so a point above a later one was measured with a hiccup."""
    lowest = math.inf
    envelope = []
    for value in reversed(values):
        lowest = min(lowest, value)
        envelope.append(lowest)
    return envelope[::-1]
