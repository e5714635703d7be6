"""How a layout that does not fit would die, by how much, and what would make it fit."""

from __future__ import annotations

import math

from cost_models.memory_shape import Shape, pool_need_bytes
from cost_models.memory_types import DoesNotFit, Memory, Remedy
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.verdict import Stage
from search_spaces.workload import Workload

_GIB = 2**30
_LARGEST_FRACTION = 0.97
"""Above it no advice to raise the fraction is given: graphs and activations need the rest."""


def weights_do_not_fit(cluster: Cluster, layout: Layout, expected: Memory, room: int) -> DoesNotFit:
    missing = expected.weight_bytes - room
    return DoesNotFit(
        layout=layout,
        stage=Stage.WEIGHTS,
        memory=expected,
        shortfall_bytes=missing,
        remedy=Remedy.SPREAD,
        message=(
            f"weights must fit on one GPU: {_gib(expected.weight_bytes)} do not fit into "
            f"{_gib(room)} ({_gib(missing)} too much); {_spread(cluster, layout, expected.weight_bytes / room)}"
        ),
    )


def pool_does_not_fit(
    cluster: Cluster, layout: Layout, shape: Shape, expected: Memory, workload: Workload
) -> DoesNotFit:
    """With figures of the expected reserve, so that what is advised fits for sure."""
    request = workload.tokens_per_request
    needed = pool_need_bytes(layout, shape, request)
    usable = expected.total_bytes - expected.reserve_bytes
    static = math.floor(usable * expected.mem_fraction_static)
    least = math.ceil(needed / usable * 1000) / 1000
    is_enough = least <= _LARGEST_FRACTION and expected.least_need_bytes <= usable * (1 - least)
    is_limited = layout.max_total_tokens is not None and layout.max_total_tokens < request
    if is_limited:
        remedy, fix = Remedy.NO_FRACTION, f"raise --max-total-tokens to at least {request}"
    elif is_enough:
        remedy, fix = Remedy.RAISE_FRACTION, f"raise --mem-fraction-static to at least {least:.3f}"
    else:
        remedy, fix = Remedy.SPREAD, _spread(cluster, layout, needed / usable / min(expected.mem_fraction_static, 1.0))
    fixed = max(stage.fixed_bytes for stage in shape.stages)
    if fixed:
        fix += f", or lower --max-running-requests: {_gib(fixed)} of the KV pool are set aside for all that may run"
    what = (
        "weights leave nothing for the KV cache"
        if expected.kv_pool_bytes <= 0
        else f"the KV cache must hold one request of {request} tokens but holds {expected.kv_tokens}"
    )
    return DoesNotFit(
        layout=layout,
        stage=Stage.KV_POOL,
        memory=expected,
        shortfall_bytes=max(1, needed - static),
        remedy=remedy,
        least_fraction=least if remedy is Remedy.RAISE_FRACTION else None,
        message=(
            f"{what}: {expected.mem_fraction_static:g} of {_gib(usable)} is {_gib(static)}, "
            f"weights take {_gib(expected.weight_bytes)}, weights and one request need {_gib(needed)}; {fix}"
        ),
    )


def graphs_do_not_fit(
    cluster: Cluster, layout: Layout, shape: Shape, best: Memory, needed: int, workload: Workload
) -> DoesNotFit:
    usable = best.total_bytes - best.reserve_bytes
    most = math.floor(max(0.0, 1 - needed / usable) * 1000) / 1000
    buffers = f", {_gib(best.exchange_bytes)} of it for {layout.moe_a2a_backend}'s buffers,"
    exchange = buffers if best.exchange_bytes else ""
    if pool_need_bytes(layout, shape, workload.tokens_per_request) <= math.floor(usable * most):
        remedy, fix = Remedy.LOWER_FRACTION, f"lower --mem-fraction-static to at most {most:.3f}"
    else:
        remedy = Remedy.NO_FRACTION
        fix = (
            f"no fraction leaves room for both the weights with one request and these: use a smaller "
            f"--chunked-prefill-size, or {_spread(cluster, layout, 1.0)}"
        )
    return DoesNotFit(
        layout=layout,
        stage=Stage.GRAPHS,
        memory=best,
        shortfall_bytes=needed - best.headroom_bytes,
        remedy=remedy,
        most_fraction=most if remedy is Remedy.LOWER_FRACTION else None,
        message=(
            f"activations and CUDA graphs need at least {_gib(needed)}{exchange} outside the static fraction, but "
            f"{best.mem_fraction_static:g} leaves {_gib(best.headroom_bytes)}; {fix}"
        ),
    )


def _spread(cluster: Cluster, layout: Layout, factor: float) -> str:
    """Advice to divide the weights over more GPUs; `factor` is how many times too large they are."""
    ranks = layout.tp_size * layout.pp_size
    more = max(2 ** math.ceil(math.log2(ranks * max(factor, 1.0))), 2 * ranks)
    spread = f"spread each replica over more GPUs: --tp-size times --pp-size of at least {more} instead of {ranks}"
    if more <= cluster.num_gpus:
        return spread
    return f"{spread}, which needs at least {more} of these GPUs where {cluster.name} has {cluster.num_gpus}"


def _gib(size: float) -> str:
    return f"{size / _GIB:.2f} GiB"
