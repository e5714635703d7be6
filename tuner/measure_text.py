"""What was measured of a server that somebody else started, told to people and to machines."""

from __future__ import annotations

from typing import Any

from search_spaces.workload import Workload
from tuner.load_mix import LoadMix, load_told
from tuner.measured_server import FoundServer
from tuner.measurement import Measurement
from tuner.outcome import Outcome, seen_of
from tuner.report_rungs import rung_name, rungs_document
from tuner.text_table import Column, table_lines


def opening_lines(server: FoundServer, workload: Workload, mix: LoadMix) -> list[str]:
    pool = f", KV cache {server.kv_tokens:,} tokens" if server.kv_tokens else ""
    ladder = ",".join(map(str, workload.concurrencies))
    lines = [
        f"{server.base_url}: {server.model} as {server.layout.label}, SGLang {server.release}{pool}",
        f"{load_told(workload, mix)}, concurrency {ladder}",
        "prompts are random tokens, and the prefix cache is emptied before each rung",
    ]
    if server.is_simulated:
        why = server.simulated_because
        lines.insert(0, f"every figure is simulated ({why}): times are seconds of the simulated server's clock")
    if server.running:
        lines.append(
            f"beware: {server.running} requests of others are running there: what is measured is what they leave"
        )
    return lines


def result_lines(outcome: Outcome, width: int) -> list[str]:
    """The table, and what there is to say of it."""
    measurement = seen_of(outcome)
    lines = [] if measurement is None or not measurement.rungs else _table(measurement, width)
    if measurement is not None:
        lines += [f"doubts about {rung_name(r)}: {'; '.join(r.doubts)}" for r in measurement.rungs if r.doubts]
        if measurement.ended:
            lines.append(f"no further concurrency: {measurement.ended} (--whole-ladder measures all)")
    if outcome.kind != "measured":
        lines.append(outcome.summary)
    return lines


def _table(measurement: Measurement, width: int) -> list[str]:
    rungs = measurement.rungs
    rows: list[tuple[str, int, list[float | None]]] = [
        ("tok/s", 0, [r.output_tok_per_s for r in rungs]),
        ("whole run", 3, [r.run_output_tok_per_s for r in rungs]),
        ("TTFT p50 ms", 1, [r.ttft_s.p50 * 1e3 for r in rungs]),
        ("p99", 2, [r.ttft_s.p99 * 1e3 for r in rungs]),
        ("TPOT p50 ms", 1, [r.tpot_s.p50 * 1e3 for r in rungs]),
        ("p99", 2, [r.tpot_s.p99 * 1e3 for r in rungs]),
        ("requests", 4, [float(r.num_requests) for r in rungs]),
    ]
    columns = [Column(title="at once", cells=[str(r.concurrency) for r in rungs])]
    columns += [
        Column(title=title, cells=["" if v is None else _figure(v) for v in values], priority=priority)
        for title, priority, values in rows
    ]
    columns.append(Column(title="doubts", cells=[str(len(r.doubts) or "") for r in rungs], is_number=True, priority=1))
    return table_lines(columns, width)


def document(
    server: FoundServer, workload: Workload, mix: LoadMix, outcome: Outcome, mlflow: dict[str, str]
) -> dict[str, Any]:
    measurement = seen_of(outcome)
    mark = {"simulated_because": server.simulated_because} if server.is_simulated else {}
    return {
        "url": server.base_url,
        "simulated": server.is_simulated,
        **mark,
        "engine_version": server.release,
        "model": server.model,
        "layout": server.layout.label,
        "num_gpus": server.layout.num_gpus,
        "kv_tokens": server.kv_tokens,
        "input_tokens": workload.input_tokens,
        "output_tokens": workload.output_tokens,
        "throughput_is_of": mix.figures,
        "requests_of_others": server.running,
        "outcome": outcome.kind,
        "summary": outcome.summary,
        "rungs": rungs_document(measurement),
        "ladder_ended": "" if measurement is None else measurement.ended,
        "mlflow": mlflow,
    }


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
