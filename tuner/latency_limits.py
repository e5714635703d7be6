"""Limits on how long users wait: `ttft_p99=2s,tpot_p99=50ms`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from search_spaces.errors import MalformedError, UnknownNameError
from tuner.measurement import RequestTiming, Spread

METRICS = ("ttft", "tpot")
STATISTICS = ("mean", "p50", "p90", "p95", "p99")
NAMES = tuple(f"{metric}_{statistic}" for metric in METRICS for statistic in STATISTICS)
_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s)")
_UNITS_S = {"ms": 1e-3, "s": 1.0}
LEAST_S = 1e-6
MOST_S = 1e6
"""Beyond these no time of a request is told apart from none, or from for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """metric: ttft, the time to the first token, or tpot, the time per token after it. statistic: of all requests of a
    rung; it must be at most `most_s`.
    """

    metric: str
    statistic: str
    most_s: float

    @property
    def name(self) -> str:
        return f"{self.metric}_{self.statistic}"

    def __str__(self) -> str:
        return f"{self.name}={self.most_s:.12g}s" if self.most_s >= 1 else f"{self.name}={self.most_s * 1e3:.12g}ms"

    def holds(self, ttft_s: Spread, tpot_s: Spread) -> bool:
        seen = getattr(ttft_s if self.metric == "ttft" else tpot_s, self.statistic)
        return seen is not None and seen <= self.most_s

    def is_kept_by(self, request: RequestTiming) -> bool:
        """Whether one request stays within it."""
        return (request.ttft_s if self.metric == "ttft" else request.tpot_s) <= self.most_s


def limits_of(words: str) -> tuple[Limit, ...]:
    """Raises MalformedError or UnknownNameError."""
    limits: dict[str, Limit] = {}
    for word in words.split(","):
        name, equals, value = (part.strip().lower() for part in word.partition("="))
        match = _TIME.fullmatch(value)
        if not equals or match is None:
            raise MalformedError(
                f"--slo is limits with their units, e.g. ttft_p99=2s,tpot_p99=50ms (got {word[:60]!r})"
            )
        if name not in NAMES:
            raise UnknownNameError("limit", name, NAMES)
        if name in limits:
            raise MalformedError(f"--slo names {name} twice")
        most_s = float(match[1]) * _UNITS_S[match[2]]
        if not LEAST_S <= most_s <= MOST_S:
            raise MalformedError(f"--slo {name} is a time above zero, from 1 us to {MOST_S:.0f} s (got {value[:60]})")
        metric, _, statistic = name.partition("_")
        limits[name] = Limit(metric=metric, statistic=statistic, most_s=most_s)
    return tuple(limits.values())


def share_within(requests: Sequence[RequestTiming], limits: Sequence[Limit]) -> float | None:
    """Of all requests, those that ended as asked and stay within every limit; None without limits."""
    if not limits or not requests:
        return None
    kept = sum(not r.error and all(limit.is_kept_by(r) for limit in limits) for r in requests)
    return kept / len(requests)
