"""What a report says of answers, rules and memory."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from cost_models.estimate import predict
from cost_models.prediction import Prediction
from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.layout import Layout
from search_spaces.workload import Workload
from tuner.correctness import Agreement, Difference
from tuner.measurement import Measurement, Rung, Spread
from tuner.outcome import Crashed, Illegal, Measured, Outcome, WrongAnswers
from tuner.record import Origin, TrialRecord
from tuner.report_judged import (
    answers_document,
    answers_line,
    pool_lines,
    rules_at_fault_document,
    rules_at_fault_lines,
    rungs_told,
    wrong_lines,
)
from tuner.standing import Standing


@cache
def prediction() -> Prediction:
    layout = Layout(tp_size=8, mem_fraction_static=0.9, chunked_prefill_size=8192, cuda_graph_max_bs_decode=64)
    found = predict(load_model("kimi-k2.6"), parse_cluster("8xrtx-pro-6000"), layout, Workload())
    assert isinstance(found, Prediction)
    return found


NEAR = Difference(mean=0.004, largest=0.03, divergence=0.0002, places=128)
FAR = Difference(mean=1.4, largest=4.7, divergence=0.01, places=128)


def measurement(agreement: Agreement | None = None, kv_tokens: int = 10**9) -> Measurement:
    spread = Spread(mean=0.02, p50=0.02, p99=0.02)
    rung = Rung(
        concurrency=16,
        num_requests=32,
        duration_s=10.0,
        output_tok_per_s=900.0,
        ttft_s=spread,
        tpot_s=spread,
        cached_tokens=0,
    )
    return Measurement(rungs=(rung,), simulated=True, startup_s=1.0, kv_tokens=kv_tokens, agreement=agreement)


def record(outcome: Outcome, *command: str) -> TrialRecord:
    layout = Layout(tp_size=8, ep_size=4)
    return TrialRecord(
        number=3,
        requested=layout,
        effective=layout,
        origin=Origin.SAMPLER,
        outcome=outcome,
        value=900.0 if isinstance(outcome, Measured) else None,
        prediction=prediction(),
        command=command,
        duration_s=1.0,
    )


@pytest.mark.parametrize(
    ("agreement", "told"),
    [
        (None, "its answers were not compared with any other layout's"),
        (Agreement(against="", prefill=None, decode=NEAR), "its answers are those that others are compared with"),
        (
            Agreement(against="the baseline TP8", prefill=NEAR, decode=NEAR),
            "its answers agree with those of the baseline TP8 (log-probabilities: mean 0.004, largest 0.03, "
            "divergence 0.0002 nats)",
        ),
    ],
)
def test_a_winner_s_answers_are_told(agreement: Agreement | None, told: str) -> None:
    outcome = Measured(measurement=measurement(agreement))
    assert answers_line(Standing(records=(record(outcome),))) == told


def test_who_answers_wrongly_is_named_and_documented() -> None:
    wrong = WrongAnswers(cause="x", agreement=Agreement(against="the baseline TP8", prefill=FAR, decode=NEAR))
    assert wrong_lines([record(wrong)]) == ["disqualified for wrong answers, whatever their speed: TP8 EP4"]
    document = answers_document(wrong)
    assert document is not None
    assert (document["agree"], document["compared_with"]) == (False, "the baseline TP8")
    assert document["prefill"] == {"mean_nats": 1.4, "largest_nats": 4.7, "divergence_nats": 0.01}
    assert answers_document(Crashed(cause="x", stage="s", exit_code=1)) is None


def test_a_refusal_of_what_the_rules_let_through_is_to_be_reported_with_launch_and_words() -> None:
    refused = record(Illegal(cause="AssertionError: no", stage="graphs", exit_code=1), "python3", "--ep-size", "4")
    (line,) = rules_at_fault_lines([refused])
    assert line == (
        "the rules called trial 3 legal: please report this with its log. The engine: refused at graphs: "
        "AssertionError: no. The launch: python3 --ep-size 4"
    )
    assert rules_at_fault_document([refused]) == [
        {"trial": 3, "command": "python3 --ep-size 4", "engine_says": "refused at graphs: AssertionError: no"}
    ]


def test_a_kv_cache_of_less_than_half_the_predicted_tokens_is_doubted() -> None:
    predicted = prediction().memory.kv_tokens
    less = Measured(measurement=measurement(kv_tokens=predicted // 2 - 1))
    (line,) = pool_lines([record(less)])
    assert line.startswith("doubts about trial 3 TP8 EP4: the server's KV cache holds")
    assert pool_lines([record(less, "--max-total-tokens", "1000")]) == []
    assert pool_lines([record(Measured(measurement=measurement(kv_tokens=predicted // 2 + 1)))]) == []


def test_what_was_measured_below_a_crash_is_told_beside_it() -> None:
    crashed = Crashed(cause="x", stage="concurrency 64", exit_code=137)
    assert rungs_told(crashed, "") == ""
    assert rungs_told(replace(crashed, measurement=measurement()), "900 tok/s") == (
        "; measured up to concurrency 16 (900 tok/s)"
    )
