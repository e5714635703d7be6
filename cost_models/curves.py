"""Time of a message as a function of its size: measured or analytic, all on one grid of sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

FIRST_LOG2_BYTES = 8
NUM_POINTS = 25
SIZES_BYTES = tuple(float(2 ** (FIRST_LOG2_BYTES + i)) for i in range(NUM_POINTS))
"""256 B to 4 GiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Seconds of one operation at `SIZES_BYTES`, as base-2 logarithms; never falling with the size.

    is_measured: read off measurements of this operation on this kind of GPU and number of ranks.
    source: where they are published, or what the form rests on.
    """

    log2_s: tuple[float, ...]
    is_measured: bool
    source: str

    def seconds(self, size_bytes: float) -> float:
        """Interpolated in log-log; flat below the first size, along the last slope beyond the last; 0 for nothing."""
        if size_bytes <= 0:
            return 0.0
        place = max(0.0, math.log2(size_bytes) - FIRST_LOG2_BYTES)
        left = min(int(place), NUM_POINTS - 2)
        start, end = self.log2_s[left : left + 2]
        return float(2.0 ** (start + (place - left) * (end - start)))

    def as_guess(self, source: str) -> Curve:
        """The same times for something that they were not measured on."""
        return replace(self, is_measured=False, source=source)


class CurveTable:
    """Many curves read at once: for loops over layouts and batch sizes without a Python call each."""

    def __init__(self, curves: Sequence[Curve | None]) -> None:
        """`None` stands for an operation that is not carried out: it takes no time."""
        silent = (-math.inf,) * NUM_POINTS
        points = np.array([silent if curve is None else curve.log2_s for curve in curves], dtype=np.float64)
        points = points.reshape(len(curves), NUM_POINTS)
        with np.errstate(invalid="ignore"):
            slopes = np.diff(points, axis=1)
        slopes[np.isnan(slopes)] = 0.0
        self._points = points.ravel()
        self._slopes = np.concatenate([slopes, np.zeros((len(curves), 1))], axis=1).ravel()

    def seconds(self, curve_index: NDArray[np.integer], size_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds of the curves with these indices at these sizes; the two shapes broadcast."""
        place = np.log2(np.maximum(size_bytes, SIZES_BYTES[0])) - FIRST_LOG2_BYTES
        left = np.minimum(place.astype(np.int64), NUM_POINTS - 2)
        at = curve_index * NUM_POINTS + left
        times = np.exp2(self._points[at] + (place - left) * self._slopes[at])
        return np.where(np.asarray(size_bytes) > 0, times, 0.0)


def analytic(seconds: Callable[[float], float], source: str) -> Curve:
    """A formula, sampled. It must never fall with the size."""
    return Curve(log2_s=_log2(seconds(size) for size in SIZES_BYTES), is_measured=False, source=source)


def measured(
    sizes_bytes: Sequence[float], seconds: Sequence[float], source: str, *, shape: Curve | None = None
) -> Curve:
    """Measurements at rising sizes, brought onto the grid.

    A larger message takes at least as long, so a point above a later one was measured with a hiccup and is
    lowered to it. Outside of what was measured the curve follows `shape`, as many times as slow as at the nearest
    measured size; without a shape it is flat below, and goes on along its last slope above.

    Raises ValueError where sizes do not rise or a time is not positive and finite.
    """
    if not sizes_bytes or len(sizes_bytes) != len(seconds):
        raise ValueError(f"{len(sizes_bytes)} sizes and {len(seconds)} times")
    if any(a >= b for a, b in pairwise(sizes_bytes)) or sizes_bytes[0] <= 0:
        raise ValueError(f"sizes of messages must rise from more than 0: {sizes_bytes}")
    if not all(0 < value < math.inf for value in seconds):
        raise ValueError(f"times of messages must be positive and finite: {seconds}")
    places = [math.log2(size) for size in sizes_bytes]
    times = [math.log2(value) for value in _never_falling(seconds)]
    return Curve(
        log2_s=tuple(_never_falling([_at(math.log2(size), places, times, shape) for size in SIZES_BYTES])),
        is_measured=True,
        source=source,
    )


def joined(below: Curve, limit_bytes: float, above: Curve) -> Curve:
    """`below` up to and including `limit_bytes`, `above` beyond: one implementation that hands over to another.

    Where the other one would be faster at once, its times are raised to those at the limit.
    """
    parts = zip(SIZES_BYTES, below.log2_s, above.log2_s, strict=True)
    return Curve(
        log2_s=tuple(accumulate((low if size <= limit_bytes else high for size, low, high in parts), max)),
        is_measured=below.is_measured and above.is_measured,
        source=below.source if below.source == above.source else f"{below.source}; beyond its limit {above.source}",
    )


def slower_of(one: Curve, other: Curve) -> Curve:
    """At each size the slower of the two; as well founded as `one`."""
    return replace(one, log2_s=tuple(map(max, one.log2_s, other.log2_s)))


def sum_of(one: Curve, other: Curve) -> Curve:
    """One operation after the other."""
    return Curve(
        log2_s=_log2(2.0**a + 2.0**b for a, b in zip(one.log2_s, other.log2_s, strict=True)),
        is_measured=one.is_measured and other.is_measured,
        source=f"{one.source}; {other.source}",
    )


def geometric_mean(curves: Sequence[Curve], source: str) -> Curve:
    """The middle of several measurements of one thing."""
    columns = zip(*(curve.log2_s for curve in curves), strict=True)
    return Curve(log2_s=tuple(sum(column) / len(curves) for column in columns), is_measured=True, source=source)


def _log2(seconds: Iterable[float]) -> tuple[float, ...]:
    return tuple(math.log2(value) for value in seconds)


def _never_falling(values: Sequence[float]) -> list[float]:
    lowest = math.inf
    envelope = []
    for value in reversed(values):
        lowest = min(lowest, value)
        envelope.append(lowest)
    return envelope[::-1]


def _at(place: float, places: Sequence[float], times: Sequence[float], shape: Curve | None) -> float:
    """Base-2 logarithm of the seconds at a base-2 logarithm of a size."""
    if shape is not None and not places[0] <= place <= places[-1]:
        edge = 0 if place < places[0] else -1
        return times[edge] + math.log2(shape.seconds(2.0**place) / shape.seconds(2.0 ** places[edge]))
    if place <= places[0] or len(places) == 1:
        return times[0]
    left = next((i for i in range(len(places) - 1) if place <= places[i + 1]), len(places) - 2)
    slope = (times[left + 1] - times[left]) / (places[left + 1] - places[left])
    return times[left] + (place - places[left]) * slope
