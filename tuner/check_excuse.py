"""A launch's memory beside options that the memory model does not count: what it lacks, and whether they may free it.

An option excuses what a launch lacks only as far as it can free it: one that never touches weights helps none whose
weights alone are too large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cost_models.activations import captured_prefill_tokens, chunk_tokens, least_needs_bytes
from cost_models.memory import fit, memory
from cost_models.memory_shape import Shape, pool_need_bytes, shape_of
from cost_models.memory_types import DoesNotFit, Memory, Remedy
from cost_models.memory_verdict import SMALLEST_REQUEST, violation_of
from cost_models.reserve import CONTEXT_BYTES
from cost_models.shortfalls import graphs_do_not_fit, weights_do_not_fit
from cost_models.weights import stage_weights
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.sglang.uncounted import Part, Uncounted
from search_spaces.sglang.versions import EngineVersion
from search_spaces.verdict import Stage, Violation
from search_spaces.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedMemory:
    """memory: on the fullest GPU. ended: how it runs out; None where it does not, or where that is not judged.

    excused: how it would run out without what is not counted; memory is not judged then.
    """

    memory: Memory
    ended: Violation | None = None
    excused: Violation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """run: an effective layout, with a static fraction of its own unless it runs on CPUs."""

    model: Model
    cluster: Cluster
    run: Layout
    version: EngineVersion
    uncounted: tuple[Uncounted, ...]
    workload: Workload = SMALLEST_REQUEST

    @property
    def shape(self) -> Shape:
        return shape_of(self.model, self.cluster.gpu, self.run, self.version)

    @property
    def usable_bytes(self) -> int:
        """What the static fraction is one of, under the most favourable assumptions."""
        return self.cluster.gpu.memory_bytes - self.shape.least_reserve_bytes

    def freeing(self, stage: Stage) -> list[Uncounted]:
        return [each for each in self.uncounted if each.may_free and stage in each.stages]


def judged_memory(
    model: Model, cluster: Cluster, run: Layout, uncounted: Sequence[Uncounted], version: EngineVersion
) -> JudgedMemory:
    """`run` with a single short request, beside `uncounted`."""
    case = _Case(model=model, cluster=cluster, run=run, version=version, uncounted=tuple(uncounted))
    held = memory(model, cluster, run, version=version)
    lacking = fit(model, cluster, run, SMALLEST_REQUEST, version=version)
    if not isinstance(lacking, DoesNotFit):
        grown = _grown(case, held)
        return JudgedMemory(memory=held) if grown is None else _ended(grown)
    if not _may_free(case, lacking):
        return JudgedMemory(memory=held, ended=violation_of(lacking))
    if lacking.stage is not Stage.GRAPHS and (later := _graphs(case, held)) is not None and not _may_free(case, later):
        return JudgedMemory(memory=held, ended=violation_of(later))
    return JudgedMemory(memory=held, excused=violation_of(lacking))


def may_free(
    model: Model,
    cluster: Cluster,
    lacking: DoesNotFit,
    workload: Workload,
    uncounted: Sequence[Uncounted],
    version: EngineVersion,
) -> bool:
    """Whether `uncounted` may free what is lacking for `workload`."""
    case = _Case(
        model=model,
        cluster=cluster,
        run=lacking.layout,
        version=version,
        uncounted=tuple(uncounted),
        workload=workload,
    )
    return _may_free(case, lacking)


def _ended(lacking: DoesNotFit) -> JudgedMemory:
    return JudgedMemory(memory=lacking.memory, ended=violation_of(lacking))


def _grown(case: _Case, held: Memory) -> DoesNotFit | None:
    """What is lacking for weights that are sure to take more bytes each; None where they may fit."""
    gpu = case.cluster.gpu
    grows = {part: each.least_growth for each in case.uncounted for part in each.components if each.least_growth > 1}
    weights = tuple((part, round(size * grows.get(part, 1))) for part, size in held.weights)
    grown = replace(held, weights=weights)
    room = gpu.memory_bytes - (0 if gpu.is_cpu else CONTEXT_BYTES)
    is_freed = bool(case.freeing(Stage.WEIGHTS))
    return None if is_freed or grown.weight_bytes <= room else weights_do_not_fit(case.cluster, case.run, grown, room)


def _may_free(case: _Case, lacking: DoesNotFit) -> bool:
    """Whether what is not counted may free what is lacking."""
    freeing = case.freeing(lacking.stage)
    if any(each.part is Part.SERVER for each in freeing):
        return True
    match lacking.stage:
        case Stage.WEIGHTS:
            return bool(freeing) and lacking.shortfall_bytes <= _freed_weights(case, freeing, lacking.memory)
        case Stage.KV_POOL:
            return bool(freeing) and _may_leave_a_pool(case, freeing, lacking)
        case _:
            return bool(freeing) and lacking.shortfall_bytes <= _freed_outside(case, freeing, lacking.memory)


def _freed_weights(case: _Case, freeing: Sequence[Uncounted], held: Memory) -> float:
    """The most bytes of weights that go."""
    weights = dict(held.weights)
    freed = 0.0
    for each in freeing:
        if each.part is Part.WEIGHTS:
            movable = each.most_share * sum(weights.get(part, 0) for part in each.components)
            limit = math.inf if each.most_bytes is None else each.most_bytes + _two_layers_bytes(case)
            freed += min(movable, limit)
    return freed


def _two_layers_bytes(case: _Case) -> float:
    """More than the largest tensor of a rank, by which offloading may go beyond its limit (utils/offloader.py:164)."""
    run = case.run
    ends = (stage_weights(case.model, run, stage, case.version) for stage in (0, run.pp_size - 1))
    return 2 * max(sum(held.values()) for held in ends) / max(1, case.model.num_layers // run.pp_size)


def _may_leave_a_pool(case: _Case, freeing: Sequence[Uncounted], lacking: DoesNotFit) -> bool:
    """Whether the least that weights and one request can need may stay below the largest static budget."""
    if lacking.remedy is Remedy.NO_FRACTION:
        return False
    shape, run, parts = case.shape, case.run, {each.part for each in freeing}
    raised = [each.raises_fraction_to for each in freeing if each.part is Part.FRACTION]
    fraction = min(1.0, max([lacking.memory.mem_fraction_static, *raised]))
    if Part.CACHE in parts:
        needed = max(stage.weight_bytes for stage in shape.stages) + shape.buffer_bytes + 1
    else:
        needed = pool_need_bytes(run, shape, case.workload.tokens_per_request)
    if Part.BUFFERS in parts:
        needed -= shape.buffer_bytes
    return needed - _freed_weights(case, freeing, lacking.memory) <= math.floor(case.usable_bytes * fraction)


def _freed_outside(case: _Case, freeing: Sequence[Uncounted], held: Memory) -> float:
    """The most bytes that go of what is needed outside the static fraction, or that the fraction leaves to it."""
    parts = {each.part for each in freeing}
    freed = 0.0
    if Part.CACHE in parts:
        freed += max(held.kv_pool_bytes, 0)
    if Part.FRACTION in parts:
        plain = case.run.changed(cuda_graph_backend_decode="disabled", cuda_graph_backend_prefill="disabled")
        freed += _least_need_bytes(case, case.run) - _least_need_bytes(case, plain)
    return freed


def _graphs(case: _Case, held: Memory) -> DoesNotFit | None:
    """What is lacking outside the static fraction, wherever the weights are."""
    if case.cluster.gpu.is_cpu:
        return None
    usable, needed = case.usable_bytes, _least_need_bytes(case, case.run)
    left = usable - math.floor(usable * held.mem_fraction_static)
    if needed <= left:
        return None
    best = replace(held, reserve_bytes=case.shape.least_reserve_bytes, headroom_bytes=left)
    return graphs_do_not_fit(case.cluster, case.run, case.shape, best, needed, case.workload)


def _least_need_bytes(case: _Case, run: Layout) -> int:
    load = case.workload
    asked = min(chunk_tokens(run), load.input_tokens * load.concurrencies[-1])
    tokens = max(asked, captured_prefill_tokens(run))
    return least_needs_bytes(case.model, run, tokens) + case.shape.exchange_bytes
