"""The legal layouts nearest to one that is refused."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import count, product
from typing import Any

from search_spaces.hardware import Cluster
from search_spaces.layout import Layout

Progress = Callable[[Layout], float | None]
"""How far a layout gets: the place, in the engine's order, of the first rule that it breaks; None where it is legal."""

_MOST_CHANGES = 3
_MOST_FIELDS = 4
_MOST_JUDGED = 240
_REACH = 2.0
"""Nothing that costs this much more than the nearest is offered beside it."""

_ADDED, _TAKEN, _DROPPED = 1.0, 1.5, 2.0
"""What it costs to set what was left open, to change what was asked for, and to leave it to the engine."""
_PER_DOUBLING = 0.25
_DRAGGED_ALONG = 0.5
_PERCENT = 100
_OTHER_GPU_COUNT = 1.5

_SIZED = frozenset({"shape", "attn_dp_size", "attn_cp_size", "ep_size", "moe_dp_size"})
"""What several values are offered of; of other flags the nearest alone."""

_OUTER_SIZES = ("tp_size", "pp_size", "dp_size")
_INNER_SIZES = ("attn_dp_size", "attn_cp_size", "ep_size", "moe_dp_size")

_DEFAULT = Layout()

_REMEDIES: tuple[tuple[tuple[str, Any], float], ...] = (
    (("moe_a2a_backend", "deepep"), 1.0),
    (("moe_dense_tp_size", 1), 0.0),
    (("moe_runner_backend", "flashinfer_cutlass"), 0.25),
    (("moe_runner_backend", "deep_gemm"), 0.5),
    (("moe_runner_backend", "triton"), 0.5),
    (("deepep_mode", "low_latency"), 0.0),
    (("cuda_graph_max_bs_decode", 128), 0.25),
    (("cuda_graph_max_bs_decode", 64), 0.5),
    (("mem_fraction_static", 0.8), 0.5),
    (("mem_fraction_static", 0.85), 0.25),
    (("mem_fraction_static", 0.9), 0.0),
    (("mem_fraction_static", 0.94), 0.25),
    (("chunked_prefill_size", 8192), 0.0),
    (("chunked_prefill_size", 4096), 0.25),
    (("cp_strategy", "zigzag"), 0.0),
    (("cp_strategy", "interleave"), 0.25),
    (("ep_dispatch_algorithm", "dynamic"), 0.0),
    (("kv_cache_dtype", "fp8_e4m3"), 0.25),
)
"""Values that cure a refusal, beside the sizes and the engine's own defaults, with what they cost on top.

Of the all-to-all backends the one that most installations have; none of another maker's hardware.
"""

_ALL_OR_NONE = (
    (
        "speculative_algorithm",
        "speculative_draft_model_path",
        "speculative_num_steps",
        "speculative_eagle_topk",
        "speculative_num_draft_tokens",
    ),
    ("enable_prefill_cp", "cp_strategy", "attn_cp_size", "moe_dp_size"),
    ("enable_eplb", "ep_dispatch_algorithm", "init_expert_location", "ep_num_redundant_experts"),
)
"""Flags that are dropped together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """One step away from what was asked for. `key` names what it is about: one change for each is made."""

    key: str
    values: Mapping[str, Any]
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    cost: float
    made: tuple[_Change, ...]
    layout: Layout

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(change.key for change in self.made)

    @property
    def sizes(self) -> frozenset[tuple[str, Any]]:
        return frozenset(item for change in self.made if change.key in _SIZED for item in change.values.items())

    def adds_nothing_to(self, nearer: _Found) -> bool:
        """Whether it is `nearer` with more changes, its sizes with another cure, or its flag with another value."""
        if nearer.keys < self.keys:
            return True
        return nearer.sizes == self.sizes and (bool(self.sizes) or nearer.keys == self.keys)


def nearest_legal(layout: Layout, cluster: Cluster, progress: Progress, *, limit: int = 3) -> tuple[Layout, ...]:
    """Up to `limit` legal layouts, nearest first: those that keep the most of what was asked for.

    Setting a flag that was left open is nearer than changing one that was named, small steps in sizes are
    nearer than large ones, and the same number of GPUs (or the cluster's, where more were asked for) is nearer
    than another. A change is followed by a second one only where it brought the launch past the rule that
    stopped it, so that some hundred judgements are enough. Where nothing is found within three changes, plain
    tensor parallelism over the whole cluster takes the place of `layout`.
    """
    if found := _nearest(layout, cluster, progress, limit):
        return found
    plain = Layout(tp_size=cluster.num_gpus, nnodes=cluster.num_nodes)
    return (plain,) if progress(plain) is None else _nearest(plain, cluster, progress, limit)


def cure(layout: Layout, progress: Progress) -> Mapping[str, Any] | None:
    """The one flag, beside the sizes and the backend, that makes a refused layout legal, with its value: the cheapest;
    None where none does.
    """
    found = [
        (_cost(layout, name, value) + extra, {name: value})
        for (name, value), extra in _REMEDIES
        if name != "moe_a2a_backend"
        and value != getattr(layout, name)
        and progress(layout.changed(**{name: value})) is None
    ]
    return min(found, key=lambda each: each[0])[1] if found else None


def _nearest(layout: Layout, cluster: Cluster, progress: Progress, limit: int) -> tuple[Layout, ...]:
    num_gpus = layout.num_gpus if 0 < layout.num_gpus <= cluster.num_gpus else cluster.num_gpus
    changes = tuple(_changes(layout, cluster))
    start = progress(layout)
    order = count()
    # cost, a tie-breaker, what was changed, the layout, and how far its parent gets
    queue: list[tuple[float, int, tuple[_Change, ...], Layout, float]] = []

    def push(made: tuple[_Change, ...], stopped_at: float) -> None:
        keys = {change.key for change in made}
        for change in changes:
            if change.key in keys:
                continue
            near, dragged = _changed(layout, (*made, change))
            if near is None or near.num_gpus > cluster.num_gpus:
                continue
            cost = sum(each.cost for each in made) + change.cost + dragged
            cost += _OTHER_GPU_COUNT * (near.num_gpus != num_gpus)
            heapq.heappush(queue, (cost, next(order), (*made, change), near, stopped_at))

    push((), -1.0 if start is None else start)
    found: list[_Found] = []
    seen: set[Layout] = {layout}
    while queue and len(found) < limit and len(seen) < _MOST_JUDGED:
        cost, _, made, near, stopped_at = heapq.heappop(queue)
        if found and cost > found[0].cost + _REACH:
            break
        candidate = _Found(cost=cost, made=made, layout=near)
        if near in seen or any(candidate.adds_nothing_to(other) for other in found):
            continue
        seen.add(near)
        reached = progress(near)
        if reached is None:
            found.append(candidate)
        elif reached > stopped_at and len(made) < _MOST_CHANGES:
            push(made, reached)
    return tuple(each.layout for each in found)


def _changed(layout: Layout, made: tuple[_Change, ...]) -> tuple[Layout | None, float]:
    """`layout` with the changes, and what it costs that groups shrink with the ranks that they divide.

    None where groups do not divide the ranks for another reason, or where too little would be left of the wish.
    """
    values: dict[str, Any] = {}
    for change in made:
        values |= change.values
    near = layout.changed(**values)
    shrunk: dict[str, int] = {}
    if "tp_size" in values:
        for name in _INNER_SIZES:
            size = getattr(near, name)
            if size >= 1 and near.tp_size % size and name not in values:
                shrunk[name] = math.gcd(size, near.tp_size)
        if len(values) + len(shrunk) > _MOST_FIELDS:
            return None, 0.0
        near = near.changed(**shrunk) if shrunk else near
    sizes = [getattr(near, name) for name in _INNER_SIZES]
    if min(*sizes, near.tp_size) < 1 or near.tp_size % (near.attn_dp_size * near.attn_cp_size):
        return None, 0.0
    if near.moe_a2a_backend == "none" and near.tp_size % (near.ep_size * near.moe_dp_size):
        return None, 0.0
    return near, _DRAGGED_ALONG * len(shrunk)


def _changes(layout: Layout, cluster: Cluster) -> Iterator[_Change]:
    yield from _sizes(layout, cluster)
    yield from _slips(layout, cluster)
    for value in {1, cluster.num_nodes} - {layout.nnodes}:
        yield _Change(key="nnodes", values={"nnodes": value}, cost=0.25)
    yield from _drops(layout)
    for (name, value), extra in _REMEDIES:
        if value == getattr(layout, name):
            continue
        cost = _cost(layout, name, value) + extra
        values = {name: value}
        if name == "moe_a2a_backend" and layout.ep_size != 1:
            # The backend decides ep_size: what was asked for it would say nothing.
            values["ep_size"] = 1
            cost += _TAKEN
        yield _Change(key=name, values=values, cost=cost)


def _sizes(layout: Layout, cluster: Cluster) -> Iterator[_Change]:
    shares = _shares(cluster.num_gpus)
    for shape in product(shares, repeat=3):
        if math.prod(shape) <= cluster.num_gpus:
            values = {n: v for n, v in zip(_OUTER_SIZES, shape, strict=True) if v != getattr(layout, n)}
            if values:
                yield _Change(key="shape", values=values, cost=sum(_cost(layout, n, v) for n, v in values.items()))
    for name in _INNER_SIZES:
        for value in shares:
            if value != getattr(layout, name):
                yield _Change(key=name, values={name: value}, cost=_cost(layout, name, value))


def _slips(layout: Layout, cluster: Cluster) -> Iterator[_Change]:
    """What was probably meant by a value that is another's: percent, and replicas where there are no GPUs for them."""
    fraction = layout.mem_fraction_static
    if fraction is not None and 1 < fraction < _PERCENT:
        yield _Change(key="mem_fraction_static", values={"mem_fraction_static": fraction / _PERCENT}, cost=_ADDED)
    replicas = layout.dp_size
    if layout.num_gpus > cluster.num_gpus and layout.attn_dp_size == 1 < replicas <= layout.tp_size:
        yield _Change(key="shape", values={"dp_size": 1, "attn_dp_size": replicas}, cost=_ADDED)


def _cost(layout: Layout, name: str, value: Any) -> float:
    asked = getattr(layout, name)
    cost = _ADDED if asked == getattr(_DEFAULT, name) else _TAKEN
    if name in {*_OUTER_SIZES, *_INNER_SIZES}:
        cost += _PER_DOUBLING * abs(math.log2(max(value, 1) / max(asked, 1)))
    return cost


def _drops(layout: Layout) -> Iterator[_Change]:
    """Flags that were named, left to the engine."""
    grouped = {name: group for group in _ALL_OR_NONE for name in group}
    dropped: set[str] = set()
    for name, usual in vars(_DEFAULT).items():
        if getattr(layout, name) == usual or name in {*_OUTER_SIZES, "nnodes", *dropped}:
            continue
        group = grouped.get(name, (name,))
        if name not in _INNER_SIZES:
            yield _Change(key=name, values={name: usual}, cost=_DROPPED)
        if len(group) > 1:
            dropped.update(group)
            yield _Change(key=group[0], values={n: getattr(_DEFAULT, n) for n in group}, cost=_DROPPED + 0.25)


@cache
def _shares(num_gpus: int) -> tuple[int, ...]:
    """Divisors of `num_gpus` and the powers of two up to it."""
    powers = {2**exponent for exponent in range(num_gpus.bit_length())}
    return tuple(sorted(powers | {size for size in range(1, num_gpus + 1) if num_gpus % size == 0}))
