"""Rungs told to people and machines: what is doubted, and where a ladder ended."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from search_spaces.layout import Layout
from tuner.measurement import Measurement, RateRung, RequestTiming, Rung
from tuner.outcome import Environment, Measured
from tuner.report_rungs import doubt_lines, ladder_end_lines, rates_document, rungs_document


def request(start_s: float, error: str = "") -> RequestTiming:
    return RequestTiming(
        start_s=start_s,
        first_token_s=start_s + 0.1,
        end_s=start_s + 2.1,
        prompt_tokens=8,
        output_tokens=101,
        first_chunk_tokens=1,
        cached_tokens=0,
        error=error,
    )


RUNG = Rung.of(1, [request(0.0), request(2.1), request(4.2)])
MEASUREMENT = Measurement(rungs=(RUNG,), simulated=False, startup_s=1.0, kv_tokens=9)


def trial(number: int, **changes: Any) -> Any:
    """Of a record, what is read here."""
    outcome = Measured(measurement=replace(MEASUREMENT, **changes))
    return SimpleNamespace(number=number, requested=Layout(tp_size=8), outcome=outcome)


def test_doubts_are_a_line_a_trial_with_the_rungs_they_are_about() -> None:
    rate = RateRung.of(2.0, [request(0.0), request(0.5, error="HTTP 503")])
    doubted = replace(RUNG, doubts=("the client was busy", "the cache was warm"))
    failed = SimpleNamespace(number=2, requested=Layout(), outcome=Environment(cause="x", stage="y", exit_code=None))
    assert doubt_lines([trial(0), trial(1, rungs=(doubted,), rates=(rate,)), failed]) == [
        "doubts about trial 1 TP8: concurrency 1: the client was busy; the cache was warm | "
        "2 requests/s: 1 of 2 requests failed: HTTP 503"
    ]


def test_ladders_that_ended_early_are_counted_by_their_reason() -> None:
    peaked = [trial(n, ended=f"throughput peaked at concurrency {n} (9 tok/s)") for n in (4, 16)]
    full = trial(9, ended="the KV pool was full: of 64 requests never more than 54 were running")
    assert ladder_end_lines([trial(0), *peaked, full]) == [
        "ladders that ended below their top (1: the KV pool was full, 2: throughput peaked); --whole-ladder measures "
        "all rungs"
    ]
    assert ladder_end_lines([trial(0)]) == []


def test_the_document_has_both_throughputs_and_every_percentile() -> None:
    (rung,) = rungs_document(MEASUREMENT)
    assert rung["run_output_tok_s"] == pytest.approx(303 / 6.3)
    assert rung["output_tok_s"] == pytest.approx(202 / 4.2)
    assert (rung["window_s"], rung["num_requests"]) == (pytest.approx(4.2), 3)
    assert rung["ttft_p95_ms"] == pytest.approx(100.0)
    assert rungs_document(None) == rates_document(None) == rates_document(MEASUREMENT) == []
