"""How requests come in: what a client says of the load that a request is part of, and who has not reached a rank yet.

A client that measures in simulated time announces its load in every request (`simulated_load`, which SGLang does not
know). Time then stands still until exactly what was announced is there, and what is measured depends on neither the
client's nor this machine's speed.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from search_spaces.errors import MalformedError

if TYPE_CHECKING:
    from tuner.simulator.engine import Ticket


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """in_flight: how many requests the client keeps in flight, as long as it has more to send.

    number, of: which request of the load this is, from 0 on, and how many it has. arrives_in_s: simulated seconds after
    the load's first request at which this one arrives, whatever else is in flight; None for now.
    """

    in_flight: int
    number: int
    of: int
    arrives_in_s: float | None = None


def read_announced(said: Any) -> Announced | None:
    """None where nothing was said. Raises MalformedError."""
    if said is None:
        return None
    if not isinstance(said, dict):
        raise MalformedError("simulated_load must be an object")
    in_flight, number, of = (_count(said, name) for name in ("in_flight", "number", "of"))
    if in_flight < 1 or number >= of:
        raise MalformedError("simulated_load keeps at least 1 in_flight, and number is below of")
    arrives_in_s = said.get("arrives_in_s")
    if arrives_in_s is not None and not (
        type(arrives_in_s) in (int, float) and math.isfinite(arrives_in_s) and arrives_in_s >= 0
    ):
        raise MalformedError(f"arrives_in_s is seconds from 0 on, got {arrives_in_s}")
    return Announced(in_flight=in_flight, number=number, of=of, arrives_in_s=arrives_in_s)


def _count(said: dict[str, Any], name: str) -> int:
    value = said.get(name)
    if type(value) is not int or value < 0:
        raise MalformedError(f"simulated_load needs {name}, a count (got {value})")
    return value


class Arrivals:
    """Tickets that no rank has yet, by when they arrive; of one moment, in the order of their load."""

    def __init__(self) -> None:
        self._tickets: list[Ticket] = []

    @property
    def next_s(self) -> float:
        """Infinite where none is to arrive."""
        return self._tickets[0].request.arrival_s if self._tickets else math.inf

    def add(self, ticket: Ticket) -> None:
        bisect.insort(self._tickets, ticket, key=_place)

    def drop(self, ticket: Ticket) -> None:
        if ticket in self._tickets:
            self._tickets.remove(ticket)

    def take(self, until_s: float) -> list[Ticket]:
        count = bisect.bisect_right(self._tickets, until_s, key=lambda ticket: ticket.request.arrival_s)
        taken, self._tickets = self._tickets[:count], self._tickets[count:]
        return taken


def _place(ticket: Ticket) -> tuple[float, int]:
    return ticket.request.arrival_s, ticket.announced.number if ticket.announced is not None else 0
