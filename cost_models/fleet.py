"""Many layouts side by side, so that one pass of arithmetic predicts them all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from cost_models.channels import Channels
from cost_models.curves import Curve, CurveTable
from cost_models.routing import Floats, Routing, distinct_experts, routing
from cost_models.work import Work

Ints = NDArray[np.int64]


class Fleet:
    """The work of n layouts as columns of shape (n, 1), and their collectives as one table of curves.

    The layouts may be of different models, clusters and workloads.
    """

    def __init__(self, members: Sequence[tuple[Work[float], Channels]]) -> None:
        columns = np.array([work for work, _ in members], dtype=np.float64).T
        self.work: Work[Floats] = Work(*(column[:, None] for column in columns))
        # By identity: the curve of one group of ranks is one object, and costs more to compare than to look up.
        curves: dict[int, Curve | None] = {id(curve): curve for _, channels in members for curve in channels}
        places = {key: place for place, key in enumerate(curves)}
        rows = [[places[id(curve)] for curve in channels] for _, channels in members]
        self._curves = CurveTable(list(curves.values()))
        self._curve_index = np.array(rows, dtype=np.int64)
        experts = list(zip(self.work.num_experts[:, 0], self.work.top_k[:, 0], strict=True))
        self._routed: list[tuple[tuple[int, int], Ints]] = [
            ((int(count), int(chosen)), np.array([i for i, each in enumerate(experts) if each == (count, chosen)]))
            for count, chosen in dict.fromkeys(experts)
        ]

    def __len__(self) -> int:
        return len(self._curve_index)

    def sent_s(self, channel: str, size_bytes: Floats) -> Floats:
        """Seconds of the collective of that name in `Channels`, each layout its own; 0 where it has none."""
        column = self._curve_index[:, Channels._fields.index(channel), None]
        return self._curves.seconds(column, size_bytes)

    def routed(self, num_tokens: Floats, popularity: float) -> tuple[Floats, Floats]:
        """Distinct experts of so many tokens, and the variance of experts' popularity."""
        tables = [(routing(*experts, popularity), rows) for experts, rows in self._routed]
        if len(tables) == 1:
            table = tables[0][0]
            return distinct_experts(table, num_tokens), np.array([[table.variance]])
        return _scattered(tables, num_tokens)


def _scattered(tables: Iterable[tuple[Routing, Ints]], num_tokens: Floats) -> tuple[Floats, Floats]:
    distinct = np.empty_like(num_tokens)
    variance = np.empty((len(num_tokens), 1))
    for table, rows in tables:
        distinct[rows] = distinct_experts(table, num_tokens[rows])
        variance[rows] = table.variance
    return distinct, variance
