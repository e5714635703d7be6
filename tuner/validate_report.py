"""The report on predictions against measurements: overall, and by engine, GPU, model and campaign."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cost_models.prediction import COVERAGE
from tuner.validate_metrics import (
    BetweenLayouts,
    Errors,
    WithinLayouts,
    between_layouts_per_gpu,
    between_layouts_per_user,
    errors_of,
    within_layouts,
)
from tuner.validate_predict import Comparison
from tuner.validate_rows import Skipped

THROUGHPUT_ALONE = "throughput alone"
"""Of points without a time per output token: no constant was fitted on them."""

_DIGITS = 4
_MOST_SAID = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Of one part of the rows. n: compared. skipped: by reason. rule_disagrees: measured, but illegal by the rules."""

    n: int
    skipped: Mapping[str, int]
    rule_disagrees: int
    tpot: Errors | None
    ttft: Errors | None
    output_tok_s: Errors | None
    within: WithinLayouts
    per_gpu: BetweenLayouts
    per_user: BetweenLayouts


def summary(compared: Sequence[Comparison], skipped: Iterable[Skipped]) -> Summary:
    return Summary(
        n=len(compared),
        skipped=dict(Counter(each.reason for each in skipped).most_common()),
        rule_disagrees=sum(not each.row.is_legal for each in compared),
        tpot=errors_of(each.tpot for each in compared),
        ttft=errors_of(each.ttft for each in compared),
        output_tok_s=errors_of(each.output_tok_s for each in compared),
        within=within_layouts(compared),
        per_gpu=between_layouts_per_gpu(compared),
        per_user=between_layouts_per_user(compared),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Points with a time per output token that no constant was fitted on, beside such that some were.

    of_fitted_pairs: those whose model's shape and GPU the fit saw at other points.
    """

    n: int
    of_fitted_pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """name: of the file. how: how constants were chosen for it. filters: what was asked for; left_out: lines beyond it.

    held_out: None where all points are, or where constants are not those that come with the tool.

    unknown_releases: compared points by a word for their release that none has, and the one it was read as.

    by_use: rows that constants were fitted on, the others, and those with a throughput alone; empty where all are of
        the second kind.
    """

    name: str
    how: str
    filters: Mapping[str, Any]
    left_out: int
    skipped: tuple[Skipped, ...]
    overall: Summary
    held_out: HeldOut | None
    unknown_releases: Mapping[tuple[str, str], int]
    by_use: Mapping[str, Summary]
    by_engine: Mapping[str, Summary]
    by_gpu: Mapping[str, Summary]
    by_model: Mapping[str, Summary]
    by_campaign: Mapping[str, Summary]


def report(
    compared: Sequence[Comparison],
    skipped: Sequence[Skipped],
    *,
    name: str,
    how: str,
    filters: Mapping[str, Any],
    left_out: int,
    fitted_pairs: Collection[object] = (),
) -> Report:
    """fitted_pairs: shapes of models and GPUs, `MeasuredRow.pair`, that the constants it uses were fitted on."""

    def by(of_row: Callable[[Comparison], str], of_line: Callable[[Skipped], str]) -> dict[str, Summary]:
        rows: dict[str, list[Comparison]] = defaultdict(list)
        lines: dict[str, list[Skipped]] = defaultdict(list)
        for each in compared:
            rows[of_row(each)].append(each)
        for line in skipped:
            lines[of_line(line)].append(line)
        return {each: summary(rows[each], lines[each]) for each in sorted({*rows, *lines} - {""})}

    new = [each.row.pair for each in compared if each.tpot is not None and not each.row.used_for_fitting]
    differ = any(each.row.used_for_fitting or each.tpot is None for each in compared)
    return Report(
        name=name,
        how=how,
        filters=filters,
        left_out=left_out,
        skipped=tuple(skipped),
        overall=summary(compared, skipped),
        held_out=HeldOut(n=len(new), of_fitted_pairs=sum(pair in fitted_pairs for pair in new))
        if new and fitted_pairs
        else None,
        unknown_releases=Counter(
            (each.row.engine_version, f"0.5.{each.row.setting.patch}")
            for each in compared
            if not each.row.setting.is_release_known
        ),
        by_use=by(use_of, lambda _: "") if differ else {},
        by_engine=by(lambda each: str(each.row.engine), lambda each: each.engine),
        by_gpu=by(lambda each: each.row.gpu_name, lambda each: each.gpu),
        by_model=by(lambda each: each.row.served, lambda each: each.model),
        by_campaign=by(lambda each: campaign_name(each.row.campaign), lambda _: ""),
    )


def use_of(each: Comparison) -> str:
    if each.tpot is None:
        return f"{each.row.engine}, {THROUGHPUT_ALONE}"
    return f"{each.row.engine}, {'used for fitting' if each.row.used_for_fitting else 'held out'}"


def campaign_name(campaign: Sequence[str]) -> str:
    return " | ".join(part or "-" for part in campaign)


def document(found: Report) -> dict[str, Any]:
    """What `--json` prints. Errors and shares are in percent; what could not be told is null."""
    return {
        "file": found.name,
        "constants": found.how,
        "filters": dict(found.filters),
        "stated_coverage": 100 * COVERAGE,
        "left_out_by_filters": found.left_out,
        "skipped_lines": [
            {"line": each.line, "reason": each.reason, "message": each.message} for each in found.skipped[:_MOST_SAID]
        ],
        "held_out": None if found.held_out is None else asdict(found.held_out),
        "unknown_releases": [
            {"engine_version": named, "read_as": release, "n": n}
            for (named, release), n in found.unknown_releases.items()
        ],
        "overall": _of(found.overall),
        **{
            part: {name: _of(each) for name, each in getattr(found, part).items()}
            for part in ("by_use", "by_engine", "by_gpu", "by_model", "by_campaign")
        },
    }


def _of(each: Summary) -> dict[str, Any]:
    return {
        "n": each.n,
        "skipped": dict(each.skipped),
        "rule_disagrees": each.rule_disagrees,
        "tpot": _rounded(each.tpot),
        "ttft": _rounded(each.ttft),
        "output_tok_s": _rounded(each.output_tok_s),
        "coverage": None if each.tpot is None else round(each.tpot.coverage, _DIGITS),
        "interval_factor": None if each.tpot is None else round(each.tpot.interval_factor, _DIGITS),
        "within_layout_spearman": _rounded_number(each.within.mean),
        "within_layout_spearman_min": _rounded_number(each.within.least),
        "within_layout_curves": each.within.curves,
        "between_layouts": {**_between(each.per_gpu), "by": "output tokens per second and GPU"},
        "between_layouts_tpot": {**_between(each.per_user), "by": "time per output token"},
    }


def _between(each: BetweenLayouts) -> dict[str, Any]:
    return {
        "groups": each.groups,
        "pairs": each.pairs,
        **_numbers(asdict(each.predicted)),
        "trivial_rule": _numbers(asdict(each.trivial_rule)),
    }


def _rounded(errors: Errors | None) -> dict[str, Any] | None:
    return None if errors is None else _numbers(asdict(errors))


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _rounded_number(value) for name, value in values.items()}


def _rounded_number(value: float | None) -> float | None:
    return round(value, _DIGITS) if isinstance(value, float) else value
