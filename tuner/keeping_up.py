"""Whether a server keeps up with requests that are sent at a rate, or only lets them pile up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

NOISE_SDS = 2.0
"""By so many standard deviations of its noise the number in flight may grow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepingUp:
    """Of the second half of the time in which requests were sent; the first fills the server.

    span_s: its length. sent, ended: requests within it. in_flight_before, in_flight_after: at its start and its end, so
    that they differ by what was sent and did not end.
    """

    span_s: float
    sent: int
    ended: int
    in_flight_before: int
    in_flight_after: int

    @classmethod
    def of(cls, starts_s: Sequence[float], ends_s: Sequence[float]) -> KeepingUp:
        """Of requests that all ended, in any order, at least one."""
        last_s = max(starts_s)
        middle_s = (min(starts_s) + last_s) / 2

        def in_flight(at_s: float) -> int:
            return sum(s <= at_s for s in starts_s) - sum(e <= at_s for e in ends_s)

        return cls(
            span_s=last_s - middle_s,
            sent=sum(middle_s < s <= last_s for s in starts_s),
            ended=sum(middle_s < e <= last_s for e in ends_s),
            in_flight_before=in_flight(middle_s),
            in_flight_after=in_flight(last_s),
        )

    @property
    def is_kept_up(self) -> bool:
        """Whether as many end as are sent, but for noise.

        The number in flight under Poisson arrivals is itself a Poisson number where nothing has to wait (the M/G/inf
        queue), so the difference of two of them varies by no more than the root of their sum.
        """
        noise = NOISE_SDS * math.sqrt(self.in_flight_before + self.in_flight_after)
        return self.sent - self.ended <= noise

    @property
    def doubts(self) -> tuple[str, ...]:
        if self.is_kept_up:
            return ()
        grew = f"those in flight grew from {self.in_flight_before} to {self.in_flight_after}"
        sent = f"in {self.span_s:.3g} s {self.sent} requests were sent and {self.ended} ended"
        return (f"the server does not keep up: {sent}, {grew}",)
