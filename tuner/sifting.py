"""Which legal layouts are worth a trial: those that fit, each with its prediction and its score."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cost_models.estimate import predict_all, predict_if_it_fits
from cost_models.memory_types import DoesNotFit, Memory
from cost_models.prediction import Prediction
from cost_models.setting import Setting
from search_spaces.errors import CannotRunError
from search_spaces.layout import Layout
from search_spaces.sglang.flags import from_argv
from search_spaces.space import Candidate, Space
from search_spaces.verdict import Stage
from tuner.checking import Server, check_layout
from tuner.outcome import Direction
from tuner.request import Request

_TIGHT_CHANCE = 0.5
"""Of a layout that leaves less outside the static fraction than graphs and activations are expected to need."""

_CAUTION = 0.5
"""Points with attention DP lie on the slow side of their predictions, as far as there are any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """score: log of the predicted objective, larger is better, less half a deviation of what is not proven of the
    layout: of two that promise the same, the one that is known comes first. chance: that it starts and lasts, as far
    as the memory model can tell.
    """

    requested: Layout
    effective: Layout
    prediction: Prediction
    score: float
    chance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sifted:
    """fitting: what fits, by requested layout. does_not_fit: what the memory model rules out, with the reason."""

    fitting: Mapping[Layout, Fitting]
    does_not_fit: tuple[DoesNotFit, ...]


def room_bytes(memory: Memory) -> dict[str, float]:
    """What the memory model leaves where a server may run out of memory, by the direction that would get past it."""
    return {
        Direction.LOWER_FRACTION: memory.headroom_bytes - memory.need_bytes,
        Direction.RAISE_FRACTION: memory.kv_pool_bytes,
        Direction.SPLIT_FURTHER: memory.total_bytes - memory.reserve_bytes - memory.weight_bytes,
    }


def sift(request: Request, space: Space) -> Sifted:
    """Sorts the layouts of `space` by whether they fit. Nothing is dropped for being slow.

    The plain baseline stays unless its very weights are too large, and the user's own layout stays in any case:
    what they are compared with is not for the memory model to decide. Raises CannotRunError when nothing fits.
    """
    fitting: dict[Layout, Fitting] = {}
    does_not_fit: list[DoesNotFit] = []
    facts = (request.model, request.cluster)
    setting = Setting(version=request.engine.version)
    layouts = [candidate.effective for candidate in space.candidates]
    estimates = predict_all(*facts, layouts, request.workload, setting=setting)
    for candidate, predicted in zip(space.candidates, estimates, strict=True):
        estimate, is_sure = predicted, True
        if isinstance(estimate, DoesNotFit):
            is_baseline = candidate == space.baseline and estimate.stage is not Stage.WEIGHTS
            if candidate.requested != request.baseline and not is_baseline and not _may_fit(candidate, request):
                does_not_fit.append(estimate)
                continue
            estimate = predict_if_it_fits(*facts, candidate.effective, request.workload, setting=setting)
            is_sure = False
        fitting[candidate.requested] = Fitting(
            requested=candidate.requested,
            effective=candidate.effective,
            prediction=estimate,
            score=_score(request, estimate),
            chance=1.0 if is_sure and not estimate.memory.is_tight else _TIGHT_CHANCE,
        )
    if not fitting:
        least = min(does_not_fit, key=lambda d: d.shortfall_bytes)
        raise CannotRunError(
            f"{request.model.name} does not fit on {request.cluster.name} in any of {len(does_not_fit)} legal "
            f"layouts; the nearest, {least.layout.label}: {least.message}"
        )
    return Sifted(fitting=fitting, does_not_fit=tuple(does_not_fit))


def _may_fit(candidate: Candidate, request: Request) -> bool:
    """Whether `--engine-args` free memory that the memory model counts, so that it cannot say."""
    if not request.engine.extra_args:
        return False
    version = request.engine.version
    given = from_argv(request.engine.extra_args, version)
    layout = candidate.requested.changed(quantization=given.layout.quantization or candidate.requested.quantization)
    server = Server(model=request.model, cluster=request.cluster, version=version)
    return check_layout(layout, server, others=given.others, suggest=False).excused is not None


def _score(request: Request, prediction: Prediction) -> float:
    value = math.log(request.objective.promise(prediction))
    return (value if request.objective.maximise else -value) - _CAUTION * prediction.unproven_deviation
