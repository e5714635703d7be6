"""The study told to people: the verdict, the table of trials, and what to keep in mind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from textwrap import shorten
from typing import Literal

from rich import box
from rich.table import Table

from search_spaces.layout import Layout
from search_spaces.space import Space
from tuner.goodput import Goodput
from tuner.measurement import Measurement, RateRung, Rung
from tuner.objective import Aim
from tuner.outcome import Outcome, advice_of, measurement_of, rank_of, seen_of
from tuner.record import Origin, TrialRecord
from tuner.report import FIRST_NODE, command_lines
from tuner.report_judged import (
    answers_line,
    pool_lines,
    rules_at_fault_lines,
    rungs_told,
    spread_told,
    tie_line,
    wrong_lines,
)
from tuner.report_rungs import doubt_lines, ladder_end_lines, rung_name
from tuner.standing import Standing
from tuner.study_result import StudyResult


def verdict_lines(result: StudyResult) -> list[str]:
    """Winner, margin, and what it rests on: one fact a line."""
    objective = result.request.objective
    lines = [f"study {result.request.study}: {result.stopped_because}{_extra_trials(result)}"]
    winner = result.winner
    if winner is None:
        return [*lines, _why_no_winner(result)]
    title = "best so far" if result.interrupted else "winner"
    lines.append(f"{title}: {winner.requested.label}, {_with_spread(objective, winner)}")
    lines += [_comparison(result, "the baseline", result.space.baseline.requested, result.baseline)]
    if result.request.probes_correctness:
        lines.append(answers_line(winner))
    unsteady = [
        r
        for r in result.records
        if r.requested == winner.requested and r.is_conclusive and measurement_of(r.outcome) is None
    ]
    lines += [f"beware: in trial {r.number} it ended otherwise: {shorten(r.outcome.summary, 160)}" for r in unsteady]
    if result.request.baseline is not None:
        lines += [_comparison(result, "your layout", result.request.baseline, result.current)]
    second = result.runner_up
    if second is not None:
        behind = 100 * (objective.gain(winner.value, second.value) - 1)
        lines.append(f"runner-up: {second.requested.label}, {_with_spread(objective, second)}, {behind:.1f} % behind")
        if tie := tie_line(winner, second):
            lines.append(tie)
    return [*lines, *_at_its_peak(result, winner)]


def _why_no_winner(result: StudyResult) -> str:
    objective = result.request.objective
    if isinstance(objective, Goodput) and any(r.value is not None for r in result.records):
        return f"no layout keeps {objective.limits_told} at any rung: there is no winner"
    return "no trial gave a measurement: there is no winner"


def _extra_trials(result: StudyResult) -> str:
    origins = Counter(r.origin for r in result.records)
    confirmations, reused = origins[Origin.CONFIRMATION], origins[Origin.REUSED]
    extra = [f"{confirmations} confirmation{'s' * (confirmations > 1)}"] if confirmations else []
    extra += [f"{reused} reused"] if reused else []
    return f" (and {', '.join(extra)})" if extra else ""


def _comparison(result: StudyResult, name: str, layout: Layout, standing: Standing | None) -> str:
    """How the winner compares with a layout that the reader knows."""
    objective, winner = result.request.objective, result.winner
    assert winner is not None
    if standing is None:
        return f"{name} {layout.label} is not compared with: {_why_unmeasured(result, layout)}"
    if standing.effective == winner.effective:
        return f"the winner is {name}"
    compared = objective.compared(winner.value, standing.value)
    return f"{compared} {name} {layout.label}, {_with_spread(objective, standing)}"


def _why_unmeasured(result: StudyResult, layout: Layout) -> str:
    tried = [r for r in result.records if r.requested == layout]
    ends = [r.outcome.summary for r in tried]
    if any(r.value == 0 for r in tried):
        return "the limits hold at none of its rungs"
    if ends:
        return shorten(ends[-1], 160, placeholder=" ...")
    unfit = [d.message for d in result.does_not_fit if d.layout == _effective_of(result, layout)]
    if unfit:
        return unfit[0]
    if layout not in {c.requested for c in result.space.candidates}:
        return "a pin excludes it"
    return "it was not tried yet"


def _effective_of(result: StudyResult, layout: Layout) -> Layout | None:
    return next((c.effective for c in result.space.candidates if c.requested == layout), None)


def _at_its_peak(result: StudyResult, winner: Standing) -> list[str]:
    """What the peak costs a user, and whether it was reached at all."""
    if not result.request.objective.maximise:
        return []
    measurement = measurement_of(winner.records[-1].outcome)
    if measurement is None:
        return []
    if isinstance(result.request.objective, Goodput):
        return _where_limits_hold(result.request.objective, measurement)
    peak = measurement.peak
    ttft = f"time to first token {peak.ttft_s.mean:.3g} s mean, {peak.ttft_s.p99:.3g} s p99"
    pace = f"{peak.tpot_s.mean * 1e3:.3g} ms per output token"
    lines = [f"at its peak, concurrency {peak.concurrency}: {ttft}; {pace}"]
    if peak is measurement.rungs[-1] and len(measurement.rungs) > 1 and not measurement.ended:
        lines.append("that is the top of the ladder: the peak may lie above it, see --concurrency")
    return lines


def _where_limits_hold(goodput: Goodput, measurement: Measurement) -> list[str]:
    """At which rung, what users wait there, and whether the next one was seen to break the limits."""
    best = goodput.best_of(measurement)
    if best is None:
        return []
    ttft = f"time to first token {best.ttft_s.mean:.3g} s mean, {best.ttft_s.p99:.3g} s p99"
    pace = f"{best.tpot_s.mean * 1e3:.3g} ms per output token mean, {best.tpot_s.p99 * 1e3:.3g} p99"
    lines = [f"{goodput.limits_told} hold up to {rung_name(best)}: {ttft}; {pace}"]
    ladder: tuple[Rung | RateRung, ...] = measurement.rates or measurement.rungs
    if best is ladder[-1] and not measurement.ended:
        wider = "--request-rate" if measurement.rates else "--concurrency"
        lines.append(f"that is the top of the ladder: they may hold above it, see {wider}")
    return lines


def caveats(result: StudyResult) -> list[str]:
    """What a reader must know before the command is used."""
    lines = []
    if result.winner is not None and result.winner.requested.nnodes > 1:
        lines.append(
            f"each line on its own node; {FIRST_NODE} is an address of the first that the others reach, and a free "
            "port there"
        )
    if result.request.engine.is_simulated:
        lines.append(
            "parts of the simulator's timing are invented: this is no advice for real hardware. Measure on your own "
            "GPUs: tune --objective NAME --model FOLDER, where SGLang is installed"
        )
    return lines


def _with_spread(objective: Aim, standing: Standing) -> str:
    shown = objective.shown(standing.value)
    if standing.interval is None:
        return f"{shown} (one run)"
    low, high = (objective.shown(v).split(" ")[0] for v in standing.interval)
    return f"{shown} ({spread_told(standing, low, high)})"


def space_size(space: Space) -> str:
    """How many combinations are legal, and how many layouts that makes."""
    legal = space.considered - sum(space.refused.values())
    return (
        f"{legal} of {space.considered} combinations of sizes and backends are legal, "
        f"{len(space.candidates)} layouts with their memory fractions"
    )


def space_line(result: StudyResult) -> str:
    refused = sorted(result.space.refused.items(), key=lambda kv: -kv[1])
    told = ", ".join(f"{rule} {count}" for rule, count in refused[:5])
    more = f" and {len(refused) - 5} more rules" if len(refused) > 5 else ""
    rules = f"; combinations refused by rule: {told}{more}" if refused else ""
    return f"space: {space_size(result.space)}; {len(result.does_not_fit)} layouts do not fit in memory{rules}"


def _ended(outcome: Outcome) -> str:
    """How it ended, on which rank, and what would get past it."""
    rank, advised = rank_of(outcome), advice_of(outcome)
    summary = shorten(outcome.summary, 240, placeholder=" ...")
    seen = seen_of(outcome)
    below = rungs_told(outcome, f"{seen.peak.output_tok_per_s:.4g} tok/s") if seen is not None and seen.rungs else ""
    return f"{summary}{f' [{rank}]' if rank else ''}{below}{f'; {advised}' if advised else ''}"


def ends_without_value(result: StudyResult) -> list[str]:
    """For each trial that gave no value, or whose load failed, how it ended: a line each."""
    failed = [r for r in result.records if r.value is None or measurement_of(r.outcome) is None]
    return [f"trial {r.number} {r.requested.label}: {_ended(r.outcome)}" for r in failed]


def judged_lines(result: StudyResult) -> list[str]:
    """Wrong answers, faults of the rules, doubts about the memory."""
    records = result.records
    return [*wrong_lines(records), *rules_at_fault_lines(records), *pool_lines(records)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """priority: where a terminal is too narrow, columns of the highest number go first."""

    title: str
    justify: Literal["left", "right"]
    priority: int
    cell: Callable[[TrialRecord], str]


def _columns(objective: Aim) -> tuple[_Column, ...]:
    def seen(cell: Callable[[Measurement], str]) -> Callable[[TrialRecord], str]:
        def of_record(record: TrialRecord) -> str:
            measurement = seen_of(record.outcome)
            return "" if measurement is None or not measurement.rungs else cell(measurement)

        return of_record

    def predicted(record: TrialRecord) -> str:
        return objective.shown(objective.predicted_by(record.prediction)).split(" ")[0]

    of_first, of_peak = (3, 0) if objective.maximise else (0, 3)
    of_goodput = (
        _Column(
            title="requests/s",
            justify="right",
            priority=0,
            cell=lambda r: "" if r.value is None else f"{r.value:.4g}",
        ),
        _Column(title="holds up to", justify="left", priority=1, cell=seen(lambda m: _held(objective, m))),
    )
    return (
        _Column(title="#", justify="right", priority=0, cell=lambda r: str(r.number)),
        _Column(title="layout", justify="left", priority=0, cell=lambda r: r.requested.label),
        _Column(title="why", justify="left", priority=5, cell=lambda r: str(r.origin)),
        _Column(title="outcome", justify="left", priority=1, cell=lambda r: r.outcome.kind),
        _Column(title="predicted", justify="right", priority=2, cell=predicted),
        *(of_goodput if isinstance(objective, Goodput) else ()),
        _Column(
            title="peak tok/s", justify="right", priority=of_peak, cell=seen(lambda m: f"{m.peak.output_tok_per_s:.4g}")
        ),
        _Column(title="at", justify="right", priority=4, cell=seen(lambda m: str(m.peak.concurrency))),
        _Column(
            title="c1 ms/token",
            justify="right",
            priority=of_first,
            cell=seen(lambda m: f"{m.rungs[0].tpot_s.mean * 1e3:.4g}"),
        ),
        _Column(
            title="c1 TTFT ms",
            justify="right",
            priority=4,
            cell=seen(lambda m: f"{m.rungs[0].ttft_s.mean * 1e3:.4g}"),
        ),
    )


def _held(objective: Aim, measurement: Measurement) -> str:
    best = objective.best_of(measurement) if isinstance(objective, Goodput) else None
    return "nowhere" if best is None else rung_name(best)


def trial_table(result: StudyResult, width: int) -> Table:
    """Best first; as many columns as `width` holds."""
    objective = result.request.objective
    sign = -1 if objective.maximise else 1
    records = sorted(result.records, key=lambda r: (r.value is None, sign * (r.value or 0.0), r.number))
    columns = list(_columns(objective))
    sizes = {c.title: max(len(c.title), *(len(c.cell(r)) for r in records), 1) for c in columns}
    while sum(sizes[c.title] + 2 for c in columns) > width and len(columns) > 2:
        columns.remove(max(columns, key=lambda c: c.priority))
    table = Table(title=f"Trials, best first ({objective})", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column.title, justify=column.justify, no_wrap=True)
    for record in records:
        table.add_row(*(column.cell(record) for column in columns))
    table.caption = f"predicted: in {objective.shown_unit}; at: concurrency of the peak; c1: concurrency 1" + (
        "; times are simulated" if result.request.engine.is_simulated else ""
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
        commands = "\n".join(command_lines(request, result.winner.requested))
        parts.append(f"```\n{commands}\n```")
    parts += [*judged_lines(result), space_line(result)]
    parts += [*ladder_end_lines(result.records), *doubt_lines(result.records)]
    return "\n\n".join(parts)
