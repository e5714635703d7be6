"""A trial's rungs, told to machines and to people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from textwrap import shorten
from typing import Any

from tuner.measurement import Measurement, RateRung, Rung, Spread
from tuner.outcome import measurement_of, seen_of
from tuner.record import TrialRecord


def rungs_document(measurement: Measurement | None) -> list[dict[str, Any]]:
    return [] if measurement is None else [_rung(rung) for rung in measurement.rungs]


def rates_document(measurement: Measurement | None) -> list[dict[str, Any]]:
    return [] if measurement is None else [_rate(rung) for rung in measurement.rates]


def _rung(rung: Rung) -> dict[str, Any]:
    return {
        "concurrency": rung.concurrency,
        "output_tok_s": rung.output_tok_per_s,
        "window_s": rung.window_s,
        "run_output_tok_s": rung.run_output_tok_per_s,
        "requests_per_s": rung.requests_per_s,
        "num_requests": rung.num_requests,
        **_times(rung.ttft_s, rung.tpot_s),
        "within_limits": rung.within,
        "doubts": list(rung.doubts),
    }


def _rate(rung: RateRung) -> dict[str, Any]:
    return {
        "requests_per_s": rung.requests_per_s,
        "num_requests": rung.num_requests,
        "num_failed": rung.num_failed,
        "is_kept_up": rung.is_kept_up,
        "ended_per_s": rung.ended_per_s,
        "output_tok_s": rung.output_tok_per_s,
        **_times(rung.ttft_s, rung.tpot_s),
        "within_limits": rung.within,
        "doubts": list(rung.doubts),
    }


def _times(ttft_s: Spread, tpot_s: Spread) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name, spread in (("ttft", ttft_s), ("tpot", tpot_s)):
        found[f"{name}_ms"] = spread.mean * 1e3
        for percentile in ("p50", "p90", "p95", "p99"):
            value = getattr(spread, percentile)
            found[f"{name}_{percentile}_ms"] = None if value is None else value * 1e3
    return found


def rung_name(rung: Rung | RateRung) -> str:
    return rung.name if isinstance(rung, RateRung) else f"concurrency {rung.concurrency}"


def doubt_lines(records: Sequence[TrialRecord]) -> list[str]:
    """Why figures may not be the layout's own: a line a trial; what is doubted at several rungs once."""
    lines = []
    for record in records:
        measurement = seen_of(record.outcome)
        if measurement is None:
            continue
        rungs: tuple[Rung | RateRung, ...] = (*measurement.rungs, *measurement.rates)
        told = [f"{rung_name(rung)}: {'; '.join(rung.doubts)}" for rung in rungs if rung.doubts]
        if told:
            text = shorten(" | ".join(told), 400, placeholder=" ...")
            lines.append(f"doubts about trial {record.number} {record.requested.label}: {text}")
    return lines


def ladder_end_lines(records: Sequence[TrialRecord]) -> list[str]:
    """How many ladders of concurrency ended below their top, as there was nothing more to see."""
    found = [measurement_of(record.outcome) for record in records]
    ends = Counter(m.ended.split(" at ")[0].split(":")[0] for m in found if m is not None and m.ended)
    told = ", ".join(f"{count}: {why}" for why, count in sorted(ends.items()))
    return [f"ladders that ended below their top ({told}); --whole-ladder measures all rungs"] if told else []
