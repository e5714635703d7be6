"""Measurements beside what was predicted of them before they were known."""

from __future__ import annotations

from tuner.predict_evidence import Compared, Evidence
from tuner.predict_words import figure, ms, wrapped
from tuner.text_table import Column, table_lines

_MOST_SHOWN = 12


def evidence_lines(evidence: Evidence | None, width: int) -> list[str]:
    """What moved the predictions, and a line for each measured point."""
    if evidence is None:
        return []
    shown = evidence.compared[:_MOST_SHOWN]
    columns = [
        Column(title="measured", cells=[each.measured.layout.label for each in shown], is_number=False),
        Column(title="at once", cells=[str(each.measured.concurrency) for each in shown]),
        Column(title="TPOT ms", cells=[ms(each.measured.tpot_s) for each in shown]),
        Column(title="predicted", cells=[ms(each.tpot_s) for each in shown]),
        Column(title="ratio", cells=[figure(each.tpot_s / each.measured.tpot_s) for each in shown]),
    ]
    of_ttft = [
        Column(title="TTFT ms", cells=[_measured_ttft(each) for each in shown]),
        Column(title="predicted", cells=[ms(each.ttft_s) if _has(each) else "" for each in shown]),
        Column(title="ratio", cells=[_ttft_ratio(each) for each in shown]),
    ]
    table = table_lines([*columns, *of_ttft], width - 2)
    if len(table[0]) > width - 2:
        table = table_lines(columns, width - 2)
    left = len(evidence.compared) - len(shown)
    return [
        *wrapped(evidence.told, width),
        *(f"  {line}" for line in table),
        *([f"  ... and {left} more"] if left else []),
        *wrapped("  predicted: before calibration; ratio: predicted over measured", width),
    ]


def _has(each: Compared) -> bool:
    return each.measured.ttft_s is not None


def _measured_ttft(each: Compared) -> str:
    return "" if each.measured.ttft_s is None else ms(each.measured.ttft_s)


def _ttft_ratio(each: Compared) -> str:
    return "" if each.measured.ttft_s is None else figure(each.ttft_s / each.measured.ttft_s)
