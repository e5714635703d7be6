"""Every legal layout of a model on a cluster, predicted and ranked: `tune predict` without flags."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cost_models.calibration import NO_CALIBRATION, Calibration
from cost_models.estimate import predict_all, predict_for_comparison
from cost_models.memory_types import DoesNotFit
from cost_models.prediction import Interval, Prediction
from cost_models.setting import Setting
from cost_models.sweep import Sweep
from cost_models.uncertainty import Z
from search_spaces.errors import CannotRunError
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.sglang.versions import EngineVersion
from search_spaces.space import Candidate, Space, enumerate_space
from search_spaces.workload import Workload
from tuner.objective import Objective
from tuner.predict_beyond import AS_GOOD, BeyondLadder, Shape, beyond_ladder
from tuner.predict_evidence import Evidence
from tuner.predict_switch import Switched, switched
from tuner.predict_trials import Died, MeasuredBest, Pins, is_asked_for, shape_of
from tuner.predict_tried import at_every_fraction, with_something_to_exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One shape at its best memory fraction. value: of the objective, in SI units.

    is_like_best: whether the interval of the ratio to the first holds 1, so that the model cannot tell them apart:
        what both have in common moves both alike.
    roomiest: the shape with the largest KV cache of all fractions, to be asked for more requests.
    """

    candidate: Candidate
    prediction: Prediction
    sweep: Sweep
    value: float
    interval: Interval
    roomiest: tuple[Candidate, Prediction]
    is_like_best: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """ranked: best first; none that died in the study of `evidence`. does_not_fit: one for each shape that fits with no
    fraction that was tried, the one that lacks least. beyond: who comes first with more requests in flight, where the
    best may peak above the ladder. asked: concurrencies that were asked for; empty: all of the workload's. switched:
    what a variable of the environment would change of the best. is_lead_unmeasured: whether layouts that were not
    measured stand before measured ones since those came out slower than predicted. pins: what was asked for.
    """

    model: Model
    cluster: Cluster
    version: EngineVersion
    workload: Workload
    objective: Objective
    space: Space
    ranked: tuple[Ranked, ...]
    does_not_fit: tuple[DoesNotFit, ...]
    evidence: Evidence | None = None
    beyond: BeyondLadder | None = None
    asked: tuple[int, ...] = ()
    switched: Switched | None = None
    is_lead_unmeasured: bool = False
    pins: Pins = field(default_factory=dict)

    @property
    def best(self) -> Ranked:
        return self.ranked[0]

    @property
    def safest(self) -> Ranked:
        """Of those that the model cannot tell apart from the best, the one whose way of splitting the model rests least
        on what is not proven; the best itself where none rests on less.
        """
        alike = [each for each in self.ranked if each.is_like_best]
        return min(alike, key=lambda each: each.prediction.unproven_deviation)

    @property
    def died(self) -> tuple[Died, ...]:
        """In the study, of what was asked for."""
        known = () if self.evidence is None else self.evidence.trials.died
        return tuple(each for each in known if is_asked_for(each.requested, self.pins))

    @property
    def measured_best(self) -> MeasuredBest | None:
        """By the study, of what was asked for."""
        return None if self.evidence is None else self.evidence.trials.best(self.objective, self.pins)

    @property
    def deciding_concurrency(self) -> int:
        """At which the best has the value that it is ranked by."""
        best = self.best.prediction
        return best.points[_deciding_place(best, self.objective)].concurrency

    @property
    def looks_beyond(self) -> bool:
        """Whether the best has its most tokens per second at the last concurrency, so that with more in flight another
        may come first. Of a single concurrency that was asked for, nothing is said of others.
        """
        is_at_the_top = self.deciding_concurrency == self.workload.concurrencies[-1]
        return self.objective.maximise and is_at_the_top and len(self.asked) != 1

    @property
    def peaks_at_the_top(self) -> bool:
        """Whether the best itself may have more tokens per second above: whether it runs more at once."""
        runs = self.best.prediction.memory.max_concurrency(self.workload)
        return self.looks_beyond and runs > self.workload.concurrencies[-1]


def rank_space(
    model: Model,
    cluster: Cluster,
    version: EngineVersion,
    workload: Workload,
    objective: Objective,
    *,
    pins: Pins | None = None,
    all_reduce_paths: bool = False,
    evidence: Evidence | None = None,
    asked: tuple[int, ...] = (),
) -> Ranking:
    """all_reduce_paths: whether each layout is ranked once more for each other way of its all-reduces that a flag
    chooses. asked: concurrencies that were asked for; empty: all of the workload's.

    Raises UserError for a load that the model refuses, and CannotRunError where nothing is legal, nothing fits, or all
    that would fit died in the study of `evidence`."""
    workload.check_against(model)
    pins = pins or {}
    space = enumerate_space(
        model, cluster, version, mem_fractions=(None,), pins=pins, all_reduce_paths=all_reduce_paths
    )
    # Where a pin excludes the baseline, it is no part of what was asked for.
    own = [each for each in space.candidates if is_asked_for(each.requested, pins)]
    own = with_something_to_exchange(own, frozenset() if evidence is None else evidence.layouts)
    tried = own if cluster.gpu.is_cpu or "mem_fraction_static" in pins else at_every_fraction(own)
    setting = Setting(version=version)
    calibration = NO_CALIBRATION if evidence is None else evidence.calibration
    alive = tried if evidence is None else [c for c in tried if evidence.trials.how_it_died(c.effective) is None]
    if evidence is not None and not alive:
        raise CannotRunError(f"every layout that was asked for died in {evidence.origin}: there is none left to rank")
    estimates = predict_for_comparison(
        model, cluster, [c.effective for c in alive], workload, setting=setting, calibration=calibration
    )
    measured = frozenset() if evidence is None else evidence.layouts
    shapes: dict[Layout, list[tuple[Candidate, tuple[Prediction, Sweep] | DoesNotFit]]] = {}
    for candidate, estimate in zip(alive, estimates, strict=True):
        shapes.setdefault(shape_of(candidate.requested), []).append((candidate, estimate))
    fitting, too_large = [], []
    for of_shape in shapes.values():
        predicted = [(each, *estimate) for each, estimate in of_shape if not isinstance(estimate, DoesNotFit)]
        if predicted:
            fitting.append(_best_fraction(predicted, objective, measured))
        else:
            lacking = [estimate for _, estimate in of_shape if isinstance(estimate, DoesNotFit)]
            too_large.append(min(lacking, key=lambda each: each.shortfall_bytes))
    if not fitting:
        least = min(too_large, key=lambda each: each.shortfall_bytes)
        raise CannotRunError(
            f"{model.name} does not fit on {cluster.name} in any of {len(too_large)} legal layouts; the nearest, "
            f"{least.layout.label}: {least.message}"
        )
    ranking = Ranking(
        model=model,
        cluster=cluster,
        version=version,
        workload=workload,
        objective=objective,
        space=space,
        ranked=_in_order(fitting, objective, calibration),
        does_not_fit=tuple(too_large),
        evidence=evidence,
        asked=asked,
        pins=pins,
    )
    return replace(
        ranking,
        beyond=_beyond(ranking, calibration) if ranking.looks_beyond else None,
        switched=switched(model, cluster, ranking.best.prediction, workload, setting=setting, calibration=calibration),
        is_lead_unmeasured=evidence is not None and is_lead_unmeasured(ranking, evidence, setting),
    )


MUCH_SLOWER = 1.2
"""Times of measured layouts over their predictions, from which on it is said what that does to the order."""


def is_lead_unmeasured(ranking: Ranking, evidence: Evidence, setting: Setting) -> bool:
    """Whether a layout that was not measured stands before the best measured one, and without the measurements it would
    not, or by far less: measured layouts are moved by all of what was measured, others by the part that they are
    expected to share.
    """
    if evidence.measured_over_predicted <= MUCH_SLOWER:
        return False
    measured = {shape_of(each.layout) for each in evidence.observations}
    order = [each.prediction.layout for each in ranking.ranked]
    place = next((i for i, layout in enumerate(order) if shape_of(layout) in measured), 0)
    if not place:
        return False
    found = predict_all(ranking.model, ranking.cluster, order[: place + 1], ranking.workload, setting=setting)
    aim = ranking.objective
    before = [aim.predicted_by(each) for each in found if isinstance(each, Prediction)]
    gains = [
        (aim.gain(each.value, ranking.ranked[place].value), aim.gain(value, before[-1]))
        for each, value in zip(ranking.ranked, before[:-1], strict=False)
    ]
    return any(usual <= 1 or now > MUCH_SLOWER * usual for now, usual in gains)


def _best_fraction(
    tried: Sequence[tuple[Candidate, Prediction, Sweep]], objective: Objective, measured: frozenset[Layout]
) -> Ranked:
    """Of those that no other beats by more than nothing, likewise by the other objective; then the engine's own, or the
    one with the largest KV cache. One that may run out of memory while graphs are captured is taken only where all may,
    or where it was measured.
    """
    safe = [each for each in tried if not each[1].memory.is_tight or each[0].effective in measured] or list(tried)
    left = safe
    for aim in (objective, objective.other):
        best = max(left, key=lambda each: aim.gain(aim.predicted_by(each[1]), 1.0))
        top = aim.predicted_by(best[1])
        left = [each for each in left if aim.gain(top, aim.predicted_by(each[1])) <= AS_GOOD]
    roomiest = max(safe, key=lambda each: each[1].memory.kv_tokens_total)
    candidate, prediction, sweep = max(
        left, key=lambda each: (each[0].requested.mem_fraction_static is None, each[1].memory.kv_tokens_total)
    )
    return Ranked(
        candidate=candidate,
        prediction=prediction,
        sweep=sweep,
        value=objective.predicted_by(prediction),
        interval=interval_of(prediction, objective),
        roomiest=roomiest[:2],
    )


def interval_of(prediction: Prediction, objective: Objective) -> Interval:
    if objective is Objective.PEAK_THROUGHPUT:
        return prediction.peak.output_tok_per_s_interval
    return prediction.points[0].tpot_interval_s


def _in_order(fitting: Sequence[Ranked], objective: Objective, calibration: Calibration) -> tuple[Ranked, ...]:
    """Of those that no measurement would tell apart, the one that rests least on what is not proven comes first."""
    sign = -1 if objective.maximise else 1
    left = sorted(fitting, key=lambda each: (sign * each.value, each.candidate.requested.label))
    order: list[Ranked] = []
    while left:
        top = left[0].value
        tied = [each for each in left if objective.gain(top, each.value) <= AS_GOOD]
        order += sorted(tied, key=lambda each: each.prediction.unproven_deviation)
        left = left[len(tied) :]
    best = order[0]
    return tuple(replace(each, is_like_best=_is_alike(best, each, objective, calibration)) for each in order)


def _beyond(ranking: Ranking, calibration: Calibration) -> BeyondLadder | None:
    shapes = [
        Shape(candidate=each.roomiest[0], prediction=each.roomiest[1], value=each.value) for each in ranking.ranked
    ]
    return beyond_ladder(
        ranking.model,
        ranking.cluster,
        ranking.workload,
        shapes,
        setting=Setting(version=ranking.version),
        calibration=calibration,
    )


def _is_alike(best: Ranked, other: Ranked, objective: Objective, calibration: Calibration) -> bool:
    deviation = calibration.ratio_deviation(
        best.sweep,
        _deciding_place(best.prediction, objective),
        other.sweep,
        _deciding_place(other.prediction, objective),
    )
    return abs(math.log(best.value / other.value)) <= Z * deviation


def _deciding_place(prediction: Prediction, objective: Objective) -> int:
    """Of the concurrency that gives the objective its value."""
    return prediction.points.index(prediction.peak) if objective is Objective.PEAK_THROUGHPUT else 0


def pareto_front(ranked: Sequence[Ranked]) -> list[tuple[float, float, Ranked, int]]:
    """Points of tok/s per user and tok/s per GPU that no other point beats in both, the slowest user first.

    Each with its layout and its concurrency.
    """
    points = [
        (1 / point.tpot_s, point.output_tok_per_s / each.prediction.layout.num_gpus, each, point.concurrency)
        for each in ranked
        for point in each.prediction.points
    ]
    front: list[tuple[float, float, Ranked, int]] = []
    highest = -math.inf
    for point in sorted(points, key=lambda each: (-each[0], -each[1])):
        if point[1] > highest:
            highest = point[1]
            front.append(point)
    return front[::-1]
