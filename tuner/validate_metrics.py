"""How far predictions lie from measurements, and whether they come in the same order.

Every share and every error is in percent.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tuner.validate_predict import Compared, Comparison

_SAME = 0.03
"""Measured values closer than that are no pair in order: repeats of one configuration differ by as much and more."""

_SAME_LENGTH = 0.02
"""Mean lengths closer than that are of the same requests: sampled texts end a token or two earlier or later."""

_LEAST_ON_A_CURVE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Of one metric. ape: absolute percentage error, of the measured value.

    median_error: signed; positive where predictions are too high.
    coverage: share of measurements inside the stated interval.
    interval_factor: half the width of the median interval, as a factor either way from its middle.
    """

    n: int
    median_ape: float
    mean_ape: float
    p90_ape: float
    median_error: float
    coverage: float
    interval_factor: float


def errors_of(pairs: Iterable[Compared | None]) -> Errors | None:
    """None where nothing was measured."""
    known = [pair for pair in pairs if pair is not None]
    if not known:
        return None
    errors = [100 * pair.error for pair in known]
    sizes = sorted(map(abs, errors))
    return Errors(
        n=len(known),
        median_ape=statistics.median(sizes),
        mean_ape=statistics.fmean(sizes),
        p90_ape=quantile(sizes, 0.9),
        median_error=statistics.median(errors),
        coverage=100 * statistics.fmean(pair.is_covered for pair in known),
        interval_factor=statistics.median(pair.interval.factor for pair in known),
    )


def quantile(rising: Sequence[float], share: float) -> float:
    """Linear between the two nearest of the values, which rise."""
    place = share * (len(rising) - 1)
    low = math.floor(place)
    high = min(low + 1, len(rising) - 1)
    return rising[low] + (place - low) * (rising[high] - rising[low])


@dataclass(frozen=True, slots=True, kw_only=True)
class WithinLayouts:
    """Spearman's rank correlation of predicted with measured time per output token, over the concurrencies of a curve.

    curves: those with at least three points. mean, least: over curves, None without any.
    """

    curves: int
    mean: float | None
    least: float | None


def within_layouts(compared: Sequence[Comparison]) -> WithinLayouts:
    curves = [
        [(each.row.concurrency, each.tpot) for each in curve if each.tpot is not None]
        for curve in _grouped(compared, lambda each: each.row.curve)
    ]
    found = [
        spearman([tpot.measured for _, tpot in curve], [tpot.predicted for _, tpot in curve])
        for curve in curves
        if len({concurrency for concurrency, _ in curve}) >= _LEAST_ON_A_CURVE
    ]
    known = [value for value in found if value is not None]
    return WithinLayouts(
        curves=len(known), mean=statistics.fmean(known) if known else None, least=min(known, default=None)
    )


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Pearson's correlation of the ranks, ties at their mean rank; None where all of one side are equal."""
    ranks = _ranks(first), _ranks(second)
    if any(len(set(each)) == 1 for each in ranks):
        return None
    return statistics.correlation(*ranks)


def _ranks(values: Sequence[float]) -> list[float]:
    smaller, equal, seen = {}, Counter(values), 0
    for value in sorted(equal):
        smaller[value] = seen
        seen += equal[value]
    return [smaller[value] + (equal[value] + 1) / 2 for value in values]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How well an order of layouts does. None without a pair, or without a group.

    order_accuracy: share of pairs in the measured order; a pair that the order leaves open counts half.
    regret: how much worse the layout it puts first is than the best of its group, in the measured metric; of layouts
        that it leaves open at the top, their mean.
    """

    order_accuracy: float | None
    regret_mean: float | None
    regret_max: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BetweenLayouts:
    """Layouts of one campaign and load, with the same other flags, beside a rule that knows nothing of the model.

    groups: with at least two layouts. pairs: of layouts in a group that were measured further apart than repeats are.
    """

    groups: int
    pairs: int
    predicted: Choice
    trivial_rule: Choice


def between_layouts_per_gpu(compared: Sequence[Comparison]) -> BetweenLayouts:
    """By output tokens per second and GPU.

    The trivial rule: fewer GPUs give more per GPU; on as many, less pipeline, then less expert, then less attention
    data parallelism is better.
    """

    def per_gpu(each: Comparison) -> tuple[float, float] | None:
        speed, gpus = each.output_tok_s, each.row.cluster.num_gpus
        return None if speed is None else (speed.measured / gpus, speed.predicted / gpus)

    return _between(compared, per_gpu, lambda each: (each.row.cluster.num_gpus, *_tensor_first(each)))


def between_layouts_per_user(compared: Sequence[Comparison]) -> BetweenLayouts:
    """By output tokens per second that one user sees, the reverse of the time per output token.

    The trivial rule: more GPUs are faster; on as many, as in `between_layouts_per_gpu`.
    """

    def per_user(each: Comparison) -> tuple[float, float] | None:
        return None if each.tpot is None else (1 / each.tpot.measured, 1 / each.tpot.predicted)

    return _between(compared, per_user, lambda each: (-each.row.cluster.num_gpus, *_tensor_first(each)))


def _tensor_first(each: Comparison) -> tuple[int, int, int]:
    layout = each.row.layout
    return layout.pp_size, layout.ep_size, layout.attn_dp_size


def _between(
    compared: Sequence[Comparison],
    value: Callable[[Comparison], tuple[float, float] | None],
    rule: Callable[[Comparison], tuple[int, ...]],
) -> BetweenLayouts:
    """value: measured and predicted, more is better. rule: less is better."""
    groups: list[list[tuple[float, float, tuple[int, ...]]]] = []
    for alike in _of_one_load(compared):
        by_split: dict[Hashable, list[tuple[float, float, tuple[int, ...]]]] = defaultdict(list)
        for each in alike:
            if (known := value(each)) is not None:
                by_split[each.row.split].append((*known, rule(each)))
        if len(by_split) > 1:
            groups.append(
                [
                    (statistics.fmean(m for m, _, _ in points), statistics.fmean(p for _, p, _ in points), points[0][2])
                    for points in by_split.values()
                ]
            )
    ranks = _rank_of_rule(groups)
    pairs = sum(_differ(a[0], b[0]) for group in groups for a, b in itertools.combinations(group, 2))
    return BetweenLayouts(
        groups=len(groups),
        pairs=pairs,
        predicted=_choice([[(measured, predicted) for measured, predicted, _ in group] for group in groups]),
        trivial_rule=_choice([[(measured, -ranks[key]) for measured, _, key in group] for group in groups]),
    )


def _rank_of_rule(groups: Iterable[Iterable[tuple[float, float, tuple[int, ...]]]]) -> Mapping[tuple[int, ...], int]:
    keys = sorted({key for group in groups for _, _, key in group})
    return {key: place for place, key in enumerate(keys)}


def _of_one_load(compared: Iterable[Comparison]) -> Iterable[Sequence[Comparison]]:
    """Points of one campaign, its other flags, one concurrency, and lengths as near as runs of one data set are."""
    for alike in _grouped(compared, lambda each: (*each.row.campaign, each.row.other_flags, each.row.concurrency)):
        loads: list[list[Comparison]] = []
        for each in alike:
            load = next((load for load in loads if _is_as_long(load[0], each)), None)
            if load is None:
                loads.append([each])
            else:
                load.append(each)
        yield from loads


def _is_as_long(one: Comparison, other: Comparison) -> bool:
    pairs = ((each.row.input_tokens, each.row.output_tokens) for each in (one, other))
    return all(abs(a - b) <= _SAME_LENGTH * max(a, b) for a, b in zip(*pairs, strict=True))


def _choice(groups: Sequence[Sequence[tuple[float, float]]]) -> Choice:
    """groups: measured value and score of each layout, more is better in both."""
    scores = []
    for group in groups:
        for (a, score_a), (b, score_b) in itertools.combinations(group, 2):
            if _differ(a, b):
                scores.append(0.5 if score_a == score_b else float((score_a > score_b) == (a > b)))
    regrets = [_regret(group) for group in groups]
    return Choice(
        order_accuracy=100 * statistics.fmean(scores) if scores else None,
        regret_mean=statistics.fmean(regrets) if regrets else None,
        regret_max=max(regrets, default=None),
    )


def _regret(group: Sequence[tuple[float, float]]) -> float:
    best, top = max(measured for measured, _ in group), max(score for _, score in group)
    return 100 * (1 - statistics.fmean(measured for measured, score in group if score == top) / best)


def _differ(a: float, b: float) -> bool:
    return abs(a - b) > _SAME * max(a, b)


def _grouped(compared: Iterable[Comparison], key: Callable[[Comparison], Hashable]) -> Iterable[Sequence[Comparison]]:
    groups: dict[Hashable, list[Comparison]] = defaultdict(list)
    for each in compared:
        groups[key(each)].append(each)
    return groups.values()
