"""A ranking told to people and as a JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cost_models.prediction import COVERAGE
from tuner.check_document import argv_text
from tuner.predict_document import (
    interval_document,
    memory_document,
    points_document,
    shortfall_document,
    workload_document,
)
from tuner.predict_evidence_text import evidence_lines
from tuner.predict_space import Ranked, Ranking, pareto_front
from tuner.predict_words import TOP_OF_THE_LADDER, figure, gib, load_line, ms, prose, span
from tuner.text_table import Column, table_lines

_CAPTION = (
    "one row a shape, at the mem fraction that does best, by the other objective too; the engine's own where none does "
    "better; at: concurrency of the peak; c1: concurrency 1"
)


def report(ranking: Ranking, width: int, limit: int | None) -> list[str]:
    shown = ranking.ranked if limit is None else ranking.ranked[:limit]
    fabric = ranking.cluster.fabric
    opening = [
        headline(ranking),
        *([] if fabric is None else [f"links of {ranking.cluster.name}: {fabric.source}"]),
        load_line(ranking.workload),
    ]
    return [
        *prose(opening, width),
        *evidence_lines(ranking.evidence, width),
        *_table(ranking, shown, width),
        *prose(_more(ranking, shown), width),
        *_standing(ranking, width),
    ]


def headline(ranking: Ranking) -> str:
    num_fit, num_not = len(ranking.ranked), len(ranking.does_not_fit)
    too_large = f", {num_not} more do not fit" if num_not else ""
    return (
        f"{num_fit} legal shape{'s' * (num_fit != 1)} of {ranking.model.name} on {ranking.cluster.name} under "
        f"SGLang {ranking.version} ranked by {ranking.objective}{too_large}"
    )


def _table(ranking: Ranking, shown: Sequence[Ranked], width: int) -> list[str]:
    if not shown:
        return []
    is_peak = ranking.objective.maximise
    one_first, peak_first = (0, 2)[is_peak], (2, 0)[is_peak]
    points = [(each.prediction.points[0], each.prediction.peak) for each in shown]
    held = [each.prediction.memory for each in shown]
    columns = [
        Column(title="#", cells=[f"{number}" for number in range(1, len(shown) + 1)]),
        Column(
            title="",
            cells=["=" if each.is_like_best and len(ranking.ranked) > 1 else "" for each in shown],
            is_number=False,
        ),
        Column(title="layout", cells=[each.candidate.requested.label for each in shown], is_number=False),
        Column(title="peak tok/s", cells=[figure(top.output_tok_per_s) for _, top in points], priority=peak_first),
        Column(
            title="",
            cells=[f"({span(top.output_tok_per_s_interval)})" for _, top in points],
            is_number=False,
            priority=1 if is_peak else 8,
        ),
        Column(title="at", cells=[str(top.concurrency) for _, top in points], priority=6),
        Column(
            title="/GPU",
            cells=[
                figure(top.output_tok_per_s / each.prediction.layout.num_gpus)
                for each, (_, top) in zip(shown, points, strict=True)
            ],
            priority=7,
        ),
        Column(title="c1 ms/token", cells=[ms(one.tpot_s) for one, _ in points], priority=one_first),
        Column(
            title="",
            cells=[f"({span(one.tpot_interval_s, 1e3)})" for one, _ in points],
            is_number=False,
            priority=8 if is_peak else 1,
        ),
        Column(title="c1 TTFT ms", cells=[ms(one.ttft_s) for one, _ in points], priority=9),
        Column(title="weights/GPU", cells=[gib(each.weight_bytes) for each in held], priority=4),
        Column(title="mem", cells=[f"{each.mem_fraction_static:.3g}" for each in held], priority=3),
        Column(title="KV tokens", cells=[f"{each.kv_tokens_total:,}" for each in held], priority=5),
        Column(title="", cells=[each.risk for each in held], is_number=False, priority=3),
    ]
    return ["", *table_lines(columns, width)]


def _more(ranking: Ranking, shown: Sequence[Ranked]) -> list[str]:
    left = len(ranking.ranked) - len(shown)
    more = [f"... and {left} more: --all shows them, --pin narrows them down"] if left else []
    return [
        *more,
        _CAPTION,
    ]


def _standing(ranking: Ranking, width: int) -> list[str]:
    lines = ["", *_told_apart(ranking)]
    best = ranking.best
    if best.prediction.unproven:
        lines.append(f"what the first rests on is not proven: {'; '.join(best.prediction.unproven)}")
    at = ranking.deciding_concurrency
    if ranking.peaks_at_the_top:
        lines += [f"the first peaks at concurrency {at}{TOP_OF_THE_LADDER}", *_beyond(ranking)]
    limit = next((each for each in best.prediction.limits if each.concurrency == at), None)
    if limit is not None:
        lines.append(
            f"no layout of these GPUs can exceed {figure(limit.output_tok_per_s)} tok/s at concurrency {at} "
            f"({limit.bound_by})"
        )
    told = [*prose(lines, width), "the first is launched with", f"  {_argv(ranking, best)}"]
    proven = ranking.best_proven
    if proven is None or proven is best:
        return told
    shown = f"{ms(proven.value)} ms/token" if not ranking.objective.maximise else f"{figure(proven.value)} tok/s"
    place = next(place for place, each in enumerate(ranking.ranked, start=1) if each is proven)
    said = (
        f"best of the proven layouts: {proven.candidate.requested.label}, number {place}, {shown}; none of its ways to "
        "split the model is without measurements"
    )
    return [*told, *prose([said], width), f"  {_argv(ranking, proven)}"]


def _told_apart(ranking: Ranking) -> list[str]:
    num_others = len(ranking.ranked) - 1
    if not num_others:
        return []
    alike = sum(each.is_like_best for each in ranking.ranked) - 1
    if not alike:
        return ["the first is told apart from all others"]
    others = "all others" if alike == num_others else f"{alike} others"
    said = (
        f"= not distinguishable from the first: the interval of the ratio holds 1 for {others}; "
        f"measurements decide (tune --objective {ranking.objective})"
    )
    return [said]


def _beyond(ranking: Ranking) -> list[str]:
    found = ranking.beyond
    if found is None or len(ranking.ranked) == 1:
        return []
    if found.is_first:
        return [f"with more requests in flight, up to {found.concurrencies[-1]}, it stays the first"]
    point = found.point
    ladder = ",".join(map(str, dict.fromkeys((1, ranking.workload.concurrencies[-1], point.concurrency))))
    said = (
        f"with more requests in flight another comes first: {found.candidate.requested.label}, "
        f"{figure(point.output_tok_per_s)} tok/s ({span(point.output_tok_per_s_interval)}) at {point.concurrency} "
        f"(--concurrency {ladder}){'; not distinguishable from the first there' * found.is_like_first}"
    )
    return [said]


def _beyond_document(ranking: Ranking) -> dict[str, Any] | None:
    found = ranking.beyond
    if found is None:
        return None
    point = found.point
    return {
        "concurrencies": list(found.concurrencies),
        "is_first": found.is_first,
        "is_like_first": found.is_like_first,
        "label": found.candidate.requested.label,
        "flags": argv_text(found.candidate.requested, ranking.version),
        "concurrency": point.concurrency,
        "output_tok_s": point.output_tok_per_s,
        "interval": interval_document(point.output_tok_per_s_interval),
    }


def _argv(ranking: Ranking, each: Ranked) -> str:
    return argv_text(each.candidate.requested, ranking.version)


def document(ranking: Ranking) -> dict[str, Any]:
    return {
        "model": ranking.model.name,
        "cluster": ranking.cluster.name,
        "engine_version": str(ranking.version),
        "objective": str(ranking.objective),
        "workload": workload_document(ranking.workload),
        "coverage": COVERAGE,
        "calibration": None if ranking.evidence is None else ranking.evidence.document,
        "considered": ranking.space.considered,
        "refused": dict(ranking.space.refused),
        "layouts": [_row(ranking, place, each) for place, each in enumerate(ranking.ranked, start=1)],
        "beyond_ladder": _beyond_document(ranking),
        "does_not_fit": [
            {"label": each.layout.label, "shortfall": shortfall_document(each)} for each in ranking.does_not_fit
        ],
        "pareto_front": [
            {
                "tok_s_per_user": x,
                "output_tok_s_per_gpu": y,
                "layout": each.candidate.requested.label,
                "concurrency": concurrency,
            }
            for x, y, each, concurrency in pareto_front(ranking.ranked)
        ],
    }


def _row(ranking: Ranking, place: int, each: Ranked) -> dict[str, Any]:
    scale = 1.0 if ranking.objective.maximise else 1e3
    return {
        "rank": place,
        "label": each.candidate.requested.label,
        "flags": _argv(ranking, each),
        "is_proven": not each.prediction.unproven_deviation,
        "effective": each.prediction.layout.label,
        "value": each.value * scale,
        "unit": "tok/s" if ranking.objective.maximise else "ms",
        "interval": interval_document(each.interval, scale),
        "is_like_best": each.is_like_best,
        "mem_fraction_static": each.prediction.memory.mem_fraction_static,
        "memory": memory_document(each.prediction.memory),
        "max_concurrency": each.prediction.memory.max_concurrency(ranking.workload),
        "all_reduce": str(each.prediction.all_reduce),
        "points": points_document(each.prediction),
        "unproven": list(each.prediction.unproven),
    }
