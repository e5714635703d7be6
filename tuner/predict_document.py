"""Parts of predictions as JSON objects: milliseconds, tokens per second and bytes, each metric with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from cost_models.memory_types import DoesNotFit, Memory
from cost_models.prediction import Interval, Limit, Prediction, ServingPoint
from search_spaces.workload import Workload
from tuner.predict_words import per_user, per_user_interval


def workload_document(workload: Workload, asked: Sequence[int] = ()) -> dict[str, Any]:
    """asked: the concurrencies that were asked for; empty: all of the workload's."""
    load = workload_fields(workload)
    return {**load, "concurrencies": list(asked)} if asked else load


def workload_fields(workload: Workload) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(workload).items()}


def shortfall_document(estimate: DoesNotFit) -> dict[str, Any]:
    return {
        "bytes": estimate.shortfall_bytes,
        "stage": str(estimate.stage),
        "message": estimate.message,
        "remedy": str(estimate.remedy),
        "least_fraction": estimate.least_fraction,
        "most_fraction": estimate.most_fraction,
    }


def memory_document(held: Memory) -> dict[str, Any]:
    return {
        "total_bytes": held.total_bytes,
        "parts_bytes": dict(held.parts),
        "weight_bytes": held.weight_bytes,
        "kv_tokens": held.kv_tokens_total,
        "kv_pools": held.kv_replicas,
        "risk": held.risk,
    }


def points_document(estimate: Prediction, shown: Sequence[ServingPoint] | None = None) -> list[dict[str, Any]]:
    """shown: those of its points that were asked for; None: all."""
    limits = {limit.concurrency: limit for limit in estimate.limits}
    points = estimate.points if shown is None else shown
    return [_point(point, estimate.layout.num_gpus, limits.get(point.concurrency)) for point in points]


def _point(point: ServingPoint, num_gpus: int, limit: Limit | None) -> dict[str, Any]:
    most = None if limit is None else limit.output_tok_per_s
    return {
        "concurrency": point.concurrency,
        "ttft_ms": point.ttft_s * 1e3,
        "tpot_ms": point.tpot_s * 1e3,
        "output_tok_s": point.output_tok_per_s,
        "output_tok_s_per_gpu": point.output_tok_per_s / num_gpus,
        "tok_s_per_user": per_user(point),
        "interval": intervals_document(point),
        "limit_tok_s": most,
        "limit_bound_by": None if limit is None else limit.bound_by,
        "share_of_limit": None if most is None else point.output_tok_per_s / most,
    }


def intervals_document(point: ServingPoint) -> dict[str, list[float]]:
    return {
        "ttft_ms": interval_document(point.ttft_interval_s, 1e3),
        "tpot_ms": interval_document(point.tpot_interval_s, 1e3),
        "output_tok_s": interval_document(point.output_tok_per_s_interval),
        "tok_s_per_user": interval_document(per_user_interval(point)),
    }


def interval_document(interval: Interval, scale: float = 1.0) -> list[float]:
    return [interval.low * scale, interval.high * scale]
