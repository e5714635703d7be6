"""Bytes of weights, with how many of them are scales and padding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from search_spaces.parts import Scheme, Storage


class Sized(NamedTuple):
    """Bytes on one rank, and how many of them are scales and padding."""

    total: float
    scales: float

    def __add__(self, other: tuple[float, ...]) -> Sized:  # type: ignore[override]
        return Sized(self.total + other[0], self.scales + other[1])

    def times(self, number: float) -> Sized:
        return Sized(self.total * number, self.scales * number)


NOTHING = Sized(0.0, 0.0)


def total_of(sizes: Iterable[Sized]) -> Sized:
    total = NOTHING
    for size in sizes:
        total += size
    return total


def plain_bytes(storage: Storage, number: float, element_bytes: int) -> float:
    """`number` weights without scales, in bytes."""
    match storage.scheme:
        case Scheme.NONE:
            return number * element_bytes
        case Scheme.NVFP4 | Scheme.MXFP4 | Scheme.INT4_GROUP:
            return number / 2
        case Scheme.FP8_BLOCK | Scheme.FP8_CHANNEL | Scheme.FP8_TENSOR | Scheme.MXFP8:
            return number
