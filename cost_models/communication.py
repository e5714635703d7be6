"""Time of the messages that ranks exchange in step: all-reduce, all-gather, reduce-scatter, pipeline hops.

Each is a `Curve` over the size of the message. What was measured on this very machine wins over what was measured on
such GPUs elsewhere (`collectives.json`), and that over a formula: start + the bytes of a ring over a share of the
link's rate. Sizes are those of the whole tensor of one rank, before it is shared out or after it is put together.
Groups are of neighbouring ranks.
"""

from __future__ import annotations

import math
from functools import lru_cache

from cost_models.curves import Curve, analytic, geometric_mean, joined, measured, slower_of, sum_of
from cost_models.measured_links import CUSTOM, group_curve, hosts, largest_group
from search_spaces.hardware import Cluster, CollectiveOp, Gpu, LinkKind, MeasuredCurve, Route
from search_spaces.sglang.all_reduce import AllReducePath

MIB = 2**20
MEASURED_HERE = "measured here"
"""In the source of a curve that the cluster's own fabric holds."""

_CUSTOM_LIMIT_BYTES = 16 * MIB
"""Where SGLang's own all-reduce hands over to NCCL since 0.5.12 (environ.py:1535); 8 MiB before and on two GPUs
over PCIe (distributed/device_communicators/custom_all_reduce.py:42), where both take the same time."""
_PCIE_IPC_LIMIT_BYTES = 8 * MIB
"""512 requests of 8192 values: the widest decode batch of most launches, which bounds that path
(distributed/device_communicators/pcie_ipc_ar.py:34)."""

_START_S = {LinkKind.NVLINK: (4e-6, 2.0e-6), LinkKind.PCIE: (0.0, 3.1e-6), LinkKind.HOST: (0.0, 10e-6)}
"""Of a small all-reduce, and for each rank on top. Read off NCCL as bundled: on 2, 4 and 8 GPUs 6 to 10, 9 to 15
and 16 to 25 us over NVLink, 6 to 6.3, 12 to 13 and 22 to 25 us over PCIe. Processes of one host: a nominal figure."""
_ONE_ROUND = 0.7
"""Of that start, for a gather, a scatter or an exchange: 0.6 to 0.9 (as bundled)."""
_LINK_SHARE = {LinkKind.NVLINK: 0.7, LinkKind.PCIE: 0.4, LinkKind.HOST: 0.5}
"""Of the link's rate in a ring, as bundled: NVLink 0.6 to 0.78, and 1.0 where the switch adds up (eight H200); PCIe
0.39 to 0.41 on 4 and 8 RTX PRO 6000, and 0.4 on 4 RTX 4090 with peer access
(github.com/tinygrad/open-gpu-kernel-modules/pull/22); 0.05 to 0.16 on L40S without a good route."""
_SHARE_OF_TWO_ON_PCIE = 0.6
"""Two GPUs alone, 0.60 on RTX PRO 6000 and 0.63 on L40S."""
_WITHOUT_PEERS = 2.0
"""Bytes that go to host memory and from there to the other GPU take the link twice."""

_CROSS_NODE_START_S = 80e-6
"""What a small all-reduce takes longer over two nodes: DeepSeek-R1 on 2x 8 H100 with tp 16 was measured at
23.1 ms per token (https://github.com/tenstorrent/tt-inference-server/issues/356), 122 all-reduces each. Once for each
doubling of nodes: 160 us over four, where 4x 8 B200 over EFA took 330 us
(github:stas00/ml-engineering@744d01e1:network/README.md#L1400)."""
_NIC_BYTES_PER_S = 50e9
"""One 400 Gbit/s adapter per GPU, where a cluster does not tell its own."""
_WIRE_SHARE = 0.8
_HOP_START_S = 30e-6
"""A nominal figure: one NCCL send takes about 10 us, and the engine announces each tensor's shape before it."""
_PCIE_HOP_SHARE = 0.6

_RACK_GPUS = {"gb200": 72, "gb300": 72}
"""GPUs of several nodes that one NVLink switch connects."""

_SCATTER_NVLINK = 0.1
"""The same fabric measured twice, H100 against H200 and B200 against B300: 0.02 to 0.07 by operation and group, up to
0.2 at single sizes (as bundled)."""
_SCATTER_GUESSED = 0.35
"""The formula against the bundled collectives of 4 and 8 A100, H200, B200 and RTX PRO 6000: 0.15 to 0.5."""
_SCATTER_PCIE_PAIR = 0.3
_SCATTER_PCIE = 0.98
"""Eight RTX PRO 6000 at 32 KiB take NCCL 24.5, 30, 48 (26.2 with a graph of its own) and 336 us on four hosts
(`collectives.json`): three of them within a factor of two, the fourth ten times slower. So few say little of a
deviation: the root mean square about the bundled host is 0.98 at 14 KiB, one token of 7168 values, with each of the
five figures counted once, and 1.1 to 1.4 at 32 KiB, by what is counted. The least of these is taken, since an interval
of a factor 3 would not help to choose: docs/cost_model.md says what hangs on it."""
_SCATTER_SWITCHES = 0.3
_SCATTER_NODES = 0.7
"""The measured 330 us over four nodes against the formula's 160."""


@lru_cache(maxsize=4096)
def all_reduce(cluster: Cluster, num_ranks: int, path: AllReducePath = AllReducePath.NCCL) -> Curve | None:
    """One all-reduce by this path; None for one rank. Beyond the limit of a path NCCL goes on."""
    if num_ranks <= 1:
        return None
    nccl = _collective(cluster, num_ranks, CollectiveOp.ALL_REDUCE)
    if spans_nodes(cluster, num_ranks):
        return nccl if path is AllReducePath.NCCL else nccl.as_guess(f"{path} over several nodes; as {nccl.source}")
    match path:
        case AllReducePath.CUSTOM:
            curve = joined(_custom(cluster, num_ranks) or nccl, _CUSTOM_LIMIT_BYTES, nccl)
        case AllReducePath.FLASHINFER_FUSION | AllReducePath.MSCCLPP | AllReducePath.TORCH_SYMM_MEM:
            own = _custom(cluster, num_ranks) or nccl
            guess = own.as_guess(f"{path} was not measured; as {own.source}")
            curve = joined(guess, _CUSTOM_LIMIT_BYTES, nccl)
        case AllReducePath.PCIE_IPC:
            curve = joined(_pcie_ipc(cluster.gpu, num_ranks, nccl), _PCIE_IPC_LIMIT_BYTES, nccl)
        case AllReducePath.NCCL | AllReducePath.SHARED_MEMORY | AllReducePath.NONE:
            curve = nccl
    return curve


@lru_cache(maxsize=1024)
def all_gather(cluster: Cluster, num_ranks: int) -> Curve | None:
    """Every rank gets all parts of a tensor; its size is that of the whole. None for one rank."""
    return None if num_ranks <= 1 else _collective(cluster, num_ranks, CollectiveOp.ALL_GATHER)


@lru_cache(maxsize=1024)
def reduce_scatter(cluster: Cluster, num_ranks: int) -> Curve | None:
    """Every rank gets its part of the sum of a tensor; its size is that of the whole. None for one rank."""
    return None if num_ranks <= 1 else _collective(cluster, num_ranks, CollectiveOp.REDUCE_SCATTER)


@lru_cache(maxsize=1024)
def hop(cluster: Cluster, *, crosses_nodes: bool) -> Curve:
    """Handing a tensor from one pipeline stage to the next."""
    gpu = cluster.gpu
    if crosses_nodes and cluster.num_gpus > _RACK_GPUS.get(gpu.key, 0):
        rate = _WIRE_SHARE * min(nic_bytes_per_s(cluster), gpu.link_bytes_per_s)
        return analytic(lambda size: _HOP_START_S + _CROSS_NODE_START_S / 4 + size / rate, "a hop over the network")
    share = _PCIE_HOP_SHARE if gpu.link is LinkKind.PCIE else _WIRE_SHARE
    rate = share * gpu.link_bytes_per_s / (1.0 if _has_peer_access(cluster) else _WITHOUT_PEERS)
    form = analytic(lambda size: _HOP_START_S + size / rate, "a hop over the link between two GPUs")
    here = _found_here(cluster, 2, CollectiveOp.SEND_RECV, None)
    return form if here is None else _here(here, form)


def path_uncertainty(path: AllReducePath, cluster: Cluster, num_ranks: int) -> float:
    """Standard deviation of the logarithm of a collective's time between hosts, as far as nothing here was measured.

    Read off the scatter of published measurements of one kind of GPU on different machines; it does not stand for
    what layouts or models do. Small where this machine was measured or NVLink leaves no room for differences,
    large where more than two GPUs share PCIe: there the route, peer access and NCCL's own choice decide.
    """
    if num_ranks <= 1:
        return 0.0
    backend = CUSTOM if path is AllReducePath.CUSTOM else None
    if _found_here(cluster, num_ranks, CollectiveOp.ALL_REDUCE, backend) is not None:
        return _SCATTER_NVLINK
    if spans_nodes(cluster, num_ranks):
        return _SCATTER_NODES
    curve = all_reduce(cluster, num_ranks, path)
    guessed = 0.0 if curve is None or curve.is_measured else _SCATTER_GUESSED
    if cluster.gpu.link is not LinkKind.PCIE:
        return max(_SCATTER_NVLINK, guessed)
    if num_ranks == 2:
        return max(_SCATTER_PCIE_PAIR, guessed)
    is_switched = cluster.fabric is not None and cluster.fabric.route is Route.SWITCH
    return max(_SCATTER_SWITCHES, guessed) if is_switched else _SCATTER_PCIE


def nic_bytes_per_s(cluster: Cluster) -> float:
    """One direction, per GPU, between nodes."""
    fabric = cluster.fabric
    return _NIC_BYTES_PER_S if fabric is None or fabric.nic_bytes_per_s is None else fabric.nic_bytes_per_s


def cross_node_s(num_nodes: int) -> float:
    """What a collective over `num_nodes` nodes starts with, on top of that inside a node."""
    return _CROSS_NODE_START_S * math.log2(num_nodes) if num_nodes > 1 else 0.0


def local_all_to_all(cluster: Cluster, num_ranks: int) -> Curve:
    """NCCL's exchange of parts among the ranks of one node; the size is that of all parts that one rank sends."""
    return _inside(cluster, num_ranks, CollectiveOp.ALL_TO_ALL)


def spans_nodes(cluster: Cluster, num_ranks: int) -> bool:
    """Whether the group leaves what one link connects: a node, or a rack with one NVLink switch."""
    return num_ranks > max(cluster.gpus_per_node, _RACK_GPUS.get(cluster.gpu.key, 0))


def _collective(cluster: Cluster, num_ranks: int, op: CollectiveOp) -> Curve:
    """NCCL's, inside a node or across nodes."""
    if not spans_nodes(cluster, num_ranks):
        return _inside(cluster, num_ranks, op)
    local_ranks = cluster.gpus_per_node
    num_nodes = math.ceil(num_ranks / local_ranks)
    rounds = 2 if op is CollectiveOp.ALL_REDUCE else 1
    start = cross_node_s(num_nodes) * rounds / 2
    rate = _WIRE_SHARE * nic_bytes_per_s(cluster)
    share = rounds * (num_nodes - 1) / num_nodes / local_ranks
    between = analytic(lambda size: start + share * size / rate, f"a ring over {num_nodes} nodes")
    return between if local_ranks == 1 else sum_of(_inside(cluster, local_ranks, op), between)


def _inside(cluster: Cluster, num_ranks: int, op: CollectiveOp) -> Curve:
    known = _bundled(cluster, num_ranks, op)
    here = _found_here(cluster, num_ranks, op, None)
    return known if here is None else _here(here, known)


def _bundled(cluster: Cluster, num_ranks: int, op: CollectiveOp) -> Curve:
    """What is known of such GPUs: measured, measured on hosts of this topology, or the formula."""
    gpu = cluster.gpu
    curve = group_curve(gpu.key, op.value, num_ranks)
    if curve is None:
        form = _ring(cluster, num_ranks, op)
        largest = largest_group(gpu.key, op.value)
        widest = group_curve(gpu.key, op.value, largest) if largest else None
        return form if widest is None else slower_of(widest.as_guess(f"{widest.source}, stretched by a ring"), form)
    if gpu.link is not LinkKind.PCIE or num_ranks <= 2:
        return curve if _has_peer_access(cluster) else slower_of(curve, _ring(cluster, num_ranks, op))
    return _on_route(cluster, num_ranks, op, curve)


def _on_route(cluster: Cluster, num_ranks: int, op: CollectiveOp, usual: Curve) -> Curve:
    """More than two GPUs on PCIe: what hosts of this topology measured, in proportion to the bundled host.

    Where no topology is told, the bundled host stands for all; `path_uncertainty` says how far others are from it.
    """
    fabric = cluster.fabric
    route = None if fabric is None else fabric.route
    found = []
    for host in hosts(cluster.gpu.key):
        if host.route is route and not host.is_tuned and CollectiveOp.ALL_REDUCE.value in host.series:
            shape = group_curve(cluster.gpu.key, CollectiveOp.ALL_REDUCE.value, host.num_ranks)
            found.append((measured(*host.series["all_reduce"], host.source, shape=shape), shape, host))
    if found:
        curves = [_in_proportion(usual, own, shape) for own, shape, _ in found if shape is not None]
        usual = geometric_mean(curves, "; ".join(host.source for *_, host in found))
        if num_ranks != found[0][2].num_ranks or op is not CollectiveOp.ALL_REDUCE:
            usual = usual.as_guess(usual.source)
    return usual if _has_peer_access(cluster) else slower_of(usual, _ring(cluster, num_ranks, op))


def _in_proportion(usual: Curve, own: Curve, shape: Curve) -> Curve:
    """`usual`, as many times as slow as `own` is against `shape`."""
    parts = zip(usual.log2_s, own.log2_s, shape.log2_s, strict=True)
    values, lowest = [], math.inf
    for a, b, c in reversed(list(parts)):
        lowest = min(lowest, a + b - c)
        values.append(lowest)
    return Curve(log2_s=tuple(values[::-1]), is_measured=True, source=own.source)


def _ring(cluster: Cluster, num_ranks: int, op: CollectiveOp) -> Curve:
    """A start per rank + the ring's bytes over a share of the link's rate: once around to gather, twice to reduce."""
    gpu = cluster.gpu
    rounds = 2 if op is CollectiveOp.ALL_REDUCE else 1
    share = _SHARE_OF_TWO_ON_PCIE if gpu.link is LinkKind.PCIE and num_ranks == 2 else _LINK_SHARE[gpu.link]
    rate = share * gpu.link_bytes_per_s / (1.0 if _has_peer_access(cluster) else _WITHOUT_PEERS)
    fixed, per_rank = _START_S[gpu.link]
    start = (fixed + per_rank * num_ranks) * (1.0 if rounds > 1 else _ONE_ROUND)
    around = rounds * (num_ranks - 1) / num_ranks
    return analytic(lambda size: start + around * size / rate, f"a ring over {num_ranks} ranks on {gpu.link.value}")


def _custom(cluster: Cluster, num_ranks: int) -> Curve | None:
    """SGLang's own all-reduce, as far as it was measured for such a link and group."""
    known = group_curve(cluster.gpu.key, CUSTOM, num_ranks)
    here = _found_here(cluster, num_ranks, CollectiveOp.ALL_REDUCE, CUSTOM)
    if here is None:
        return known
    return _here(here, known or _inside(cluster, num_ranks, CollectiveOp.ALL_REDUCE))


def _pcie_ipc(gpu: Gpu, num_ranks: int, nccl: Curve) -> Curve:
    """The one host on which FlashInfer's PCIe kernels were timed, eight ranks."""
    for host in hosts(gpu.key):
        if AllReducePath.PCIE_IPC.value in host.series:
            curve = measured(*host.series[AllReducePath.PCIE_IPC.value], host.source, shape=nccl)
            return curve if num_ranks == host.num_ranks else curve.as_guess(f"{host.source}, {host.num_ranks} ranks")
    return nccl.as_guess(f"pcie_ipc was not measured; as NCCL: {nccl.source}")


def _found_here(cluster: Cluster, num_ranks: int, op: CollectiveOp, backend: str | None) -> MeasuredCurve | None:
    """What was measured on this machine for the group, or the smallest larger one. backend: None for NCCL and gloo."""
    if cluster.fabric is None or spans_nodes(cluster, num_ranks):
        return None
    fitting = [
        curve
        for curve in cluster.fabric.curves
        if curve.op is op and curve.num_ranks >= num_ranks and (curve.backend == CUSTOM) == (backend == CUSTOM)
    ]
    return min(fitting, key=lambda curve: curve.num_ranks, default=None)


def _here(found: MeasuredCurve, shape: Curve) -> Curve:
    source = f"{found.op} over {found.num_ranks} ranks by {found.backend}, {MEASURED_HERE}"
    return measured(found.size_bytes, found.seconds, source, shape=shape)


def _has_peer_access(cluster: Cluster) -> bool:
    return cluster.fabric is None or cluster.fabric.has_peer_access is not False
