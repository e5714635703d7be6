"""A run's parameters, metrics, tags and status in MLflow: what its table sorts, filters and plots by.

Metric names carry their units. Times are the engine's: wall seconds, or those of a simulated server's clock.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping
from typing import assert_never

from cost_models.prediction import Prediction
from search_spaces.layout import Layout
from tuner.goodput import Goodput
from tuner.measurement import Measurement, RateRung, Rung, Spread
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
    WrongAnswers,
    advice_of,
    evidence_of,
    fault_of,
    measurement_of,
    rank_of,
    seen_of,
)
from tuner.record import TrialRecord
from tuner.report_judged import agreement_of
from tuner.report_rungs import rung_name
from tuner.request import Request
from tuner.secret_words import masked_words
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
        "engine_args": shlex.join(masked_words(request.engine.extra_args)) or "none",
        "input_tokens": workload.input_tokens,
        "output_tokens": workload.output_tokens,
        "concurrencies": ",".join(map(str, workload.concurrencies)),
        "requests": request.mix.words or "all alike",
        "request_rates": ",".join(f"{rate:g}" for rate in request.mix.request_rates) or "none",
        "limits": request.objective.limits_told if isinstance(request.objective, Goodput) else "none",
        "throughput_is_of": request.mix.figures,
    }


def place_params(request: Request) -> dict[str, object]:
    """Where a trial's server runs. Not of the study: it may go on elsewhere."""
    return {"hosts": request.hosts_told}


def asked_tags(request: Request) -> dict[str, str]:
    """What one call asks for and the next may ask for otherwise: parameters cannot change, tags can."""
    return {
        "tune.trials": str(request.trials),
        "tune.budget_s": "none" if request.budget_s is None else f"{request.budget_s:g}",
        "tune.seed": str(request.seed),
        "tune.model_path": request.model_path,
        "tune.hosts": request.hosts_told,
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
        case Illegal() | Crashed() | WrongAnswers() | Environment():
            tags |= {"tune.cause": outcome.cause, "tune.stage": outcome.stage}
        case Hung():
            tags |= {"tune.cause": outcome.summary, "tune.stage": outcome.stage}
        case Interrupted():
            tags["tune.cause"] = outcome.cause
        case _:
            assert_never(outcome)
    if isinstance(outcome, Illegal | OutOfMemory | Crashed | Environment) and outcome.exit_code is not None:
        tags["tune.exit_code"] = str(outcome.exit_code)
    tags |= _answers_tag(outcome)
    failed = {"tune.fault": fault_of(outcome) or "", "tune.rank": rank_of(outcome), "tune.advice": advice_of(outcome)}
    return tags | {name: text for name, text in failed.items() if text}


def _answers_tag(outcome: Outcome) -> dict[str, str]:
    agreement = agreement_of(outcome)
    if agreement is None:
        return {}
    agrees = "wrong" if isinstance(outcome, WrongAnswers) else "agree" if agreement.against else "the reference"
    return {"tune.answers": agrees, "tune.answers_compared_with": agreement.against}


def status_of(outcome: Outcome) -> RunStatus:
    """FINISHED where something was learnt about the layout, however the trial went."""
    match outcome:
        case Measured() | StoppedEarly() | Illegal() | OutOfMemory() | Crashed() | WrongAnswers() | Hung():
            return "FINISHED"
        case Environment():
            return "FAILED"
        case Interrupted():
            return "KILLED"
        case _:
            assert_never(outcome)


def rung_points(rung: Rung) -> list[Point]:
    """Series over concurrency: throughput of the steady window, and of the whole run beside it."""
    values = {
        "output_tok_per_s": rung.output_tok_per_s,
        "window_s": rung.window_s,
        "run_output_tok_per_s": rung.run_output_tok_per_s,
        "requests_per_s": rung.requests_per_s,
        "num_requests": rung.num_requests,
        **_times_ms(rung.ttft_s, rung.tpot_s),
        "within_limits_share": rung.within,
        "num_doubts": len(rung.doubts),
        "client_core_share": rung.client.core if rung.client is not None else None,
        "client_late_p99_ms": rung.client.late_p99_s * 1e3 if rung.client is not None else None,
    }
    return [Point(name=f"sweep/{n}", value=v, step=rung.concurrency) for n, v in values.items() if v is not None]


def rate_points(rung: RateRung) -> list[Point]:
    """Series over the request rate; the step, which is a whole number, is in thousandths of a request per second."""
    values = {
        "requests_per_s": rung.requests_per_s,
        "num_requests": rung.num_requests,
        "num_failed": rung.num_failed,
        "ended_per_s": rung.ended_per_s,
        "is_kept_up": float(rung.is_kept_up),
        "output_tok_per_s": rung.output_tok_per_s,
        **_times_ms(rung.ttft_s, rung.tpot_s),
        "within_limits_share": rung.within,
        "num_doubts": len(rung.doubts),
    }
    step = round(rung.requests_per_s * 1e3)
    return [Point(name=f"rate/{n}", value=v, step=step) for n, v in values.items() if v is not None]


def _times_ms(ttft_s: Spread, tpot_s: Spread) -> dict[str, float]:
    return {
        f"{name}_{statistic}_ms": getattr(spread, statistic) * 1e3
        for name, spread in (("tpot", tpot_s), ("ttft", ttft_s))
        for statistic in ("mean", "p50", "p90", "p95", "p99")
        if getattr(spread, statistic) is not None
    }


def doubts_tag(outcome: Outcome) -> dict[str, str]:
    """`tune.doubts`: why figures may not be the layout's own, a line a rung; no tag where there are none."""
    measurement = seen_of(outcome)
    if measurement is None:
        return {}
    rungs: tuple[Rung | RateRung, ...] = (*measurement.rungs, *measurement.rates)
    lines = [f"{rung_name(rung)}: {'; '.join(rung.doubts)}" for rung in rungs if rung.doubts]
    return {"tune.doubts": "\n".join(lines)} if lines else {}


def start_points(stage_s: Mapping[str, float]) -> list[Point]:
    """`start.weights_s` and the like: seconds that each stage of a server's start took."""
    names = {stage: re.sub(r"[^a-z0-9]+", "_", stage.lower()).strip("_") for stage in stage_s}
    return [Point(name=f"start.{names[stage]}_s", value=spent_s, step=0) for stage, spent_s in stage_s.items()]


def trial_points(request: Request, record: TrialRecord) -> list[Point]:
    """The score, the prediction beside it, then everything else that is one number a trial."""
    values: dict[str, float | None] = {
        "score": record.value,
        "predicted_score": request.objective.predicted_by(record.prediction),
        "prediction_error_pct": prediction_error_pct(request, record),
    }
    measurement = measurement_of(record.outcome)
    rates: list[Point] = []
    if measurement is not None:
        values |= _measured_values(measurement)
        rates = [point for rung in measurement.rates for point in rate_points(rung)]
    values |= _answer_values(record.outcome) | _predicted_values(record.prediction)
    values["duration_s"] = record.duration_s
    points = [Point(name=n, value=v) for n, v in values.items() if v is not None] + rates
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
            "peak_run_output_tok_per_s": peak.run_output_tok_per_s,
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


def _answer_values(outcome: Outcome) -> dict[str, float | None]:
    agreement = agreement_of(outcome)
    prefill = None if agreement is None else agreement.prefill
    if prefill is None:
        return {}
    return {
        "answers_mean_difference_nats": prefill.mean,
        "answers_largest_difference_nats": prefill.largest,
        "answers_divergence_nats": prefill.divergence,
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
