"""One predicted launch told to people: verdict, memory, times with their intervals, and what they rest on."""

from __future__ import annotations

from rich.console import RenderableType

from cost_models.memory_types import DoesNotFit
from cost_models.prediction import Interval, Prediction, ServingPoint, StepTime
from search_spaces.sglang.all_reduce import unheeded
from search_spaces.workload import Workload
from tuner import check_text
from tuner.check_document import argv_text
from tuner.predict_evidence_text import evidence_lines
from tuner.predict_launch import Fractions, PredictedLaunch
from tuner.predict_sureness import COMBINED, parts_of, told
from tuner.predict_trials import said_trials
from tuner.predict_words import (
    TOP_OF_THE_LADDER,
    TimeUnit,
    bar,
    figure,
    gib,
    load_line,
    per_user,
    per_user_interval,
    prose,
    said_time,
    span,
    time_unit,
)
from tuner.text_table import Column, table_lines

_BAR_COLUMNS = 24
_LEAST_SHOWN_BYTES = 5 * 2**20
_NEARLY = 0.9
_UNTOLD = "no performance is told: whether it fits hangs on what is not counted"
_ANOTHER = "no performance is told: what is not counted makes it another server than predictions are of"


def report(predicted: PredictedLaunch, width: int, *, is_plain: bool) -> list[RenderableType]:
    """The whole answer. is_plain: nothing but ASCII is drawn. Of what is illegal, what `tune check` says of it."""
    launch, estimate = predicted.launch, predicted.estimate
    if estimate is None:
        checked = check_text.report(launch)
        why = _ANOTHER if launch.checked.is_another_server else _UNTOLD
        untold = prose([why], width) if predicted.is_unjudged else []
        return [*checked[:1], *untold, *_works_as(predicted), *checked[1:]]
    notes = [*launch.notes, *_fabric(predicted), *_without(predicted), *_died(predicted)]
    opening: list[RenderableType] = [check_text.title(launch), *prose([f"note: {note}" for note in notes], width)]
    changes = prose(check_text.silent_changes(launch.checked), width)
    if isinstance(estimate, DoesNotFit):
        refused = prose(does_not_fit(estimate, predicted.workload), width)
        return [*opening, *_works_as(predicted), *refused, *changes]
    return [
        *opening,
        *prose([load_line(predicted.workload)], width),
        *_memory(predicted, estimate, width, is_plain=is_plain),
        *prose(_all_reduce(predicted), width),
        *_breakdown(predicted, estimate, width),
        *_over_concurrency(predicted, estimate, width),
        *prose(_peak(predicted, estimate), width),
        *_sureness(predicted, estimate, width),
        *changes,
    ]


def _works_as(predicted: PredictedLaunch) -> list[str]:
    """A launch to copy where the memory fraction is all that is wrong."""
    layout = predicted.works_as
    if layout is None:
        return []
    version = predicted.server.version
    return [f"it works with --mem-fraction-static {layout.mem_fraction_static:g}", f"  {argv_text(layout, version)}"]


def _fabric(predicted: PredictedLaunch) -> list[str]:
    cluster = predicted.server.cluster
    return [] if cluster.fabric is None else [f"links of {cluster.name}: {cluster.fabric.source}"]


def _without(predicted: PredictedLaunch) -> list[str]:
    moved = [each.words for each in predicted.launch.checked.uncounted if each.changes_times]
    return [f"the times below are without {' and '.join(moved)}"] if moved else []


def _died(predicted: PredictedLaunch) -> list[str]:
    died = predicted.died
    if died is None or predicted.evidence is None:
        return []
    where = f"{said_trials(died.trials)} of {predicted.evidence.origin}"
    return [
        f"{where} ran {died.requested.label}: {died.how}; what follows is predicted as if this launch got past that"
    ]


def does_not_fit(estimate: DoesNotFit, workload: Workload) -> list[str]:
    request = f"{workload.input_tokens} + {workload.output_tokens} tokens"
    short = f"{gib(estimate.shortfall_bytes)} short on the fullest GPU, with a request of {request}"
    return [
        "",
        f"does not fit: dies at {estimate.stage}, {short} (predicted by the memory model)",
        f"  {estimate.message}",
    ]


def _memory(predicted: PredictedLaunch, estimate: Prediction, width: int, *, is_plain: bool) -> list[str]:
    held = estimate.memory
    parts = [(name, size) for name, size in held.parts if abs(size) >= _LEAST_SHOWN_BYTES]
    total = max(held.total_bytes, 1)
    rows = table_lines(
        [
            Column(title="part", cells=[name for name, _ in parts], is_number=False),
            Column(title="GiB", cells=[f"{size / 2**30:.2f}" for _, size in parts]),
            Column(title="%", cells=[f"{100 * size / total:.1f}" for _, size in parts]),
            Column(
                title="",
                cells=[bar(size / total, _BAR_COLUMNS, is_plain=is_plain) for _, size in parts],
                is_number=False,
                priority=1,
            ),
        ],
        width=80,
    )
    at_once = predicted.max_concurrency
    pools = f" in {held.kv_replicas} pools of {held.kv_tokens:,}" if held.kv_replicas > 1 else ""
    return [
        "",
        f"memory on the fullest GPU, {gib(held.total_bytes)}",
        *(f"  {row}" for row in rows[1:]),
        *prose(
            [
                f"  KV cache: {held.kv_tokens_total:,} tokens{pools}; at most {at_once:,} requests at once",
                f"  mem fraction: {held.mem_fraction_static:.3g}{_other_fractions(predicted.fractions)}",
            ],
            width,
        ),
    ]


def _other_fractions(fractions: Fractions) -> str:
    words = [] if fractions.own is None else [f"the engine's own would be {fractions.own:.3g}"]
    if fractions.smallest is not None and fractions.largest is not None:
        words.append(f"works from {fractions.smallest:.3g} to {fractions.largest:.3g}")
    elif fractions.own is not None:
        words.append("no fraction is sure to work")
    return f" ({'; '.join(words)})" if words else ""


def _all_reduce(predicted: PredictedLaunch) -> list[str]:
    choice = predicted.all_reduce
    if choice is None:
        return []
    return [
        "",
        f"all-reduce: {choice.path}, because {choice.reason}  [{choice.source}]",
        f"  its times: {predicted.all_reduce_times}",
        *([] if predicted.switched is None else [f"  {predicted.switched.told}"]),
        *(f"  {switch}" for switch in unheeded(predicted.server.env)),
    ]


def _breakdown(predicted: PredictedLaunch, estimate: Prediction, width: int) -> list[str]:
    """The two decode steps and the prefill beside each other, by cause, each with its share."""
    peak = estimate.peak.concurrency
    steps = [("decode at 1", estimate.step)]
    if peak != 1:
        running = predicted.max_concurrency
        steps.append((f"decode at {peak}" if peak <= running else f"decode, {running:,} running", estimate.peak_step))
    steps.append(("prefill of one", estimate.prefill))
    names = list(dict.fromkeys(name for _, step in steps for name, seconds in step.parts if seconds > 0))
    names.sort(key=lambda name: -_part(estimate.step, name))
    unit = time_unit([step.total_s for _, step in steps])
    columns = [Column(title=f"one step, in {unit.name}", cells=[*names, "in all"], is_number=False)]
    for title, step in steps:
        total = step.total_s or 1.0
        cells = [_with_share(_part(step, name), total, unit) for name in names]
        columns.append(Column(title=title, cells=[*cells, f"{unit.shown(step.total_s)}      "]))
    before = "  as predicted before calibration: its factors are in the times over concurrency below"
    return ["", *table_lines(columns, width), *(prose([before], width) if predicted.evidence is not None else [])]


def _part(step: StepTime, name: str) -> float:
    return sum(seconds for each, seconds in step.parts if each == name)


def _with_share(seconds: float, total: float, unit: TimeUnit) -> str:
    return f"{unit.shown(seconds)}  {f'{100 * seconds / total:.0f} %':>4}" if seconds > 0 else ""


def _over_concurrency(predicted: PredictedLaunch, estimate: Prediction, width: int) -> list[str]:
    points = predicted.points_of(estimate)
    gpus = predicted.layout.num_gpus
    limits = {limit.concurrency: limit for limit in estimate.limits}

    def share(point: ServingPoint) -> str:
        limit = limits.get(point.concurrency)
        return "" if limit is None else f"{100 * point.output_tok_per_s / limit.output_tok_per_s:.0f} %"

    def timed(title: str, of: str, priority: int, whole: int = 0) -> list[Column]:
        unit = time_unit([_interval(point, of).high for point in points])
        return valued(f"{title} {unit.name}", of, unit.per_s, priority, whole)

    def valued(title: str, of: str, scale: float, priority: int, whole: int = 0) -> list[Column]:
        """A figure and, beside it, its interval. priority: of the interval; whole: of the figure."""
        return [
            Column(title=title, cells=[figure(getattr(point, of) * scale) for point in points], priority=whole),
            Column(
                title="",
                cells=[f"({span(_interval(point, of), scale)})" for point in points],
                is_number=False,
                priority=priority,
            ),
        ]

    spans = [f"({span(per_user_interval(point))})" for point in points]
    users = [
        Column(title="tok/s/user", cells=[figure(per_user(point)) for point in points], priority=8),
        Column(title="", cells=spans, is_number=False, priority=9),
    ]
    columns = [
        Column(title="at once", cells=[str(point.concurrency) for point in points]),
        *timed("TTFT", "ttft_s", 7, whole=3),
        *timed("TPOT", "tpot_s", 2),
        *valued("tok/s", "output_tok_per_s", 1.0, 1),
        Column(title="/GPU", cells=[figure(point.output_tok_per_s / gpus) for point in points], priority=6),
        *users,
        Column(title="of limit", cells=[share(point) for point in points], priority=5),
    ]
    return ["", *table_lines(columns, width)]


def _interval(point: ServingPoint, of: str) -> Interval:
    match of:
        case "ttft_s":
            return point.ttft_interval_s
        case "tpot_s":
            return point.tpot_interval_s
        case _:
            return point.output_tok_per_s_interval


def _peak(predicted: PredictedLaunch, estimate: Prediction) -> list[str]:
    points = predicted.points_of(estimate)
    peak = predicted.peak_of(estimate)
    more = TOP_OF_THE_LADDER if predicted.may_peak_above(estimate) else ""
    lines = ["", f"peak: {figure(peak.output_tok_per_s)} tok/s at concurrency {peak.concurrency}{more}"]
    nearly = next(p for p in points if p.output_tok_per_s >= _NEARLY * peak.output_tok_per_s)
    if nearly is not peak:
        share = 100 * nearly.output_tok_per_s / peak.output_tok_per_s
        lines.append(
            f"  {share:.0f} % of that already at {nearly.concurrency}, in {said_time(nearly.tpot_s)} per token"
        )
    if peak.concurrency > predicted.max_concurrency:
        lines.append(f"  above {predicted.max_concurrency:,} requests the others only wait for a place to run in")
    limit = next((each for each in estimate.limits if each.concurrency == peak.concurrency), None)
    if limit is not None:
        reached = 100 * peak.output_tok_per_s / limit.output_tok_per_s
        lines.append(
            f"  no layout of these GPUs can exceed {figure(limit.output_tok_per_s)} tok/s there ({limit.bound_by}): "
            f"{reached:.0f} % of that"
        )
    return lines


def _sureness(predicted: PredictedLaunch, estimate: Prediction, width: int) -> list[str]:
    """How wide the intervals are, and why; what measurements have moved."""
    lines = []
    if estimate.points:
        first, peak = estimate.points[0].tpot_interval_s, estimate.peak.output_tok_per_s_interval
        lines.append(
            f"how sure: a factor {first.factor:.2f} either way for TPOT at concurrency 1, {peak.factor:.2f} for tok/s "
            "at the peak"
        )
    if predicted.sweep is not None:
        lines += [f"  {told(part)}" for part in parts_of(estimate, predicted.sweep)]
        traits = tuple(map(str, predicted.sweep.traits))
        lines += [f"  not proven: {reason}" for reason in estimate.unproven if not reason.startswith(traits)]
        narrowed = "; measurements then moved and narrowed them" if predicted.evidence is not None else ""
        lines.append(f"  factors on the time per token; {COMBINED}{narrowed}")
    return ["", *prose(lines, width), *(f"  {line}" for line in evidence_lines(predicted.evidence, width - 2))]
