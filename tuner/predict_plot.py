"""Throughput against pace in a terminal: a curve over concurrency for each leading layout, and the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.predict_space import Ranked, Ranking, pareto_front

NUM_CURVES = 5
_FRONT = "Pareto front"
_LETTERS = "abcdefghij"
_COLOURS = ("blue", "magenta", "green", "yellow", "cyan")
_HEIGHT = 18
_BORDER = 16
"""Columns of the frame and of the labels on the right."""
_ASCII = str.maketrans("┌┐└┘│─▁", "++++|-_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """x: tok/s per user; y: tok/s per GPU; one point for each concurrency."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]


def leading(ranking: Ranking, most: int = NUM_CURVES) -> tuple[Ranked, ...]:
    """The first of the ranking, and those that hold most of the Pareto front; best first."""
    held: dict[int, int] = {}
    for _, _, each, _ in pareto_front(ranking.ranked):
        held[id(each)] = held.get(id(each), 0) + 1
    order = sorted(ranking.ranked, key=lambda each: (each is not ranking.best, -held.get(id(each), 0)))
    chosen = {id(each) for each in order[:most]}
    return tuple(each for each in ranking.ranked if id(each) in chosen)


def curves(ranking: Ranking) -> tuple[Curve, ...]:
    """The front first: what is drawn later lies above it."""
    front = pareto_front(ranking.ranked)
    return (
        Curve(name=_FRONT, x=tuple(point[0] for point in front), y=tuple(point[1] for point in front)),
        *(_curve_of(each) for each in leading(ranking)),
    )


def _curve_of(each: Ranked) -> Curve:
    points = each.prediction.points
    num_gpus = each.prediction.layout.num_gpus
    return Curve(
        name=each.candidate.requested.label,
        x=tuple(1 / point.tpot_s for point in points),
        y=tuple(point.output_tok_per_s / num_gpus for point in points),
    )


def terminal_plot(ranking: Ranking, width: int, *, is_plain: bool, in_colour: bool) -> list[str]:
    """is_plain: in ASCII. Without colours every curve is drawn in a letter of its own."""
    from uniplot import plot_to_string  # noqa: PLC0415

    drawn = curves(ranking)
    in_letters = is_plain or not in_colour
    marks = ["*", *_LETTERS[: len(drawn) - 1]]
    text = plot_to_string(
        xs=[list(curve.x) for curve in drawn],
        ys=[list(curve.y) for curve in drawn],
        lines=[True] * len(drawn),
        width=max(min(width - _BORDER, 90), 20),
        height=_HEIGHT,
        x_min=0,
        y_min=0,
        color=["white", *_COLOURS[: len(drawn) - 1]] if in_colour else False,
        **({"character_set": "ascii", "force_ascii_characters": marks} if in_letters else {}),
    )
    lines = ["", "tok/s per GPU (up) over tok/s per user (right), one point per concurrency", *text.split("\n")]
    lines += _legend(drawn, marks, in_colour=in_colour, in_letters=in_letters)
    return [line.translate(_ASCII) for line in lines] if is_plain else lines


def _legend(drawn: Sequence[Curve], marks: Sequence[str], *, in_colour: bool, in_letters: bool) -> list[str]:
    codes = (37, 34, 35, 32, 33, 36)
    return [
        f"\x1b[{code}m{mark if in_letters else '██'}\x1b[0m {curve.name}" if in_colour else f"  {mark}  {curve.name}"
        for curve, mark, code in zip(drawn, marks, codes, strict=False)
    ]
