"""One predicted launch told to people: verdict, memory, times with their intervals, and what they rest on."""

from __future__ import annotations

from rich.console import RenderableType

from cost_models.memory_types import DoesNotFit, Memory
from cost_models.prediction import Interval, Prediction, ServingPoint, StepTime
from search_spaces.workload import Workload
from tuner import check_text
from tuner.predict_launch import Fractions, PredictedLaunch
from tuner.predict_words import bar, figure, gib, load_line, ms, per_user, per_user_interval, span
from tuner.text_table import Column, table_lines

_BAR_COLUMNS = 24
_LEAST_SHOWN_BYTES = 5 * 2**20
_NEARLY = 0.9


def report(predicted: PredictedLaunch, width: int, *, is_plain: bool) -> list[RenderableType]:
    """The whole answer. is_plain: nothing but ASCII is drawn. Of what is illegal, what `tune check` says of it."""
    launch, estimate = predicted.launch, predicted.estimate
    if estimate is None:
        return check_text.report(launch)
    opening: list[RenderableType] = [check_text.title(launch), *(f"note: {note}" for note in launch.notes)]
    if isinstance(estimate, DoesNotFit):
        return [*opening, *does_not_fit(estimate, predicted.workload), *check_text.silent_changes(launch.checked)]
    return [
        *opening,
        load_line(predicted.workload),
        *_memory(predicted, estimate, is_plain=is_plain),
        *_all_reduce(predicted),
        *_breakdown(estimate, width),
        *_over_concurrency(predicted, estimate, width),
        *_peak(predicted, estimate),
        *_sureness(predicted, estimate),
        *check_text.silent_changes(launch.checked),
    ]


def does_not_fit(estimate: DoesNotFit, workload: Workload) -> list[str]:
    request = f"{workload.input_tokens} + {workload.output_tokens} tokens"
    short = f"{gib(estimate.shortfall_bytes)} short on the fullest GPU, with a request of {request}"
    return [
        "",
        f"does not fit: dies at {estimate.stage}, {short} (predicted by the memory model)",
        f"  {estimate.message}",
    ]


def _memory(predicted: PredictedLaunch, estimate: Prediction, *, is_plain: bool) -> list[str]:
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
    pools = f" in {held.kv_replicas} pools of {held.kv_tokens:,}" if held.kv_replicas > 1 else ""
    return [
        "",
        f"memory on the fullest GPU, {gib(held.total_bytes)}",
        *(f"  {row}" for row in rows[1:]),
        f"  KV cache: {held.kv_tokens_total:,} tokens{pools}; at most {predicted.max_concurrency:,} requests at once",
        f"  mem fraction: {held.mem_fraction_static:.3g}{_other_fractions(predicted.fractions)}",
        *([_tight(held)] if held.is_tight else []),
    ]


def _tight(held: Memory) -> str:
    return (
        f"  tight: graphs, activations and exchange buffers are expected to need {gib(held.need_bytes)}, and "
        f"{gib(held.headroom_bytes)} are left outside the fraction"
    )


def _other_fractions(fractions: Fractions) -> str:
    words = [] if fractions.own is None else [f"the engine's own would be {fractions.own:.3g}"]
    if fractions.smallest is not None and fractions.largest is not None:
        words.append(f"works from {fractions.smallest:.3g} to {fractions.largest:.3g}")
    elif fractions.own is not None:
        words.append("no fraction is sure to work")
    return f" ({'; '.join(words)})" if words else ""


def _all_reduce(predicted: PredictedLaunch) -> list[str]:
    choice = predicted.all_reduce
    return (
        [] if choice is None else ["", f"all-reduce: {choice.path}, assumed because {choice.reason}  [{choice.source}]"]
    )


def _breakdown(estimate: Prediction, width: int) -> list[str]:
    """The two decode steps and the prefill beside each other, by cause, each with its share."""
    peak = estimate.peak.concurrency
    steps = [("decode at 1", estimate.step)]
    if peak != 1:
        steps.append((f"decode at {peak}", estimate.peak_step))
    steps.append(("prefill of one", estimate.prefill))
    names = list(dict.fromkeys(name for _, step in steps for name, seconds in step.parts if seconds > 0))
    names.sort(key=lambda name: -_part(estimate.step, name))
    columns = [Column(title="one step, in ms", cells=[*names, "in all"], is_number=False)]
    for title, step in steps:
        total = step.total_s or 1.0
        cells = [_with_share(_part(step, name), total) for name in names]
        columns.append(Column(title=title, cells=[*cells, f"{ms(step.total_s)}      "]))
    return ["", *table_lines(columns, width)]


def _part(step: StepTime, name: str) -> float:
    return sum(seconds for each, seconds in step.parts if each == name)


def _with_share(seconds: float, total: float) -> str:
    return f"{ms(seconds)}  {f'{100 * seconds / total:.0f} %':>4}" if seconds > 0 else ""


def _over_concurrency(predicted: PredictedLaunch, estimate: Prediction, width: int) -> list[str]:
    points = estimate.points
    gpus = predicted.layout.num_gpus
    limits = {limit.concurrency: limit for limit in estimate.limits}

    def share(point: ServingPoint) -> str:
        limit = limits.get(point.concurrency)
        return "" if limit is None else f"{100 * point.output_tok_per_s / limit.output_tok_per_s:.0f} %"

    def valued(title: str, of: str, scale: float, priority: int) -> list[Column]:
        """A figure and, beside it, its interval."""
        return [
            Column(title=title, cells=[figure(getattr(point, of) * scale) for point in points]),
            Column(
                title="",
                cells=[f"({span(_interval(point, of), scale)})" for point in points],
                is_number=False,
                priority=priority,
            ),
        ]

    spans = [f"({span(per_user_interval(point))})" for point in points]
    users = [
        Column(title="tok/s/user", cells=[figure(per_user(point)) for point in points], priority=3),
        Column(title="", cells=spans, is_number=False, priority=7),
    ]
    columns = [
        Column(title="at once", cells=[str(point.concurrency) for point in points]),
        *valued("TTFT ms", "ttft_s", 1e3, 6),
        *valued("TPOT ms", "tpot_s", 1e3, 5),
        *valued("tok/s", "output_tok_per_s", 1.0, 4),
        Column(title="/GPU", cells=[figure(point.output_tok_per_s / gpus) for point in points], priority=2),
        *users,
        Column(title="of limit", cells=[share(point) for point in points], priority=1),
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
    peak = estimate.peak
    top = peak is estimate.points[-1] and len(estimate.points) > 1
    more = "; the top of the ladder: it may lie above (--concurrency)" if top else ""
    lines = ["", f"peak: {figure(peak.output_tok_per_s)} tok/s at concurrency {peak.concurrency}{more}"]
    nearly = next(p for p in estimate.points if p.output_tok_per_s >= _NEARLY * peak.output_tok_per_s)
    if nearly is not peak:
        share = 100 * nearly.output_tok_per_s / peak.output_tok_per_s
        lines.append(f"  {share:.0f} % of that already at {nearly.concurrency}, in {ms(nearly.tpot_s)} ms per token")
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


def _sureness(predicted: PredictedLaunch, estimate: Prediction) -> list[str]:
    """How wide the intervals are, and why; what measurements have moved."""
    lines = []
    if estimate.points:
        first, peak = estimate.points[0].tpot_interval_s, estimate.peak.output_tok_per_s_interval
        lines.append(
            f"how sure: a factor {first.factor:.2f} either way for TPOT at concurrency 1, {peak.factor:.2f} for tok/s "
            "at the peak"
        )
    lines += [f"  not proven: {reason}" for reason in estimate.unproven]
    if not estimate.unproven:
        lines.append("  measured kinds of layout, GPU and release: this is how far campaigns differ")
    return ["", *lines, *(f"  {line}" for line in _evidence(predicted))]


def _evidence(predicted: PredictedLaunch) -> list[str]:
    return [] if predicted.evidence is None else [predicted.evidence.told]
