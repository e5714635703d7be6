"""The note on top of a run's page in MLflow: Markdown whose first line is the verdict, as the rest is folded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cost_models.prediction import Prediction
from search_spaces.layout import Layout
from tuner.load_mix import load_told
from tuner.measurement import Measurement
from tuner.outcome import Interrupted, Measured, advice_of, evidence_of, seen_of
from tuner.record import TrialRecord
from tuner.report_judged import agreement_of, pool_doubt
from tuner.request import Request
from tuner.standing import standings
from tuner.tracking_fields import adjustments, doubts_tag, prediction_error_pct
from tuner.tracking_files import launch_text
from tuner.tracking_store import cut

NOTE_TAG = "mlflow.note.content"
_SIMULATED = "SIMULATED: "
_SUMMARY_CHARS = 400
_EVIDENCE_CHARS = 3000
_COMMAND_CHARS = 2500
_ROWS = 20
_LINKS = 6


def running_note(request: Request, requested: Layout, effective: Layout, prediction: Prediction) -> str:
    shown = request.objective.shown(request.objective.predicted_by(prediction))
    return _note(request, f"Running; {shown} predicted", _setting_lines(request), _layout_lines(requested, effective))


def trial_note(request: Request, record: TrialRecord, *, source_link: str = "") -> str:
    """Markdown; the first line is the verdict, as MLflow folds a note after a few lines.

    source_link: the run that a reused measurement was made in.
    """
    reused = [f"Not run here: measured as {source_link or record.reused_from}.", ""] if record.reused_from else []
    evidence = "\n".join(evidence_of(record.outcome))
    return _note(
        request,
        verdict(request, record),
        reused,
        _setting_lines(request),
        _layout_lines(record.requested, record.effective),
        _doubts(record),
        _ladder(record),
        [f"What to do: {advice_of(record.outcome)}.", ""] if advice_of(record.outcome) else [],
        _answers(record),
        ["What shows it:", *_block(cut(evidence, _EVIDENCE_CHARS)), ""] if evidence else [],
        ["Launched as:", *_block(cut(launch_text(record.command), _COMMAND_CHARS))] if record.command else [],
    )


def settled_note(note: str, outcome: Interrupted) -> str:
    """`note` of a run that nobody ended, with `outcome` for a verdict."""
    mark = _SIMULATED if note.startswith(_SIMULATED) else ""
    return f"{mark}{outcome.kind}: {outcome.cause}\n{note.partition(chr(10))[2]}"


def verdict(request: Request, record: TrialRecord) -> str:
    """One line: what was measured against what was predicted, or how the trial ended instead."""
    objective = request.objective
    predicted = f"{objective.shown(objective.predicted_by(record.prediction))} predicted"
    if (error_pct := prediction_error_pct(request, record)) is not None:
        predicted += f" ({error_pct:+.1f} %)"
    seen = predicted if record.value is None else f"{objective.shown(record.value)} measured, {predicted}"
    if isinstance(record.outcome, Measured):
        return seen
    summary, kind = record.outcome.summary, record.outcome.kind
    ended = _code(cut(summary, _SUMMARY_CHARS))
    return f"{ended}; {seen}" if summary.startswith(kind) else f"{kind}: {ended}; {seen}"


def study_note(request: Request, headline: str, records: Sequence[TrialRecord], links: Mapping[str, str]) -> str:
    """headline: the winner or why there is none, first line first. links: run id to the address of its page."""
    objective = request.objective
    unit = objective.shown_unit
    ranked = standings(records, objective)
    table = [f"| rank | layout | {unit} | predicted | runs |", "| --: | --- | --: | --: | --- |"]
    for rank, standing in enumerate(ranked[:_ROWS], start=1):
        predicted = objective.predicted_by(standing.records[0].prediction)
        table.append(
            f"| {rank} | {standing.effective.label} | {_number(objective.shown(standing.value))} "
            f"| {_number(objective.shown(predicted))} | {_linked(standing.records, links)} |"
        )
    others: dict[str, list[TrialRecord]] = {}
    for record in records:
        if record.value is None:
            others.setdefault(record.outcome.kind, []).append(record)
    endings = [
        f"- {kind}: {_linked(ended[:_LINKS], links)}"
        + (f" and {len(ended) - _LINKS} more" if len(ended) > _LINKS else "")
        for kind, ended in sorted(others.items())
    ]
    return _note(
        request,
        headline,
        _setting_lines(request),
        [*table, ""] if ranked else [],
        [f"{len(ranked) - _ROWS} more in `leaderboard.json`.", ""] if len(ranked) > _ROWS else [],
        ["Trials without a value:", "", *endings] if endings else [],
    )


def _note(request: Request, headline: str, *sections: Sequence[str]) -> str:
    first, _, rest = headline.partition("\n")
    first = " ".join(first.split())
    if request.engine.is_simulated:
        first = f"{_SIMULATED}{first}"
    return "\n".join([first, "", *([rest, ""] if rest else []), *(line for s in sections for line in s)])


def _setting_lines(request: Request) -> list[str]:
    w = request.workload
    line = (
        f"{request.model.name} on {request.cluster.name}, SGLang {request.engine.shown_version}, "
        f"{load_told(w, request.mix)}."
    )
    if not request.engine.is_simulated:
        return [line, ""]
    simulated = (
        f"Every time and rate is in simulated seconds: a simulated server was measured, "
        f"because {request.engine.simulated_because}."
    )
    return [line, "", simulated, ""]


def _layout_lines(requested: Layout, effective: Layout) -> list[str]:
    changed = adjustments(requested, effective)
    if not changed:
        return [f"Layout: {effective.label}.", ""]
    made = ", ".join(f"`{name}` {change}" for name, change in changed.items())
    return [f"Layout: {effective.label}; asked for as {requested.label}, the engine makes it {made}.", ""]


def _ladder(record: TrialRecord) -> list[str]:
    measurement = seen_of(record.outcome)
    if measurement is None or not measurement.rungs:
        return []
    predicted = {p.concurrency: p for p in record.prediction.points}
    lines = [
        "| concurrency | tok/s | predicted | whole run | ms/token | predicted | TTFT p50 ms | TTFT p99 ms |",
        "| --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for r in measurement.rungs:
        p = predicted.get(r.concurrency)
        cells = [
            str(r.concurrency),
            _figure(r.output_tok_per_s),
            _figure(p.output_tok_per_s) if p else "",
            "" if r.run_output_tok_per_s is None else _figure(r.run_output_tok_per_s),
            _figure(r.tpot_s.mean * 1e3),
            _figure(p.tpot_s * 1e3) if p else "",
            _figure(r.ttft_s.p50 * 1e3),
            _figure(r.ttft_s.p99 * 1e3),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    ended = [f"No further concurrency: {measurement.ended}.", ""] if measurement.ended else []
    return [*lines, "", *_rates(measurement), *ended]


def _rates(measurement: Measurement) -> list[str]:
    if not measurement.rates:
        return []
    lines = [
        "| requests/s | requests | failed | tok/s | TTFT p50 ms | TTFT p99 ms | ms/token p50 | ms/token p99 |",
        "| --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for r in measurement.rates:
        times_s = (r.ttft_s.p50, r.ttft_s.p99, r.tpot_s.p50, r.tpot_s.p99)
        counts = (f"{r.requests_per_s:g}", str(r.num_requests), str(r.num_failed), _figure(r.output_tok_per_s))
        lines.append(f"| {' | '.join((*counts, *(_figure(s * 1e3) for s in times_s)))} |")
    return [*lines, ""]


def _doubts(record: TrialRecord) -> list[str]:
    told = "\n".join(filter(None, (doubts_tag(record.outcome).get("tune.doubts", ""), pool_doubt(record))))
    return ["Doubts about the figures:", "", *(f"- {line}" for line in told.splitlines()), ""] if told else []


def _answers(record: TrialRecord) -> list[str]:
    agreement = agreement_of(record.outcome)
    return [] if agreement is None or not agreement.lines else [f"Answers: {'; '.join(agreement.lines)}.", ""]


def _linked(records: Sequence[TrialRecord], links: Mapping[str, str]) -> str:
    return ", ".join(f"[#{r.number}]({links[r.run_id]})" if r.run_id in links else f"#{r.number}" for r in records)


def _block(text: str) -> list[str]:
    return ["~~~~", text.rstrip("\n"), "~~~~"]


def _code(text: str) -> str:
    """As code, so that Markdown neither eats `<...>` nor sets `_` in italics."""
    return f"`{' '.join(text.split()).replace('`', chr(39))}`"


def _number(shown: str) -> str:
    return shown.split(" ", 1)[0]


def _figure(value: float) -> str:
    """Four digits that matter, never as a power of ten."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
