"""A ranking told to people."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.check_document import argv_text
from tuner.predict_evidence_text import evidence_lines
from tuner.predict_space import Ranked, Ranking
from tuner.predict_words import TOP_OF_THE_LADDER, figure, gib, load_line, prose, said_time, span, time_unit
from tuner.text_table import Column, table_lines

_CAPTION = (
    "one row a shape, at the mem fraction that does best, by the other objective too; the engine's own where none does "
    "better"
)
_OF_COLUMNS = {"at": "at: concurrency of the peak", "c1": "c1: concurrency 1"}
"""What titles stand for, told where they are shown."""


def report(ranking: Ranking, width: int, limit: int | None) -> list[str]:
    shown = ranking.ranked if limit is None else ranking.ranked[:limit]
    fabric = ranking.cluster.fabric
    opening = [
        headline(ranking),
        *([] if fabric is None else [f"links of {ranking.cluster.name}: {fabric.source}"]),
        load_line(ranking.workload),
    ]
    return [
        *prose(opening, width),
        *evidence_lines(ranking.evidence, width),
        *prose(_measured_best(ranking), width),
        *(table := _table(ranking, shown, width)),
        *prose(_more(ranking, shown, table), width),
        *prose(_died(ranking), width),
        *_standing(ranking, width),
    ]


def _measured_best(ranking: Ranking) -> list[str]:
    best = ranking.measured_best
    return [] if best is None else [best.told(ranking.objective)]


def _died(ranking: Ranking) -> list[str]:
    died = ranking.died
    if not died:
        return []
    what = f"{len(died)} layouts died in that study and are" if len(died) > 1 else "1 layout died in that study and is"
    return [f"{what} not ranked: {', '.join(each.told for each in died)}"]


def headline(ranking: Ranking) -> str:
    num_fit, num_not = len(ranking.ranked), len(ranking.does_not_fit)
    too_large = f", {num_not} more do not fit" if num_not else ""
    return (
        f"{num_fit} legal shape{'s' * (num_fit != 1)} of {ranking.model.name} on {ranking.cluster.name} under "
        f"SGLang {ranking.version} ranked by {ranking.objective}{too_large}"
    )


def _table(ranking: Ranking, shown: Sequence[Ranked], width: int) -> list[str]:
    if not shown:
        return []
    is_peak = ranking.objective.maximise
    one_first, peak_first = (0, 2)[is_peak], (2, 0)[is_peak]
    points = [(each.prediction.points[0], each.prediction.peak) for each in shown]
    held = [each.prediction.memory for each in shown]
    of_token = time_unit([one.tpot_interval_s.high for one, _ in points])
    of_first = time_unit([one.ttft_s for one, _ in points])
    columns = [
        Column(title="#", cells=[f"{number}" for number in range(1, len(shown) + 1)]),
        Column(
            title="",
            cells=["=" if each.is_like_best and len(ranking.ranked) > 1 else "" for each in shown],
            is_number=False,
        ),
        Column(title="layout", cells=[each.candidate.requested.label for each in shown], is_number=False),
        Column(title="peak tok/s", cells=[figure(top.output_tok_per_s) for _, top in points], priority=peak_first),
        Column(
            title="",
            cells=[f"({span(top.output_tok_per_s_interval)})" for _, top in points],
            is_number=False,
            priority=1 if is_peak else 8,
        ),
        Column(title="at", cells=[str(top.concurrency) for _, top in points], priority=6),
        Column(
            title="/GPU",
            cells=[
                figure(top.output_tok_per_s / each.prediction.layout.num_gpus)
                for each, (_, top) in zip(shown, points, strict=True)
            ],
            priority=7,
        ),
        Column(
            title=f"c1 {of_token.name}/token",
            cells=[of_token.shown(one.tpot_s) for one, _ in points],
            priority=one_first,
        ),
        Column(
            title="",
            cells=[f"({span(one.tpot_interval_s, of_token.per_s)})" for one, _ in points],
            is_number=False,
            priority=8 if is_peak else 1,
        ),
        Column(title=f"c1 TTFT {of_first.name}", cells=[of_first.shown(one.ttft_s) for one, _ in points], priority=9),
        Column(title="weights/GPU", cells=[gib(each.weight_bytes) for each in held], priority=4),
        Column(title="mem", cells=[f"{each.mem_fraction_static:.3g}" for each in held], priority=3),
        Column(title="KV tokens", cells=[f"{each.kv_tokens_total:,}" for each in held], priority=5),
        Column(title="", cells=[_risk(ranking, each) for each in shown], is_number=False, priority=3),
    ]
    return ["", *table_lines(columns, width)]


def _risk(ranking: Ranking, each: Ranked) -> str:
    """Empty where it was measured: then it has not run out of memory."""
    is_measured = ranking.evidence is not None and each.candidate.effective in ranking.evidence.layouts
    return "" if is_measured else each.prediction.memory.risk


def _more(ranking: Ranking, shown: Sequence[Ranked], table: Sequence[str]) -> list[str]:
    left = len(ranking.ranked) - len(shown)
    more = [f"... and {left} more: --all shows them, --pin narrows them down"] if left else []
    titles = " ".join(table[:2]).split()
    return [*more, "; ".join((_CAPTION, *(told for title, told in _OF_COLUMNS.items() if title in titles)))]


def _standing(ranking: Ranking, width: int) -> list[str]:
    best = ranking.best
    at = ranking.deciding_concurrency
    lines = ["", *_told_apart(ranking), *_slower_than_predicted(ranking)]
    if best.prediction.unproven:
        lines.append(f"what the first rests on is not proven: {'; '.join(best.prediction.unproven)}")
    if ranking.switched is not None and ranking.switched.matters:
        lines.append(f"the first {ranking.switched.told}")
    if ranking.peaks_at_the_top:
        lines.append(f"the first peaks at concurrency {at}{TOP_OF_THE_LADDER}")
    lines += _beyond(ranking)
    limit = next((each for each in best.prediction.limits if each.concurrency == at), None)
    if limit is not None:
        lines.append(
            f"no layout of these GPUs can exceed {figure(limit.output_tok_per_s)} tok/s at concurrency {at} "
            f"({limit.bound_by})"
        )
    told = [*prose(lines, width), "the first is launched with", f"  {_argv(ranking, best)}"]
    return [*told, *_safest(ranking, width)]


def _safest(ranking: Ranking, width: int) -> list[str]:
    safest = ranking.safest
    if safest is ranking.best:
        return []
    is_peak = ranking.objective.maximise
    shown = f"{figure(safest.value)} tok/s" if is_peak else f"{said_time(safest.value)} per token"
    place = next(place for place, each in enumerate(ranking.ranked, start=1) if each is safest)
    said = (
        f"of those alike, the one that rests least on what is not proven: {safest.candidate.requested.label} "
        f"(number {place}, {shown})"
    )
    return [*prose([said], width), f"  {_argv(ranking, safest)}"]


def _slower_than_predicted(ranking: Ranking) -> list[str]:
    if ranking.evidence is None or not ranking.is_lead_unmeasured:
        return []
    factor = ranking.evidence.measured_over_predicted
    said = (
        f"the measured layouts came out x{factor:.1f} slower than predicted; others are expected to share part of that "
        "only, which is no gain that was measured"
    )
    return [said]


def _told_apart(ranking: Ranking) -> list[str]:
    num_others = len(ranking.ranked) - 1
    if not num_others:
        return []
    alike = sum(each.is_like_best for each in ranking.ranked) - 1
    if not alike:
        return ["the first is told apart from all others"]
    others = "all others" if alike == num_others else f"{alike} others"
    said = (
        f"= not distinguishable from the first: the interval of the ratio holds 1 for {others}; "
        f"measurements decide (tune --objective {ranking.objective})"
    )
    return [said]


def _beyond(ranking: Ranking) -> list[str]:
    found = ranking.beyond
    if found is None or len(ranking.ranked) == 1:
        return []
    if found.is_first:
        return [f"with more requests in flight, up to {found.concurrencies[-1]}, it stays the first"]
    point = found.point
    ladder = ",".join(map(str, dict.fromkeys((1, ranking.workload.concurrencies[-1], point.concurrency))))
    said = (
        f"with more requests in flight another comes first: {found.candidate.requested.label}, "
        f"{figure(point.output_tok_per_s)} tok/s ({span(point.output_tok_per_s_interval)}) at {point.concurrency}, "
        f"with a time to first token of {said_time(point.ttft_s)} (--concurrency {ladder})"
        f"{'; not distinguishable from the first there' * found.is_like_first}"
    )
    return [said]


def _argv(ranking: Ranking, each: Ranked) -> str:
    return argv_text(each.candidate.requested, ranking.version)
