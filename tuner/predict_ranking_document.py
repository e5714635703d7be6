"""A ranking as a JSON object."""

from __future__ import annotations

from typing import Any

from cost_models.prediction import COVERAGE
from search_spaces.sglang.all_reduce import all_reduce_choice
from tuner.check_document import argv_text
from tuner.predict_document import (
    interval_document,
    memory_document,
    points_document,
    shortfall_document,
    workload_document,
)
from tuner.predict_space import Ranked, Ranking, pareto_front


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
        "safest": {"label": ranking.safest.candidate.requested.label, "flags": _argv(ranking, ranking.safest)},
        "measured_best": _measured_best_document(ranking),
        "is_lead_unmeasured": ranking.is_lead_unmeasured,
        "died": [each.document for each in ranking.died],
        "switched": None if ranking.switched is None else ranking.switched.document,
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
    scale, unit = _scaled(ranking)
    return {
        "rank": place,
        "label": each.candidate.requested.label,
        "flags": _argv(ranking, each),
        "is_proven": not each.prediction.unproven_deviation,
        "unproven_deviation": each.prediction.unproven_deviation,
        "effective": each.prediction.layout.label,
        "value": each.value * scale,
        "unit": unit,
        "interval": interval_document(each.interval, scale),
        "is_like_best": each.is_like_best,
        "mem_fraction_static": each.prediction.memory.mem_fraction_static,
        "memory": memory_document(each.prediction.memory),
        "max_concurrency": each.prediction.memory.max_concurrency(ranking.workload),
        "all_reduce": _all_reduce(ranking, each),
        "points": points_document(each.prediction),
        "unproven": list(each.prediction.unproven),
    }


def _all_reduce(ranking: Ranking, each: Ranked) -> dict[str, Any] | None:
    """None on one GPU, as of a launch."""
    layout = each.prediction.layout
    if layout.tp_size == 1:
        return None
    choice = all_reduce_choice(ranking.model, ranking.cluster, layout, ranking.version)
    return {"path": str(choice.path), "reason": choice.reason, "source": choice.source}


def _measured_best_document(ranking: Ranking) -> dict[str, Any] | None:
    best = ranking.measured_best
    if best is None:
        return None
    scale, unit = _scaled(ranking)
    return {
        "label": best.requested.label,
        "flags": argv_text(best.requested, ranking.version),
        "value": best.value * scale,
        "unit": unit,
        "trials": list(best.trials),
    }


def _scaled(ranking: Ranking) -> tuple[float, str]:
    """By what a value of the objective is multiplied, and its unit then."""
    return (1.0, "tok/s") if ranking.objective.maximise else (1e3, "ms")


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
        "ttft_ms": point.ttft_s * 1e3,
    }


def _argv(ranking: Ranking, each: Ranked) -> str:
    return argv_text(each.candidate.requested, ranking.version)
