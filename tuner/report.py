"""The study told to machines: one JSON document, and the command that launches a layout."""

from __future__ import annotations

import shlex
from typing import Any

from search_spaces.layout import Layout
from search_spaces.sglang.flags import to_argv
from search_spaces.sglang.versions import EngineVersion
from tuner.goodput import Goodput
from tuner.outcome import advice_of, fault_of, rank_of, seen_of
from tuner.record import TrialRecord
from tuner.report_judged import answers_document, rules_at_fault_document
from tuner.report_rungs import rates_document, rungs_document
from tuner.request import Request
from tuner.secret_words import masked_words
from tuner.servers.nodes import command_of
from tuner.standing import CONFIDENCE, Standing, is_tie
from tuner.study_result import StudyResult

FIRST_NODE = "HOST:PORT"
"""An address of node 0 that the other nodes reach, and a free port there."""

UI_PORT = 5000
"""Where `tune ui` serves unless told otherwise."""

_EFFECTIVE = (
    "tp_size",
    "pp_size",
    "dp_size",
    "attn_dp_size",
    "attn_cp_size",
    "attn_tp_size",
    "ep_size",
    "moe_dp_size",
    "moe_tp_size",
    "moe_a2a_backend",
    "mem_fraction_static",
    "chunked_prefill_size",
    "page_size",
    "cuda_graph_max_bs_decode",
    "moe_runner_backend",
)


def flags_object(layout: Layout, version: EngineVersion) -> dict[str, Any]:
    """The launch flags as an object: names without dashes, numbers as numbers, switches as true."""
    flags: dict[str, Any] = {}
    words = list(to_argv(layout, version))
    while words:
        name = words.pop(0).removeprefix("--")
        flags[name] = _number(words.pop(0)) if words and not words[0].startswith("--") else True
    return flags


def _number(word: str) -> int | float | str:
    for read in (int, float):
        try:
            return read(word)
        except ValueError:
            continue
    return word


def effective_object(layout: Layout) -> dict[str, Any]:
    return {name: getattr(layout, name) for name in _EFFECTIVE}


def command_line(request: Request, layout: Layout) -> str:
    """The command that launches `layout`, quoted for a shell, with `***` for secrets."""
    return shlex.join(masked_words(request.engine.production_command(layout, model_path=request.model_path)))


def command_lines(request: Request, layout: Layout) -> list[str]:
    """The same for each node on which `layout` runs; `FIRST_NODE` stands for where they meet."""
    words = masked_words(request.engine.production_command(layout, model_path=request.model_path))
    if layout.nnodes == 1:
        return [shlex.join(words)]
    return [shlex.join(command_of(words, rank=rank, meet=FIRST_NODE)) for rank in range(layout.nnodes)]


def page(result: StudyResult) -> str:
    """The study's page: on the tracking server, or where `tune ui` serves a local store."""
    return result.run_url if "://" in result.run_url else f"http://127.0.0.1:{UI_PORT}/{result.run_url}"


def document(result: StudyResult) -> dict[str, Any]:
    request = result.request
    objective = request.objective
    winner, baseline, current = result.winner, result.baseline, result.current
    second = result.runner_up
    return {
        "study": request.study,
        "objective": str(objective),
        "engine": request.engine.name,
        "engine_version": request.engine.shown_version,
        "simulated": request.engine.is_simulated,
        "simulated_because": request.engine.simulated_because or None,
        "model": request.model.name,
        "cluster": request.cluster.name,
        "workload": {
            "input_tokens": request.workload.input_tokens,
            "output_tokens": request.workload.output_tokens,
            "concurrencies": list(request.workload.concurrencies),
            "requests": request.mix.words or None,
            "request_rates": list(request.mix.request_rates),
        },
        "limits": objective.limits_told if isinstance(objective, Goodput) else None,
        "throughput_is_of": request.mix.figures,
        "winner": _standing(request, winner),
        "baseline": _standing(request, baseline),
        "runner_up": _standing(request, second),
        "current": _standing(request, current),
        "gain": objective.gain(winner.value, baseline.value) if winner and baseline else None,
        "tie": is_tie(winner, second) if winner and second else None,
        "noise": _noise(winner),
        "rules_at_fault": rules_at_fault_document(result.records),
        "stopped_because": result.stopped_because,
        "interrupted": result.interrupted,
        "trials": [_trial(request, r) for r in result.records],
        "pruned": [
            {
                "flags": flags_object(d.layout, request.engine.version),
                "stage": str(d.stage),
                "shortfall_bytes": d.shortfall_bytes,
                "reason": d.message,
            }
            for d in result.does_not_fit
        ],
        "refused": dict(result.space.refused),
        "mlflow": {
            "tracking_uri": result.tracking_uri,
            "experiment_id": result.experiment_id,
            "run_id": result.run_id,
            "url": page(result),
        },
    }


def _standing(request: Request, standing: Standing | None) -> dict[str, Any] | None:
    if standing is None:
        return None
    return {
        "flags": flags_object(standing.requested, request.engine.version),
        "effective": effective_object(standing.effective),
        "command": command_line(request, standing.requested),
        "commands": command_lines(request, standing.requested),
        "value": standing.value,
        "unit": request.objective.unit,
        "interval": None if standing.interval is None else list(standing.interval),
        "interval_confidence": CONFIDENCE,
        "values": list(standing.values),
        "runs": len(standing.values),
    }


def _noise(winner: Standing | None) -> dict[str, Any] | None:
    """Of single runs, as it was seen in repeats."""
    if winner is None or winner.noise is None:
        return None
    return {
        "log_deviation": winner.noise.deviation,
        "degrees_of_freedom": winner.noise.freedom,
        "method": "Student's t on logarithms of whole runs, one deviation pooled over the layouts measured twice",
    }


def _trial(request: Request, record: TrialRecord) -> dict[str, Any]:
    measurement = seen_of(record.outcome)
    return {
        "number": record.number,
        "flags": flags_object(record.requested, request.engine.version),
        "effective": effective_object(record.effective),
        "origin": str(record.origin),
        "outcome": record.outcome.kind,
        "summary": record.outcome.summary,
        "fault": fault_of(record.outcome),
        "rank": rank_of(record.outcome),
        "advice": advice_of(record.outcome),
        "answers": answers_document(record.outcome),
        "value": record.value,
        "unit": request.objective.unit,
        "predicted": request.objective.predicted_by(record.prediction),
        "duration_s": record.duration_s,
        "rungs": rungs_document(measurement),
        "rates": rates_document(measurement),
        "ladder_ended": measurement.ended or None if measurement is not None else None,
        "run_id": record.run_id,
        "reused_from": record.reused_from or None,
    }
