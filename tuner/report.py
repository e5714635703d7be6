"""The study told afterwards: one JSON document for machines, a few lines and a table for people."""

from __future__ import annotations

import shlex
from textwrap import shorten
from typing import Any, Literal

from rich.table import Table

from search_spaces.layout import Layout
from search_spaces.sglang.flags import to_argv
from search_spaces.sglang.versions import EngineVersion
from tuner.objective import Objective
from tuner.outcome import measurement_of
from tuner.record import TrialRecord
from tuner.request import Request
from tuner.standing import Standing
from tuner.study_result import StudyResult

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
    """The command that launches `layout`, quoted for a shell."""
    return shlex.join(request.engine.production_command(layout, model_path=request.model_path))


def document(result: StudyResult) -> dict[str, Any]:
    request = result.request
    objective = request.objective
    winner, baseline = result.winner, result.baseline
    return {
        "study": request.study,
        "objective": str(objective),
        "engine": request.engine.name,
        "engine_version": str(request.engine.version),
        "simulated": request.engine.is_simulated,
        "simulated_because": request.engine.simulated_because or None,
        "model": request.model.name,
        "cluster": request.cluster.name,
        "workload": {
            "input_tokens": request.workload.input_tokens,
            "output_tokens": request.workload.output_tokens,
            "concurrencies": list(request.workload.concurrencies),
        },
        "winner": _standing(request, winner),
        "baseline": _standing(request, baseline),
        "gain": objective.gain(winner.value, baseline.value) if winner and baseline else None,
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
            "url": result.run_url,
        },
    }


def _standing(request: Request, standing: Standing | None) -> dict[str, Any] | None:
    if standing is None:
        return None
    return {
        "flags": flags_object(standing.requested, request.engine.version),
        "effective": effective_object(standing.effective),
        "command": command_line(request, standing.requested),
        "value": standing.value,
        "unit": request.objective.unit,
        "interval": None if standing.interval is None else list(standing.interval),
        "runs": len(standing.values),
    }


def _trial(request: Request, record: TrialRecord) -> dict[str, Any]:
    measurement = measurement_of(record.outcome)
    return {
        "number": record.number,
        "flags": flags_object(record.requested, request.engine.version),
        "effective": effective_object(record.effective),
        "origin": str(record.origin),
        "outcome": record.outcome.kind,
        "summary": record.outcome.summary,
        "value": record.value,
        "unit": request.objective.unit,
        "predicted": request.objective.predicted_by(record.prediction),
        "duration_s": record.duration_s,
        "rungs": []
        if measurement is None
        else [
            {
                "concurrency": r.concurrency,
                "output_tok_s": r.output_tok_per_s,
                "ttft_ms": r.ttft_s.mean * 1e3,
                "tpot_ms": r.tpot_s.mean * 1e3,
            }
            for r in measurement.rungs
        ],
        "run_id": record.run_id,
        "reused_from": record.reused_from or None,
    }


def verdict_lines(result: StudyResult) -> list[str]:
    """Winner, margin, and what it rests on: one fact a line."""
    request, objective = result.request, result.request.objective
    lines = [f"study {request.study}: {result.stopped_because}"]
    winner, baseline = result.winner, result.baseline
    if winner is None:
        return [*lines, "no trial gave a measurement: there is no winner"]
    lines.append(f"winner: {winner.requested.label}, {_with_spread(objective, winner)}")
    if baseline is None:
        lines.append(f"the baseline {result.space.baseline.requested.label} gave no measurement to compare with")
    elif baseline.effective == winner.effective:
        lines.append("the winner is the plain tensor-parallel baseline")
    else:
        gain = objective.gain(winner.value, baseline.value)
        lines.append(f"{gain:.2f} times the baseline {baseline.requested.label}, {_with_spread(objective, baseline)}")
    if len(result.standings) > 1:
        second = result.standings[1]
        lines.append(
            f"runner-up: {second.requested.label}, {_with_spread(objective, second)}, "
            f"{100 * (objective.gain(winner.value, second.value) - 1):.1f} % behind"
        )
    return lines


def _with_spread(objective: Objective, standing: Standing) -> str:
    shown = objective.shown(standing.value)
    if standing.interval is None:
        return f"{shown} (one run)"
    low, high = (objective.shown(v).split(" ")[0] for v in standing.interval)
    return f"{shown} ({len(standing.values)} runs, {low} to {high})"


def space_line(result: StudyResult) -> str:
    refused = sorted(result.space.refused.items(), key=lambda kv: -kv[1])
    told = ", ".join(f"{rule} {count}" for rule, count in refused[:5])
    more = f" and {len(refused) - 5} more rules" if len(refused) > 5 else ""
    return (
        f"space: {len(result.space.candidates)} legal layouts of {result.space.considered} combinations; "
        f"{len(result.does_not_fit)} of them do not fit in memory; refused by rule: {told}{more}"
    )


def ends_without_value(result: StudyResult) -> list[str]:
    """For each trial that gave no value, how it ended: a line each."""
    return [
        f"trial {r.number} {r.requested.label}: {shorten(r.outcome.summary, 240, placeholder=' ...')}"
        for r in result.records
        if r.value is None
    ]


def trial_table(result: StudyResult) -> Table:
    request, objective = result.request, result.request.objective
    table = Table(title=f"Trials, best first ({objective})", title_justify="left")
    columns: tuple[tuple[str, Literal["left", "right"]], ...] = (
        ("#", "right"),
        ("layout", "left"),
        ("why", "left"),
        ("outcome", "left"),
        ("value", "right"),
        ("predicted", "right"),
        ("peak tok/s", "right"),
        ("at", "right"),
        ("c1 ms/token", "right"),
        ("c1 TTFT ms", "right"),
    )
    for name, justify in columns:
        table.add_column(name, justify=justify, no_wrap=True)
    sign = -1 if objective.maximise else 1
    for r in sorted(result.records, key=lambda r: (r.value is None, sign * (r.value or 0.0), r.number)):
        measurement = measurement_of(r.outcome)
        first = measurement.at(1) if measurement else None
        table.add_row(
            str(r.number),
            r.requested.label,
            str(r.origin),
            r.outcome.kind,
            "" if r.value is None else objective.shown(r.value).split(" ")[0],
            objective.shown(objective.predicted_by(r.prediction)).split(" ")[0],
            f"{measurement.peak.output_tok_per_s:.4g}" if measurement else "",
            str(measurement.peak.concurrency) if measurement else "",
            f"{first.tpot_s.mean * 1e3:.4g}" if first else "",
            f"{first.ttft_s.mean * 1e3:.4g}" if first else "",
        )
    table.caption = (
        f"value and predicted in {'tok/s' if objective.maximise else 'ms/token'}; at: concurrency of the peak; "
        "c1: concurrency 1" + ("; times are simulated seconds" if request.engine.is_simulated else "")
    )
    table.caption_justify = "left"
    return table


def note(result: StudyResult) -> str:
    """The study in Markdown, verdict first: what MLflow shows at the top of its page."""
    request = result.request
    lines = verdict_lines(result)
    first = lines[1] if len(lines) > 1 else lines[0]
    parts = [first, *[line for line in lines if line != first]]
    if result.winner is not None:
        parts.append(f"```\n{command_line(request, result.winner.requested)}\n```")
    parts.append(space_line(result))
    return "\n\n".join(parts)
