"""Predictions for measured rows: one vectorised answer for all rows of a model, cluster and load."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cost_models.calibration import NO_CALIBRATION, Calibration, Observation, calibrate
from cost_models.constants import DEFAULT, Constants
from cost_models.estimate import predict_all
from cost_models.memory_types import DoesNotFit
from cost_models.prediction import Interval, Prediction, ServingPoint
from search_spaces.layout import Layout
from search_spaces.workload import Workload
from tuner.validate_fields import Reason
from tuner.validate_rows import MeasuredRow, Skipped

Answers = list["Comparison | Skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One metric, measured and predicted, in the same unit."""

    measured: float
    predicted: float
    interval: Interval

    @property
    def error(self) -> float:
        """Relative; positive where the prediction is too high."""
        return self.predicted / self.measured - 1

    @property
    def is_covered(self) -> bool:
        return self.measured in self.interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    row: MeasuredRow
    point: ServingPoint

    @property
    def tpot(self) -> Compared | None:
        """None where only the throughput was measured."""
        if self.row.tpot_s is None:
            return None
        point = self.point
        return Compared(measured=self.row.tpot_s, predicted=point.tpot_s, interval=point.tpot_interval_s)

    @property
    def ttft(self) -> Compared | None:
        """None where only the time per output token was measured."""
        if self.row.ttft_s is None:
            return None
        point = self.point
        return Compared(measured=self.row.ttft_s, predicted=point.ttft_s, interval=point.ttft_interval_s)

    @property
    def output_tok_s(self) -> Compared | None:
        measured = self.row.output_tok_per_s
        if measured is None:
            return None
        point = self.point
        return Compared(measured=measured, predicted=point.output_tok_per_s, interval=point.output_tok_per_s_interval)


def compare(
    rows: Sequence[MeasuredRow],
    *,
    constants: Constants = DEFAULT,
    calibration: Calibration = NO_CALIBRATION,
) -> Answers:
    """In the order of `rows`."""
    groups: dict[object, list[MeasuredRow]] = defaultdict(list)
    for row in rows:
        key = row.model.name, row.cluster.name, row.input_tokens, row.output_tokens, row.setting
        groups[key].append(row)
    found: dict[int, Comparison | Skipped] = {}
    for group in groups.values():
        found |= _group(group, constants, calibration)
    return [found[id(row)] for row in rows]


def _group(
    rows: Sequence[MeasuredRow], constants: Constants, calibration: Calibration
) -> Mapping[int, Comparison | Skipped]:
    first = rows[0]
    workload = load_of(rows)

    def predicted(layouts: Iterable[Layout]) -> tuple[Prediction | DoesNotFit, ...]:
        return predict_all(
            first.model,
            first.cluster,
            tuple(layouts),
            workload,
            setting=first.setting,
            calibration=calibration,
            constants=constants,
        )

    layouts = tuple(dict.fromkeys(row.layout for row in rows))
    answers = dict(zip(layouts, predicted(layouts), strict=True))
    for layout, answer in answers.items():
        if isinstance(answer, DoesNotFit):
            answers[layout] = next(
                (each for each in predicted(_with_more_memory(answer)) if isinstance(each, Prediction)), answer
            )
    return {id(row): _comparison(row, answers[row.layout]) for row in rows}


_LARGEST_FRACTIONS = tuple(thousandths / 1000 for thousandths in range(950, 700, -10))


def _with_more_memory(answer: DoesNotFit) -> tuple[Layout, ...]:
    """The layout with other memory fractions, the largest first.

    It was measured: where the engine's own fraction would not do, the campaign named another, and nobody who has to
    name one leaves memory of the card unused.
    """
    known = (answer.least_fraction, answer.most_fraction)
    fractions = (*_LARGEST_FRACTIONS, *(fraction for fraction in known if fraction is not None))
    return tuple(answer.layout.changed(mem_fraction_static=fraction) for fraction in fractions)


def _comparison(row: MeasuredRow, answer: Prediction | DoesNotFit) -> Comparison | Skipped:
    if isinstance(answer, DoesNotFit):
        return skipped(row, Reason.DOES_NOT_FIT, answer.message)
    return Comparison(row=row, point=next(point for point in answer.points if point.concurrency == row.concurrency))


def skipped(row: MeasuredRow, reason: Reason, message: str) -> Skipped:
    return Skipped(line=row.line, reason=reason, message=message, engine=row.engine, gpu=row.gpu_name, model=row.served)


def load_of(rows: Sequence[MeasuredRow]) -> Workload:
    """The load of rows of one length, over all their concurrencies."""
    return Workload(
        input_tokens=rows[0].input_tokens,
        output_tokens=rows[0].output_tokens,
        concurrencies=tuple(sorted({1, *(row.concurrency for row in rows)})),
    )


def compare_left_out(
    rows: Sequence[MeasuredRow], fit: Callable[[Sequence[MeasuredRow]], Constants], fitted_on: Sequence[MeasuredRow]
) -> Answers:
    """Each row under constants that `fit` finds on `fitted_on` without the row's own shape of model and GPU.

    Pairs that `fitted_on` does not hold are new to the constants as they come.
    """
    found: dict[int, Comparison | Skipped] = {}
    known = {row.pair for row in fitted_on}
    for pair in dict.fromkeys(row.pair for row in rows):
        mine = [row for row in rows if row.pair == pair]
        constants = fit([row for row in fitted_on if row.pair != pair]) if pair in known else DEFAULT
        found |= dict(zip(map(id, mine), compare(mine, constants=constants), strict=True))
    return [found[id(row)] for row in rows]


def compare_calibrated(rows: Sequence[MeasuredRow], num_points: int) -> Answers:
    """Each curve after its factor was fixed by `num_points` of its points, from the lowest concurrency to the highest.

    The points that it was fixed by are no longer compared. One without a time per output token fixes nothing.
    """
    curves: dict[object, list[MeasuredRow]] = defaultdict(list)
    for row in rows:
        curves[row.curve].append(row)
    found: dict[int, Comparison | Skipped] = {}
    for curve in curves.values():
        rising = sorted((row for row in curve if row.tpot_s is not None), key=lambda row: row.concurrency)
        if len(rising) < num_points or len(curve) <= num_points:
            timed = f", {len(rising)} of them with a time per output token" if len(rising) < len(curve) else ""
            message = f"{len(curve)} points of this layout and length{timed}, {num_points} of them to calibrate with"
            found |= {id(row): skipped(row, Reason.TOO_FEW, message) for row in curve}
            continue
        known = [rising[place] for place in spread(len(rising), num_points)]
        taken = set(map(id, known))
        others = [row for row in curve if id(row) not in taken]
        found |= {id(row): skipped(row, Reason.CALIBRATION, "one of the points it was fixed by") for row in known}
        found |= dict(zip(map(id, others), compare(others, calibration=_calibration(known)), strict=True))
    return [found[id(row)] for row in rows]


def spread(total: int, num_points: int) -> tuple[int, ...]:
    """Places from the first to the last of `total`, evenly; the first alone where one is asked for."""
    if num_points == 1:
        return (0,)
    return tuple(round(each * (total - 1) / (num_points - 1)) for each in range(num_points))


def _calibration(known: Sequence[MeasuredRow]) -> Calibration:
    first = known[0]
    return calibrate(
        first.model,
        first.cluster,
        load_of(known),
        tuple(
            Observation(layout=row.layout, concurrency=row.concurrency, tpot_s=row.tpot_s, ttft_s=row.ttft_s)
            for row in known
            if row.tpot_s is not None
        ),
        setting=first.setting,
    )
