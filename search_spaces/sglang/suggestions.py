"""The legal layouts nearest to one that is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations, product
from typing import Any

from search_spaces.hardware import Cluster
from search_spaces.layout import Layout

_SIZES = ("tp_size", "pp_size", "dp_size", "attn_dp_size", "attn_cp_size", "ep_size", "moe_dp_size")

_OTHERS: Mapping[str, tuple[Any, ...]] = {
    "moe_a2a_backend": ("none",),
    "moe_runner_backend": ("auto", "deep_gemm"),
    "deepep_mode": ("auto", "low_latency"),
    "moe_dense_tp_size": (None, 1),
    "mem_fraction_static": (0.9,),
    "chunked_prefill_size": (None,),
    "page_size": (None,),
    "cuda_graph_max_bs_decode": (None, 128),
    "max_running_requests": (None,),
    "enable_dp_lm_head": (False,),
    "ep_num_redundant_experts": (0,),
}

_MOST_CHANGES = 3


def nearest_legal(
    layout: Layout, cluster: Cluster, is_legal: Callable[[Layout], bool], *, limit: int = 3
) -> tuple[Layout, ...]:
    """Up to `limit` legal layouts with as few changed fields as possible.

    Among those, layouts that use as many GPUs as `layout` come first (or as the cluster has, where `layout`
    asks for more), then those whose sizes change least, in powers of two. Where more than three fields
    would have to change, plain tensor parallelism over the whole cluster takes the place of `layout`.
    """
    plain = Layout(tp_size=cluster.num_gpus, nnodes=cluster.num_nodes)
    if found := _nearest(layout, cluster, is_legal):
        return tuple(found[:limit])
    return (plain,) if is_legal(plain) else tuple(_nearest(plain, cluster, is_legal)[:limit])


def _nearest(layout: Layout, cluster: Cluster, is_legal: Callable[[Layout], bool]) -> list[Layout]:
    num_gpus = layout.num_gpus if 0 < layout.num_gpus <= cluster.num_gpus else cluster.num_gpus
    for changes in range(1, _MOST_CHANGES + 1):
        found = [near for near in _changed(layout, cluster, changes) if is_legal(near)]
        if found:
            return sorted(found, key=lambda near: (near.num_gpus != num_gpus, _distance(layout, near)))
    return []


def _changed(layout: Layout, cluster: Cluster, changes: int) -> Iterator[Layout]:
    """Layouts that differ from `layout` in exactly `changes` fields; more than two only in sizes."""
    sizes = _sizes(cluster.num_gpus)
    options: dict[str, tuple[Any, ...]] = dict.fromkeys(_SIZES, sizes)
    options["nnodes"] = tuple(sorted({1, cluster.num_nodes}))
    if changes < _MOST_CHANGES:
        options |= _OTHERS
    different = {
        name: tuple(value for value in values if value != getattr(layout, name)) for name, values in options.items()
    }
    for names in combinations(options, changes):
        for values in product(*(different[name] for name in names)):
            near = replace(layout, **dict(zip(names, values, strict=True)))
            if near.num_gpus <= cluster.num_gpus:
                yield near


def _sizes(num_gpus: int) -> tuple[int, ...]:
    """Divisors of `num_gpus` and the powers of two up to it."""
    powers = {2**exponent for exponent in range(num_gpus.bit_length())}
    return tuple(sorted(powers | {size for size in range(1, num_gpus + 1) if num_gpus % size == 0}))


def _distance(layout: Layout, near: Layout) -> float:
    return sum(abs(math.log2(max(getattr(near, name), 1) / max(getattr(layout, name), 1))) for name in _SIZES)
