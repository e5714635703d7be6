"""A run's parameters, metrics, tags and status in MLflow: what its table sorts, filters and plots by.

Metric names carry their units. Times are the engine's: wall seconds, or those of a simulated server's clock.
"""

from __future__ import annotations

import dataclasses
import shlex
from typing import assert_never

from cost_models.prediction import Prediction
from search_spaces.layout import Layout
from tuner.measurement import Measurement, Rung
from tuner.outcome import (
    Crashed,
    Environment,
    Hung,
    Illegal,
    Interrupted,
    Measured,
    Outcome,
    OutOfMemory,
    StoppedEarly,
    advice_of,
    evidence_of,
    fault_of,
    measurement_of,
    rank_of,
)
from tuner.record import TrialRecord
from tuner.request import Request
from tuner.tracking_store import Point, RunStatus, without_password

_GIB = 2**30


def run_name(request: Request, name: str) -> str:
    return f"simulated {name}" if request.engine.is_simulated else name


def trial_name(request: Request, number: int, effective: Layout) -> str:
    """The number first: MLflow's table shows some fifteen characters."""
    return run_name(request, f"#{number} {effective.label}")


def marks(request: Request, study: str) -> dict[str, str]:
    """Tags that every run of a study carries."""
    tags = {
        "tune.study": study,
        "tune.context": request.context_key,
        "tune.store": request.store_key,
        "tune.objective": str(request.objective),
    }
    if request.engine.is_simulated:
        tags |= {"tune.simulated": "true", "tune.simulated_because": request.engine.simulated_because}
    return tags


def setting_params(request: Request) -> dict[str, object]:
    """What a measurement depends on besides the layout. Fixed for a study, so that resuming cannot alter it."""
    model, cluster, workload = request.model, request.cluster, request.workload
    return {
        "model": model.name,
        "model_layers": model.num_layers,
        "model_experts": model.num_experts,
        "model_experts_per_token": model.experts_per_token,
        "model_quantization": str(model.quantization.scheme),
        "model_weight_gib": round(model.weight_bytes / _GIB, 1),
        "cluster": cluster.name,
        "gpu": cluster.gpu.name,
        "gpu_memory_gib": round(cluster.gpu.memory_bytes / _GIB, 1),
        "gpu_link": str(cluster.gpu.link),
        "cluster_gpus": cluster.num_gpus,
        "engine": request.engine.name,
        "engine_version": request.engine.shown_version,
        "engine_args": shlex.join(request.engine.extra_args) or "none",
        "input_tokens": workload.input_tokens,
        "output_tokens": workload.output_tokens,
        "concurrencies": ",".join(map(str, workload.concurrencies)),
    }


def asked_tags(request: Request) -> dict[str, str]:
    """What one call asks for and the next may ask for otherwise: parameters cannot change, tags can."""
    return {
        "tune.trials": str(request.trials),
        "tune.budget_s": "none" if request.budget_s is None else f"{request.budget_s:g}",
        "tune.seed": str(request.seed),
        "tune.model_path": request.model_path,
        "tune.pins": ", ".join(f"{k}={v}" for k, v in request.pins.items()) or "none",
        "tune.baseline": "none" if request.baseline is None else request.baseline.label,
        "tune.storage": without_password(request.storage_url),
    }


def layout_params(effective: Layout) -> dict[str, object]:
    """The layout as columns: short names, plain numbers, in the order in which people read a layout."""
    columns: dict[str, object] = {
        "tp": effective.tp_size,
        "pp": effective.pp_size,
        "dp": effective.dp_size,
        "attn_dp": effective.attn_dp_size,
        "attn_cp": effective.attn_cp_size,
        "ep": effective.ep_size,
        "moe_dp": effective.moe_dp_size,
        "a2a_backend": effective.moe_a2a_backend,
        "mem_fraction": effective.mem_fraction_static,
        "chunked_prefill": effective.chunked_prefill_size,
        "num_gpus": effective.num_gpus,
        "moe_runner": effective.moe_runner_backend,
    }
    return {name: "auto" if value is None else value for name, value in columns.items()}


def adjustments(requested: Layout, effective: Layout) -> dict[str, str]:
    """What the engine changes in the layout asked for: field to `from -> to`. Filling in what was left open
    is no change."""
    pairs = ((f.name, getattr(requested, f.name), getattr(effective, f.name)) for f in dataclasses.fields(Layout))
    return {name: f"{_shown(a)} -> {_shown(b)}" for name, a, b in pairs if a != b and a not in {None, "auto"}}


def layout_tags(requested: Layout, effective: Layout) -> dict[str, str]:
    """Requested beside effective. `requested.<field>` is there for each field that the engine changes."""
    changed = adjustments(requested, effective)
    return {
        "tune.layout": effective.label,
        "tune.requested": requested.label,
        "tune.adjusted": "; ".join(f"{name} {change}" for name, change in changed.items()),
        **{f"requested.{name}": _shown(getattr(requested, name)) for name in changed},
    }


def outcome_tags(outcome: Outcome) -> dict[str, str]:
    tags = {"tune.outcome": outcome.kind, "tune.evidence": "\n".join(evidence_of(outcome))}
    match outcome:
        case Measured():
            pass
        case StoppedEarly():
            tags["tune.cause"] = outcome.reason
        case OutOfMemory():
            tags |= {"tune.cause": outcome.cause, "tune.stage": outcome.stage, "tune.direction": outcome.direction}
        case Illegal() | Crashed() | Environment():
            tags |= {"tune.cause": outcome.cause, "tune.stage": outcome.stage}
        case Hung():
            tags |= {"tune.cause": outcome.summary, "tune.stage": outcome.stage}
        case Interrupted():
            tags["tune.cause"] = outcome.cause
        case _:
            assert_never(outcome)
    if isinstance(outcome, Illegal | OutOfMemory | Crashed | Environment) and outcome.exit_code is not None:
        tags["tune.exit_code"] = str(outcome.exit_code)
    failed = {"tune.fault": fault_of(outcome) or "", "tune.rank": rank_of(outcome), "tune.advice": advice_of(outcome)}
    return tags | {name: text for name, text in failed.items() if text}


def status_of(outcome: Outcome) -> RunStatus:
    """FINISHED where something was learnt about the layout, however the trial went."""
    match outcome:
        case Measured() | StoppedEarly() | Illegal() | OutOfMemory() | Crashed() | Hung():
            return "FINISHED"
        case Environment():
            return "FAILED"
        case Interrupted():
            return "KILLED"
        case _:
            assert_never(outcome)


def rung_points(rung: Rung) -> list[Point]:
    """Series over concurrency."""
    values = {
        "output_tok_per_s": rung.output_tok_per_s,
        "tpot_mean_ms": rung.tpot_s.mean * 1e3,
        "tpot_p99_ms": rung.tpot_s.p99 * 1e3,
        "ttft_mean_ms": rung.ttft_s.mean * 1e3,
        "ttft_p50_ms": rung.ttft_s.p50 * 1e3,
        "ttft_p99_ms": rung.ttft_s.p99 * 1e3,
    }
    return [Point(name=f"sweep/{n}", value=v, step=rung.concurrency) for n, v in values.items()]


def trial_points(request: Request, record: TrialRecord) -> list[Point]:
    """The score, the prediction beside it, then everything else that is one number a trial."""
    values: dict[str, float | None] = {
        "score": record.value,
        "predicted_score": request.objective.predicted_by(record.prediction),
        "prediction_error_pct": prediction_error_pct(request, record),
    }
    measurement = measurement_of(record.outcome)
    if measurement is not None:
        values |= _measured_values(measurement)
    values |= _predicted_values(record.prediction)
    values["duration_s"] = record.duration_s
    points = [Point(name=n, value=v) for n, v in values.items() if v is not None]
    for p in record.prediction.points:
        points += [
            Point(name="sweep/predicted_output_tok_per_s", value=p.output_tok_per_s, step=p.concurrency),
            Point(name="sweep/predicted_tpot_ms", value=p.tpot_s * 1e3, step=p.concurrency),
            Point(name="sweep/predicted_ttft_ms", value=p.ttft_s * 1e3, step=p.concurrency),
            Point(name="sweep/predicted_tpot_ms_low", value=p.tpot_interval_s.low * 1e3, step=p.concurrency),
            Point(name="sweep/predicted_tpot_ms_high", value=p.tpot_interval_s.high * 1e3, step=p.concurrency),
            Point(
                name="sweep/predicted_output_tok_per_s_low", value=p.output_tok_per_s_interval.low, step=p.concurrency
            ),
            Point(
                name="sweep/predicted_output_tok_per_s_high", value=p.output_tok_per_s_interval.high, step=p.concurrency
            ),
        ]
    return points


def prediction_error_pct(request: Request, record: TrialRecord) -> float | None:
    """How far the prediction lies above what was measured; None without a measured value."""
    if not record.value:
        return None
    return 100 * (request.objective.predicted_by(record.prediction) / record.value - 1)


def _measured_values(measurement: Measurement) -> dict[str, float | None]:
    values: dict[str, float | None] = {}
    if measurement.rungs:
        peak = measurement.peak
        values |= {
            "peak_output_tok_per_s": peak.output_tok_per_s,
            "best_concurrency": peak.concurrency,
            "peak_tpot_p99_ms": peak.tpot_s.p99 * 1e3,
            "peak_ttft_p99_ms": peak.ttft_s.p99 * 1e3,
        }
    if (single := measurement.at(1)) is not None:
        values |= {"c1_tpot_ms": single.tpot_s.mean * 1e3, "c1_ttft_ms": single.ttft_s.mean * 1e3}
    return values | {
        "startup_s": measurement.startup_s,
        "kv_tokens": measurement.kv_tokens,
        "num_requests": sum(r.num_requests for r in measurement.rungs),
        "cached_tokens": sum(r.cached_tokens for r in measurement.rungs),
    }


def _predicted_values(prediction: Prediction) -> dict[str, float | None]:
    single = next((p for p in prediction.points if p.concurrency == 1), None)
    return {
        "predicted_peak_output_tok_per_s": max((p.output_tok_per_s for p in prediction.points), default=None),
        "predicted_c1_tpot_ms": single.tpot_s * 1e3 if single else None,
        "predicted_c1_ttft_ms": single.ttft_s * 1e3 if single else None,
        "predicted_kv_tokens": prediction.memory.kv_tokens,
        "predicted_weight_gib": prediction.memory.weight_bytes / _GIB,
    }


def _shown(value: object) -> str:
    return "auto" if value is None else str(value)
