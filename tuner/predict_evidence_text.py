"""Measurements beside what was predicted of them before they were known."""

from __future__ import annotations

from tuner.predict_evidence import Compared, Evidence
from tuner.predict_words import figure, prose, time_unit, wrapped
from tuner.text_table import Column, table_lines

_MOST_SHOWN = 12
_OUTSIDE = "outside 95 %"
_GAP = "  "


def evidence_lines(evidence: Evidence | None, width: int) -> list[str]:
    """What moved the predictions, and a line for each measured point."""
    if evidence is None:
        return []
    shown = evidence.compared[:_MOST_SHOWN]
    columns = [
        Column(title="measured", cells=[each.measured.layout.label for each in shown], is_number=False),
        Column(title="environment", cells=[_environment(each) for each in shown], is_number=False),
        Column(title="at once", cells=[str(each.measured.concurrency) for each in shown]),
        *_tpot(shown),
    ]
    for more_columns in (_ttft(shown), _rate(shown)):
        if _width([*columns, *more_columns]) <= width - 2:
            columns += more_columns
    table = table_lines(columns, width - 2)
    left = evidence.compared[_MOST_SHOWN:]
    outside = sum(each.is_tpot_outside or each.is_ttft_outside or each.is_rate_outside for each in left)
    more = f"  ... and {len(left)} more{f', {outside} of them {_OUTSIDE}' if outside else ''}"
    keys = ["predicted: before calibration"]
    keys += ["outside 95 %: of its interval then"] * any(_OUTSIDE in line for line in (*table, more))
    keys += ["ratio: predicted over measured"] * ("ratio" in table[0])
    return [
        *wrapped(evidence.told, width),
        *(f"  {line}" for line in table),
        *([more] if left else []),
        *wrapped(f"  {'; '.join(keys)}", width),
        *prose([f"  {note}" for note in (evidence.rates_told, *evidence.left_out.told) if note], width),
    ]


def _width(columns: list[Column]) -> int:
    return sum(len(_GAP) + column.width for column in columns if any(column.cells)) - len(_GAP)


def _environment(each: Compared) -> str:
    return " ".join(f"{name}={value}" for name, value in each.measured.environment)


def _tpot(shown: tuple[Compared, ...]) -> list[Column]:
    unit = time_unit([max(each.measured.tpot_s, each.tpot_s) for each in shown])
    return [
        Column(title=f"TPOT {unit.name}", cells=[unit.shown(each.measured.tpot_s) for each in shown]),
        Column(title="predicted", cells=[unit.shown(each.tpot_s) for each in shown], priority=2),
        Column(title="ratio", cells=[figure(each.tpot_s / each.measured.tpot_s) for each in shown], priority=1),
        Column(title="", cells=[_OUTSIDE * each.is_tpot_outside for each in shown], is_number=False),
    ]


def _ttft(shown: tuple[Compared, ...]) -> list[Column]:
    """Empty where no time to first token was measured."""
    measured = [each.measured.ttft_s for each in shown]
    pairs = list(zip(measured, shown, strict=True))
    unit = time_unit([max(seen, each.ttft_s) for seen, each in pairs if seen is not None])
    return [
        Column(title=f"TTFT {unit.name}", cells=["" if seen is None else unit.shown(seen) for seen in measured]),
        Column(title="predicted", cells=["" if seen is None else unit.shown(each.ttft_s) for seen, each in pairs]),
        Column(title="ratio", cells=["" if seen is None else figure(each.ttft_s / seen) for seen, each in pairs]),
        Column(title="", cells=[_OUTSIDE * each.is_ttft_outside for each in shown], is_number=False),
    ]


def _rate(shown: tuple[Compared, ...]) -> list[Column]:
    """Empty where no tokens per second were measured."""
    pairs = [(each.measured.output_tok_per_s, each.output_tok_per_s) for each in shown]
    return [
        Column(title="tok/s", cells=["" if seen is None else figure(seen) for seen, _ in pairs]),
        Column(title="predicted", cells=["" if seen is None else figure(before) for seen, before in pairs]),
        Column(title="ratio", cells=["" if seen is None else figure(before / seen) for seen, before in pairs]),
        Column(title="", cells=[_OUTSIDE * each.is_rate_outside for each in shown], is_number=False),
    ]
