"""Throughput against pace in a terminal: a curve over concurrency for each leading layout, and the Pareto front."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tuner.predict_space import Ranked, Ranking, pareto_front
from tuner.predict_words import prose

NUM_CURVES = 5
_FRONT = "Pareto front of all layouts: no other point is faster for the user and per GPU"
_LETTERS = "abcdefghij"
_COLOURS = ("blue", "magenta", "green", "yellow", "cyan")
_SAME = 0.02
"""Curves that are nowhere farther apart would be drawn on one another."""
_HEIGHT = 18
_MOST_COLUMNS = 120
_MARGIN = 5
"""Of the legend's names, where letters stand before them."""
_BORDER = 16
"""Columns of the frame and of the labels on the right."""
_ASCII = str.maketrans("┌┐└┘│─▁", "++++|-_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """x: tok/s per user; y: tok/s per GPU; one point for each concurrency. num_alike: others that lie on it."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    num_alike: int = 0

    @property
    def legend(self) -> str:
        others = f" and {self.num_alike} other{'s' * (self.num_alike != 1)} that lie{'s' * (self.num_alike == 1)} on it"
        return f"{self.name}{others if self.num_alike else ''}"


def leading(ranking: Ranking, most: int = NUM_CURVES) -> tuple[Ranked, ...]:
    """The best ones that differ: a curve that lies on a better one's shows nothing. Best first."""
    chosen: list[Ranked] = []
    for each in ranking.ranked:
        if len(chosen) == most:
            break
        if all(_differ(each, other) for other in chosen):
            chosen.append(each)
    return tuple(chosen)


def _differ(one: Ranked, other: Ranked) -> bool:
    curves_ = _curve_of(one), _curve_of(other)
    pairs = [pair for axis in ("x", "y") for pair in zip(*(getattr(c, axis) for c in curves_), strict=True)]
    return any(abs(a / b - 1) > _SAME for a, b in pairs)


def curves(ranking: Ranking) -> tuple[Curve, ...]:
    """The points of the front, then the leading layouts, best first."""
    front = pareto_front(ranking.ranked)
    drawn = leading(ranking)
    alike = Counter(
        next((place for place, other in enumerate(drawn) if not _differ(each, other)), None) for each in ranking.ranked
    )
    return (
        Curve(name=_FRONT, x=tuple(point[0] for point in front), y=tuple(point[1] for point in front)),
        *(replace(_curve_of(each), num_alike=alike[place] - 1) for place, each in enumerate(drawn)),
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
    colours = ["white", *_COLOURS[: len(drawn) - 1]]
    # What is drawn later lies above: the first of the ranking above the others, the front's points above all.
    order = [*range(len(drawn) - 1, 0, -1), 0]
    text = plot_to_string(
        xs=[list(drawn[i].x) for i in order],
        ys=[list(drawn[i].y) for i in order],
        lines=[i > 0 for i in order],
        width=max(min(width - _BORDER, _MOST_COLUMNS), 20),
        height=_HEIGHT,
        x_min=0,
        y_min=0,
        color=[colours[i] for i in order] if in_colour else False,
        **({"character_set": "ascii", "force_ascii_characters": [marks[i] for i in order]} if in_letters else {}),
    )
    title = [
        "tok/s per GPU (up) over tok/s per user (right), one point per concurrency",
        f"drawn: {_of_how_many(len(drawn) - 1)} by {ranking.objective}; the first lies above the others",
    ]
    lines = ["", *prose(title, width), *text.split("\n")]
    lines += _legend(drawn, marks, width, in_colour=in_colour, in_letters=in_letters)
    return [line.translate(_ASCII) for line in lines] if is_plain else lines


def _of_how_many(number: int) -> str:
    return f"the best {number} shapes whose curves differ" if number > 1 else "the best shape"


def _legend(
    drawn: Sequence[Curve], marks: Sequence[str], width: int, *, in_colour: bool, in_letters: bool
) -> list[str]:
    codes = (37, 34, 35, 32, 33, 36)
    margin = _MARGIN if not in_colour else 2 if in_letters else 3
    lines = []
    for curve, mark, code in zip(drawn, marks, codes, strict=False):
        shown = f"\x1b[{code}m{mark if in_letters else '██'}\x1b[0m " if in_colour else f"  {mark}  "
        first, *rest = textwrap.wrap(curve.legend, max(width - margin, 20), break_long_words=False)
        lines += [shown + first, *(" " * margin + more for more in rest)]
    return lines
