"""Time of the expert exchange: tokens go to the ranks of their experts (dispatch) and their results back (combine).

Sizes are the bytes that one rank sends: tokens x copies x values x bytes per value. A token is copied once for each of
its experts in low-latency mode, and once for each rank that it needs in normal mode; copies to the own rank count.
Inside a node the times of DeepEP are measured (`deepep.json`); other backends stand on them as a guess.
"""

from __future__ import annotations

import json
import math
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

from cost_models.communication import cross_node_s, local_all_to_all, nic_bytes_per_s, spans_nodes
from cost_models.curves import Curve, analytic, measured, slower_of
from search_spaces.hardware import Cluster, LinkKind

_MEASURED_BACKENDS = frozenset({"deepep", "deepep_v2"})
_TWO_MODES = frozenset({"deepep", "deepep_v2", "mori"})
"""Backends with a mode for many tokens besides that for few; the others have one for both."""
_SAME_FABRIC = {"h20": "h200"}
_LOW_LATENCY = "low_latency"
_NORMAL = "normal"

_NVLINK_START_S = 17e-6
_NVLINK_SHARE = 0.65
"""Where nothing was measured: DeepEP 0.5.12 starts at 12 us on H200 and 22 us on B200, and reaches 0.5 to 0.69 of
NVLink's rate (as bundled)."""

_LOW_LATENCY_START_S = 40e-6
_LOW_LATENCY_STEP_S = 5e-6
"""Over n nodes 40 + 5 log2 n us, then the share for other nodes at the adapter's rate: for 128 tokens of 7168 to eight
experts on 2, 8 and 32 nodes of 8 H800 that gives 118, 184 and 207 us to dispatch and 192, 312 and 349 us to combine;
DeepEP measured 118, 173 and 194, and 195, 314 and 360 (github:deepseek-ai/DeepEP@dd758caf:docs/legacy.md)."""
_NORMAL_NIC_SHARE = 0.9
"""Of the adapter's 50 GB/s: 43 on two nodes, 51 on eight (the same page)."""


@lru_cache(maxsize=1024)
def dispatch(
    cluster: Cluster, ep_size: int, backend: str, *, is_low_latency: bool, experts_per_token: int = 8
) -> Curve | None:
    """Tokens to their experts; None for one rank or without a backend."""
    mode = _mode(backend, is_low_latency=is_low_latency)
    return _exchange(cluster, ep_size, backend, _Way("dispatch", mode, experts_per_token))


@lru_cache(maxsize=1024)
def combine(
    cluster: Cluster, ep_size: int, backend: str, *, is_low_latency: bool, experts_per_token: int = 8
) -> Curve | None:
    """The experts' results back to their tokens; None for one rank or without a backend."""
    mode = _mode(backend, is_low_latency=is_low_latency)
    return _exchange(cluster, ep_size, backend, _Way("combine", mode, experts_per_token))


class _Way(NamedTuple):
    direction: str
    mode: str
    experts_per_token: int


def _mode(backend: str, *, is_low_latency: bool) -> str:
    return _LOW_LATENCY if is_low_latency or backend not in _TWO_MODES else _NORMAL


def _exchange(cluster: Cluster, ep_size: int, backend: str, way: _Way) -> Curve | None:
    if ep_size <= 1 or backend == "none":
        return None
    if spans_nodes(cluster, ep_size):
        curve = _across(cluster, ep_size, way, _inside(cluster, cluster.gpus_per_node, way))
    else:
        curve = _inside(cluster, ep_size, way)
    if backend in _MEASURED_BACKENDS:
        return curve
    return curve.as_guess(f"{backend} was not measured; as DeepEP: {curve.source}")


def _inside(cluster: Cluster, num_ranks: int, way: _Way) -> Curve:
    gpu = cluster.gpu
    if gpu.link is not LinkKind.NVLINK:
        return local_all_to_all(cluster, max(2, num_ranks))
    known = _measured(_SAME_FABRIC.get(gpu.key, gpu.key), way.mode, way.direction)
    others = (num_ranks - 1) / num_ranks
    if known is None:
        rate = _NVLINK_SHARE * gpu.link_bytes_per_s
        return analytic(lambda size: _NVLINK_START_S + others * size / rate, "an exchange over NVLink")
    curve, measured_ranks = known
    if num_ranks == measured_ranks:
        return curve
    # The own rank's share stays at home; it is larger in a smaller group.
    shrunk = others / ((measured_ranks - 1) / measured_ranks)
    return analytic(
        lambda size: curve.seconds(size * shrunk), f"{curve.source}, {measured_ranks} ranks for {num_ranks}"
    )


def _across(cluster: Cluster, ep_size: int, way: _Way, inside: Curve) -> Curve:
    num_nodes = math.ceil(ep_size / cluster.gpus_per_node)
    to_others = (num_nodes - 1) / num_nodes
    rate = nic_bytes_per_s(cluster)
    if way.mode == _LOW_LATENCY:
        start = _LOW_LATENCY_START_S + _LOW_LATENCY_STEP_S * math.log2(num_nodes)
        form = analytic(lambda size: start + to_others * size / rate, f"RDMA among {num_nodes} nodes")
    else:
        # A token crosses the network once for each node, and spreads there over NVLink.
        start = cross_node_s(num_nodes)
        once = _copies(num_nodes, way.experts_per_token) / _copies(ep_size, way.experts_per_token)
        share = to_others * once / _NORMAL_NIC_SHARE
        form = analytic(lambda size: start + share * size / rate, f"RDMA among {num_nodes} nodes, once per node")
    return slower_of(form, inside)


def _copies(num_places: int, experts_per_token: int) -> float:
    """Distinct places that a token's experts lie in, spread evenly."""
    return num_places * (1 - (1 - 1 / num_places) ** experts_per_token)


@cache
def _measured(gpu_key: str, mode: str, direction: str) -> tuple[Curve, int] | None:
    gpu = _tables()["gpus"].get(gpu_key)
    if gpu is None:
        return None
    points = gpu[mode][direction]
    sizes = [points["first_bytes"] * 2.0**i for i in range(len(points["us"]))]
    source = f"DeepEP {direction}, {mode}, {gpu['ranks']} {gpu_key} (github:ai-dynamo/aiconfigurator@095f58a5)"
    return measured(sizes, [us * 1e-6 for us in points["us"]], source), gpu["ranks"]


@cache
def _tables() -> Any:
    return json.loads((files(__package__) / "deepep.json").read_text(encoding="utf-8"))
