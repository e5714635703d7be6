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
from tuner.predict_space import Ranked, Ranking, pareto_front
from tuner.predict_words import figure, gib, load_line, ms, span
from tuner.text_table import Column, table_lines

_CAPTION = (
    "one row a shape, at the mem fraction that does best, the engine's own where none does better; at: concurrency of "
    "the peak; c1: concurrency 1"
)


def report(ranking: Ranking, width: int, limit: int | None) -> list[str]:
    shown = ranking.ranked if limit is None else ranking.ranked[:limit]
    return [
        headline(ranking),
        load_line(ranking.workload),
        *([] if ranking.evidence is None else [ranking.evidence.told]),
        *_table(ranking, shown, width),
        *_more(ranking, shown),
        *_standing(ranking),
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
    first, peak = (5, 0) if ranking.objective.maximise else (0, 5)
    points = [(each.prediction.points[0], each.prediction.peak) for each in shown]
    held = [each.prediction.memory for each in shown]
    columns = [
        Column(title="#", cells=[f"{number}" for number in range(1, len(shown) + 1)]),
        Column(title="", cells=["=" if each.is_like_best else "" for each in shown], is_number=False),
        Column(title="layout", cells=[each.candidate.requested.label for each in shown], is_number=False),
        Column(title="peak tok/s", cells=[figure(top.output_tok_per_s) for _, top in points], priority=peak),
        Column(
            title="",
            cells=[f"({span(top.output_tok_per_s_interval)})" for _, top in points],
            is_number=False,
            priority=peak + 3 if peak else 1,
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
        Column(title="c1 ms/token", cells=[ms(one.tpot_s) for one, _ in points], priority=first),
        Column(
            title="",
            cells=[f"({span(one.tpot_interval_s, 1e3)})" for one, _ in points],
            is_number=False,
            priority=first + 2 if first else 1,
        ),
        Column(title="c1 TTFT ms", cells=[ms(one.ttft_s) for one, _ in points], priority=9),
        Column(title="weights/GPU", cells=[gib(each.weight_bytes) for each in held], priority=4),
        Column(title="mem", cells=[f"{each.mem_fraction_static:.3g}" for each in held], priority=3),
        Column(title="KV tokens", cells=[f"{each.kv_tokens_total:,}" for each in held], priority=3),
        Column(title="", cells=[each.risk for each in held], is_number=False, priority=2),
    ]
    return ["", *table_lines(columns, width)]


def _more(ranking: Ranking, shown: Sequence[Ranked]) -> list[str]:
    left = len(ranking.ranked) - len(shown)
    more = [f"... and {left} more: --all shows them, --pin narrows them down"] if left else []
    return [
        *more,
        _CAPTION,
    ]


def _standing(ranking: Ranking) -> list[str]:
    alike = sum(each.is_like_best for each in ranking.ranked) - 1
    if not alike:
        same = "the first is told apart from all others"
    else:
        others = "all others" if alike == len(ranking.ranked) - 1 else f"{alike} others"
        same = (
            f"= not distinguishable from the first: the interval of the ratio holds 1 for {others}; "
            f"measurements decide (tune --objective {ranking.objective})"
        )
    lines = ["", same]
    best = ranking.best
    if best.prediction.unproven:
        lines.append(f"what the first rests on is not proven: {'; '.join(best.prediction.unproven)}")
    limit = max(best.prediction.limits, key=lambda each: each.output_tok_per_s, default=None)
    if limit is not None:
        lines.append(
            f"no layout of these GPUs can exceed {figure(limit.output_tok_per_s)} tok/s at concurrency "
            f"{limit.concurrency} ({limit.bound_by})"
        )
    return [*lines, "the first is launched with", f"  {argv_text(best.candidate.requested, ranking.version)}"]


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
        "flags": argv_text(each.candidate.requested, ranking.version),
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
