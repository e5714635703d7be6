"""What a study has to say beside its figures: whether answers are right, and where rules or memory model were wrong."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from textwrap import shorten
from typing import Any

from tuner.correctness import Agreement
from tuner.outcome import Illegal, Outcome, WrongAnswers, measurement_of, seen_of
from tuner.record import TrialRecord
from tuner.standing import CONFIDENCE, Standing, is_tie

LEAST_POOL_SHARE = 0.5
"""A KV cache of fewer tokens than this share of the predicted ones is no matter of the model's usual error."""
_POOL_OPTION = "--max-total-tokens"


def agreement_of(outcome: Outcome) -> Agreement | None:
    """None where the answers were not judged."""
    if isinstance(outcome, WrongAnswers):
        return outcome.agreement
    seen = seen_of(outcome)
    return None if seen is None else seen.agreement


def answers_line(standing: Standing) -> str:
    """Whether what a layout computes was judged, and how far it is from the reference."""
    found = [a for a in (agreement_of(r.outcome) for r in standing.records) if a is not None]
    if not found:
        return "its answers were not compared with any other layout's"
    compared = [a for a in found if a.prefill is not None]
    if not compared:
        return "its answers are those that others are compared with"
    worst = max(compared, key=lambda a: 0.0 if a.prefill is None else a.prefill.mean)
    assert worst.prefill is not None
    return f"its answers agree with those of {worst.against} (log-probabilities: {worst.prefill.shown})"


def wrong_lines(records: Sequence[TrialRecord]) -> list[str]:
    """The layouts that were disqualified for what they answer."""
    wrong = {r.requested.label: None for r in records if isinstance(r.outcome, WrongAnswers)}
    return [f"disqualified for wrong answers, whatever their speed: {', '.join(wrong)}"] if wrong else []


def tie_line(first: Standing, second: Standing) -> str:
    """Empty where they can be told apart."""
    if not is_tie(first, second):
        return ""
    counts = len(first.values), len(second.values)
    noise = "what single runs differ by" if max(counts) == 1 else f"the noise of {counts[0]} and {counts[1]} runs"
    return f"{first.requested.label} and {second.requested.label} tie: the difference is within {noise}"


def spread_told(standing: Standing, low: str, high: str) -> str:
    return f"{len(standing.values)} runs, {low} to {high} at {100 * CONFIDENCE:.0f} %"


def rules_at_fault(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Of launches that the engine refused though the rules called them legal."""
    return [record for record in records if isinstance(record.outcome, Illegal)]


def rules_at_fault_lines(records: Sequence[TrialRecord]) -> list[str]:
    lines = []
    for record in rules_at_fault(records):
        words = shorten(record.outcome.summary, 300, placeholder=" ...")
        lines.append(
            f"the rules called trial {record.number} legal: please report this with its log. The engine: {words}. "
            f"The launch: {shlex.join(record.command)}"
        )
    return lines


def rules_at_fault_document(records: Sequence[TrialRecord]) -> list[dict[str, Any]]:
    return [
        {"trial": record.number, "command": shlex.join(record.command), "engine_says": record.outcome.summary}
        for record in rules_at_fault(records)
    ]


def pool_doubt(record: TrialRecord) -> str:
    """Where the server has room for far fewer tokens than predicted; empty where it has not."""
    seen, predicted = measurement_of(record.outcome), record.prediction.memory.kv_tokens
    capped = any(word.split("=")[0] == _POOL_OPTION for word in record.command)
    if seen is None or capped or not 0 < seen.kv_tokens < LEAST_POOL_SHARE * predicted:
        return ""
    return (
        f"the server's KV cache holds {seen.kv_tokens} tokens, less than half of the {predicted} predicted: something "
        "else holds memory of its GPUs (nvidia-smi tells), or the memory model is wrong about this layout"
    )


def pool_lines(records: Sequence[TrialRecord]) -> list[str]:
    told = [(record, pool_doubt(record)) for record in records]
    return [f"doubts about trial {r.number} {r.requested.label}: {doubt}" for r, doubt in told if doubt]


def answers_document(outcome: Outcome) -> dict[str, Any] | None:
    """None where the answers were not judged. In nats."""
    agreement = agreement_of(outcome)
    if agreement is None:
        return None
    differences = {"prefill": agreement.prefill, "decode": agreement.decode}
    return {
        "agree": not isinstance(outcome, WrongAnswers),
        "compared_with": agreement.against or None,
        **{
            name: None
            if each is None
            else {"mean_nats": each.mean, "largest_nats": each.largest, "divergence_nats": each.divergence}
            for name, each in differences.items()
        },
    }


def rungs_told(outcome: Outcome, shown: str) -> str:
    """What a load that failed had come to below. shown: its best rung, in words."""
    seen = seen_of(outcome)
    if seen is None or measurement_of(outcome) is not None or not seen.rungs:
        return ""
    return f"; measured up to concurrency {seen.rungs[-1].concurrency} ({shown})"
