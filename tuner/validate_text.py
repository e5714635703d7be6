"""The report on predictions against measurements, for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from textwrap import shorten

from cost_models.prediction import COVERAGE
from tuner.text_table import Column, table_lines
from tuner.validate_metrics import BetweenLayouts, Choice, Errors
from tuner.validate_report import THROUGHPUT_ALONE, Report, Summary

_MOST_REASONS = 8
_LONGEST_EXAMPLE = 90
_LONGEST_NAME = 80
_LONGEST_WORD = 30
_MOST_WORDS = 4
_TOO_LONG = 1e5
_CUT = " ..."
_NONE = "-"

_PER_GPU_RULE = "fewer GPUs, TP before EP and PP"
_PER_USER_RULE = "more GPUs, TP before EP and PP"
_PREDICTED = "predicted"
_CHOOSER_WIDTH = max(map(len, (_PER_GPU_RULE, _PER_USER_RULE, _PREDICTED)))

PARTS: Mapping[str, Callable[[Report], Mapping[str, Summary]]] = {
    "gpu": lambda found: found.by_gpu,
    "model": lambda found: found.by_model,
    "campaign": lambda found: found.by_campaign,
}

_HOW_TO_READ = (
    "errors in percent of what was measured: median, mean and 90th percentile of their size; "
    "bias: the median error with its sign"
)


def lines(found: Report, width: int, by: Sequence[str]) -> list[str]:
    """by: of `PARTS`, what to give a table of beside the use of the points and the engines."""
    overall = found.overall
    return [
        f"{_counted(overall.n, 'measured point')} of {found.name}, {found.how}",
        *_left_out(found),
        "",
        _HOW_TO_READ,
        *_tables("", {"all": overall}, width),
        *_tables("by use", found.by_use, width),
        *_held_out(found),
        *_tables("by engine", found.by_engine, width),
        *(line for part in PARTS if part in by for line in _tables(f"by {part}", _short(PARTS[part](found)), width)),
        *_releases(found),
        *_order(found),
        *_skipped(found),
    ]


def _left_out(found: Report) -> list[str]:
    if not found.left_out:
        return []
    asked = ", ".join(f"{name} {value}" for name, value in found.filters.items() if value not in {None, False})
    return [f"{_counted(found.left_out, 'more line')} outside of what was asked for ({asked})"]


def _held_out(found: Report) -> list[str]:
    points = found.held_out
    if points is None:
        return []
    some = f"{points.of_fitted_pairs} of {points.n} are " if points.of_fitted_pairs < points.n else ""
    said = f"held out: {some}other points of pairs of model and GPU that were fitted; for new pairs see --leave-one-out"
    return ["", said]


def _releases(found: Report) -> list[str]:
    unknown = found.unknown_releases
    if not unknown:
        return []
    total = sum(unknown.values())
    read = ", ".join(
        f"{_shown(named, _LONGEST_WORD)} read as {release}" for named, release in list(unknown)[:_MOST_WORDS]
    )
    more = f", and {len(unknown) - _MOST_WORDS} more" if len(unknown) > _MOST_WORDS else ""
    return [
        "",
        f"{_counted(total, 'line')} {'names' if total == 1 else 'name'} a release that is not known: {read}{more}",
    ]


def _tables(title: str, parts: Mapping[str, Summary], width: int) -> list[str]:
    """Parts without a time per output token have a table of their own."""
    shown = {name: each for name, each in parts.items() if each.n}
    if not shown or (len(shown) == 1 and title):
        return []
    timed = {name: each for name, each in shown.items() if each.tpot is not None}
    alone = {name: each for name, each in shown.items() if each.tpot is None}
    tables = (_timed(title, timed, width) if timed else []), (_alone(title, alone, width) if alone else [])
    return [line for table in tables if table for line in ("", *table)]


def _alone(title: str, parts: Mapping[str, Summary], width: int) -> list[str]:
    values = list(parts.values())
    speeds = [each.output_tok_s for each in values]
    columns = [
        Column(title=f"{title}: {THROUGHPUT_ALONE}".removeprefix(": "), cells=tuple(parts), is_number=False),
        Column(title="n", cells=[str(each.n) for each in values]),
        _errors("tok/s", speeds, 0),
        Column(title=f"in {100 * COVERAGE:.0f} %", cells=[_of(e, "coverage", ".0f") for e in speeds]),
        Column(title="width", cells=[_of(e, "interval_factor", ".2f", sign="x") for e in speeds]),
    ]
    return table_lines(columns, width)


def _timed(title: str, parts: Mapping[str, Summary], width: int) -> list[str]:
    values = list(parts.values())
    tpot = [each.tpot for each in values]
    columns = [
        Column(title=title, cells=tuple(parts), is_number=False),
        Column(title="n", cells=[str(each.n) for each in values]),
        _errors("TPOT", tpot, 0),
        _errors("tok/s", [each.output_tok_s for each in values], 2),
        _errors("TTFT", [each.ttft for each in values], 3),
        Column(title=f"in {100 * COVERAGE:.0f} %", cells=[_of(e, "coverage", ".0f") for e in tpot]),
        Column(title="width", cells=[_of(e, "interval_factor", ".2f", sign="x") for e in tpot]),
        Column(title="Spearman", cells=[_or(each.within.mean, ".3f") for each in values], priority=1),
    ]
    return table_lines(columns, width)


def _short(parts: Mapping[str, Summary]) -> dict[str, Summary]:
    """Without the owners of models, where that leaves names apart."""
    for named in (lambda name: name.split("/", 1)[-1].replace(" | ", " "), str):
        short = {_shown(named(name), _LONGEST_NAME): each for name, each in parts.items()}
        if len(short) == len(parts):
            return short
    return {f"{_shown(name, _LONGEST_NAME)} ({number})": each for number, (name, each) in enumerate(parts.items(), 1)}


def _errors(name: str, found: Sequence[Errors | None], priority: int) -> Column:
    """Four figures that stay together."""
    figures = [
        ["median", *(_of(each, "median_ape") for each in found)],
        ["mean", *(_of(each, "mean_ape") for each in found)],
        ["P90", *(_of(each, "p90_ape") for each in found)],
        ["bias", *(_of(each, "median_error", sign="+") for each in found)],
    ]
    widths = [max(map(len, column)) for column in figures]
    title, *cells = (
        " ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in zip(*figures, strict=True)
    )
    return Column(title=f"{name} {title.lstrip()}", cells=cells, priority=priority)


def _of(found: Errors | None, name: str, form: str = ".1f", *, sign: str = "") -> str:
    return _or(None if found is None else getattr(found, name), form, sign=sign)


def _or(value: float | None, form: str = ".1f", *, sign: str = "") -> str:
    """As `form` writes it; a value of more digits than anyone reads as a power of ten. sign: as in a format, or x."""
    if value is None:
        return _NONE
    form = form if abs(value) < _TOO_LONG else ".0e"
    return f"x{value:{form}}" if sign == "x" else f"{value:{sign}{form}}"


def _shown(text: str, most: int) -> str:
    """What a file says, on one line of at most `most` letters, all of them printable."""
    plain = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    cut = shorten(plain, most, placeholder=_CUT)
    return f"{plain[: most - len(_CUT)]}{_CUT}" if cut == _CUT.strip() else cut


def _order(found: Report) -> list[str]:
    of_all = found.overall
    if not of_all.per_gpu.pairs and not of_all.per_user.pairs:
        return ["", "no two layouts of one campaign, length and concurrency: nothing to order"]
    return [
        "",
        "layouts of one campaign, length and concurrency: pairs in the measured order, and how much worse the first is",
        *_compared("output tokens per second and GPU", _PER_GPU_RULE, of_all.per_gpu),
        *_of_alone(found),
        *_compared("time per output token", _PER_USER_RULE, of_all.per_user),
        "the rules beside them know nothing of the model",
    ]


def _of_alone(found: Report) -> list[str]:
    """The points with a throughput alone, where others stand beside them."""
    of_all = found.overall.per_gpu
    alone = [each for name, each in found.by_use.items() if name.endswith(THROUGHPUT_ALONE)]
    return [
        line
        for each in alone
        if each.per_gpu.pairs != of_all.pairs
        for line in _compared(f"of these, {THROUGHPUT_ALONE}", _PER_GPU_RULE, each.per_gpu)
    ]


_NO_SKILL = "    the rule is as good: these points cannot show that the model chooses layouts better"


def _compared(what: str, rule: str, each: BetweenLayouts) -> list[str]:
    if not each.pairs:
        return []
    return [
        f"  {what}: {_counted(each.pairs, 'pair')} in {_counted(each.groups, 'group')}",
        f"    {_PREDICTED:{_CHOOSER_WIDTH}}  {_choice(each.predicted)}",
        f"    {rule:{_CHOOSER_WIDTH}}  {_choice(each.trivial_rule)}",
        *([_NO_SKILL] if (each.trivial_rule.order_accuracy or 0) >= (each.predicted.order_accuracy or 0) else []),
    ]


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _choice(choice: Choice) -> str:
    accuracy, mean, most = (_or(value) for value in (choice.order_accuracy, choice.regret_mean, choice.regret_max))
    return f"{accuracy} % in order, regret {mean} % mean, {most} % at most"


def _skipped(found: Report) -> list[str]:
    reasons = found.overall.skipped
    disagrees = found.overall.rule_disagrees
    said = [f"of layouts that the rules here forbid: {_counted(disagrees, 'point')}"] if disagrees else []
    if not reasons:
        return ["", *said] if said else []
    shown = [
        f"  {number:>5}  {_shown(reason, _LONGEST_EXAMPLE)}{_example(found, reason)}"
        for reason, number in reasons.items()
    ]
    more = [f"  and {len(shown) - _MOST_REASONS} more reasons: --json has all"] if len(shown) > _MOST_REASONS else []
    return ["", *said, f"{_counted(sum(reasons.values()), 'line')} not compared", *shown[:_MOST_REASONS], *more]


def _example(found: Report, reason: str) -> str:
    first = next(each for each in found.skipped if each.reason == reason)
    if first.message.startswith(reason):
        return ""
    return f" (line {first.line}: {_shown(first.message, _LONGEST_EXAMPLE)})"
