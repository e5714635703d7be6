"""One predicted launch as a JSON object."""

from __future__ import annotations

from typing import Any

from cost_models.memory_types import DoesNotFit
from cost_models.prediction import COVERAGE, Prediction, StepTime
from search_spaces.sglang.all_reduce import unheeded
from tuner.check_document import argv_text
from tuner.check_document import document as checked_document
from tuner.predict_document import (
    interval_document,
    memory_document,
    points_document,
    shortfall_document,
    workload_document,
)
from tuner.predict_launch import PredictedLaunch, too_large
from tuner.predict_sureness import parts_of


def document(predicted: PredictedLaunch) -> dict[str, Any]:
    """What `check --json` says of the launch, and `prediction`: null where it is illegal or does not fit."""
    launch, estimate = predicted.launch, predicted.estimate
    server = predicted.server
    checked = checked_document(launch.checked)
    lacking = too_large(launch.checked)
    if isinstance(estimate, DoesNotFit):
        lacking = estimate
        checked = {**checked, "fits": False, "kv_tokens": None}
    elif predicted.is_unjudged:
        checked = {**checked, "fits": None, "kv_tokens": None}
    return {
        "model": server.model.name,
        "cluster": server.cluster.name,
        "flags": launch.shown_flags,
        **checked,
        "notes": list(launch.notes),
        "workload": workload_document(predicted.workload, predicted.asked),
        "coverage": COVERAGE,
        "shortfall": None if lacking is None else shortfall_document(lacking),
        "works_as": None if predicted.works_as is None else argv_text(predicted.works_as, server.version),
        "prediction": _prediction(predicted, estimate) if isinstance(estimate, Prediction) else None,
    }


def _prediction(predicted: PredictedLaunch, estimate: Prediction) -> dict[str, Any]:
    fractions, choice = predicted.fractions, predicted.all_reduce
    peak = predicted.peak_of(estimate)
    return {
        "memory": memory_document(estimate.memory),
        "mem_fraction_static": {
            "used": estimate.memory.mem_fraction_static,
            "own": fractions.own,
            "smallest": fractions.smallest,
            "largest": fractions.largest,
        },
        "max_concurrency": predicted.max_concurrency,
        "all_reduce": None
        if choice is None
        else {
            "path": str(choice.path),
            "reason": choice.reason,
            "source": choice.source,
            "times": predicted.all_reduce_times,
            "not_heeded": list(unheeded(predicted.server.env)),
            "switched": None if predicted.switched is None else predicted.switched.document,
        },
        "decode_step": _step(estimate.step, 1, 1),
        "peak_decode_step": _step(
            estimate.peak_step,
            estimate.peak.concurrency,
            min(estimate.peak.concurrency, predicted.max_concurrency),
        ),
        "prefill": _step(estimate.prefill, 1, 1),
        "points": points_document(estimate, predicted.points_of(estimate)),
        "peak": {
            "concurrency": peak.concurrency,
            "output_tok_s": peak.output_tok_per_s,
            "interval": interval_document(peak.output_tok_per_s_interval),
            "may_lie_above": predicted.may_peak_above(estimate),
        },
        "unproven": list(estimate.unproven),
        "interval_parts": []
        if predicted.sweep is None
        else [part.document for part in parts_of(estimate, predicted.sweep)],
        "died": None if predicted.died is None else predicted.died.document,
        "calibration": None if predicted.evidence is None else predicted.evidence.document,
    }


def _step(step: StepTime, concurrency: int, running: int) -> dict[str, Any]:
    """running: of the requests in flight, those that run at once."""
    return {
        "concurrency": concurrency,
        "running": running,
        "total_ms": step.total_s * 1e3,
        "parts_ms": {name: seconds * 1e3 for name, seconds in step.parts},
    }
