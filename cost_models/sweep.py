"""One layout's predictions along concurrency, as far as others may share what is not known of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cost_models.routing import Floats
from cost_models.uncertainty import Deviations, Trait
from search_spaces.layout import Layout
from search_spaces.sglang.all_reduce import AllReducePath


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sweep:
    """One layout's predictions at some concurrencies of a load.

    path: of its all-reduces. lengths: input and output tokens. running: requests that one replica runs at once.
    collectives, saved: deviation that comes from slower, and from faster, collectives than assumed, of the time per
    token and of that to first token. Each at each concurrency.
    """

    layout: Layout
    path: AllReducePath
    lengths: tuple[int, int]
    traits: Mapping[Trait, Deviations]
    concurrencies: Sequence[float]
    running: Floats
    collectives: tuple[Floats, Floats]
    saved: tuple[Floats, Floats]

    def is_of_the_layout_of(self, other: Sweep) -> bool:
        """Whether one way of running the model gave both."""
        return self.layout == other.layout and self.path is other.path
