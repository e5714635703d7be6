"""What a trial saw: one rung for each concurrency, made from the timings of its requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTiming:
    """One request, in seconds on the clock of the measurement.

    output_tokens: tokens received. first_chunk_tokens: those that came with the first chunk, so that the
    pace of the rest can be told. cached_tokens: prompt tokens that the engine answered from its prefix cache.
    error: empty when the request ended as asked.
    """

    start_s: float
    first_token_s: float
    end_s: float
    prompt_tokens: int
    output_tokens: int
    first_chunk_tokens: int
    cached_tokens: int
    error: str = ""

    @property
    def ttft_s(self) -> float:
        return self.first_token_s - self.start_s

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first: (end - first) / (tokens after the first chunk)."""
        return (self.end_s - self.first_token_s) / max(self.output_tokens - self.first_chunk_tokens, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    mean: float
    p50: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        a = np.asarray(values, dtype=float)
        return cls(mean=float(a.mean()), p50=float(np.quantile(a, 0.5)), p99=float(np.quantile(a, 0.99)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """Steady load at one concurrency.

    duration_s: from the first request's start to the last one's end.
    output_tok_per_s: output tokens of the whole deployment over `duration_s`.
    """

    concurrency: int
    num_requests: int
    duration_s: float
    output_tok_per_s: float
    ttft_s: Spread
    tpot_s: Spread
    cached_tokens: int

    @classmethod
    def of(cls, concurrency: int, requests: Sequence[RequestTiming]) -> Rung:
        """From requests that all ended as asked; raises ValueError on an empty or failed one."""
        if not requests or any(r.error for r in requests):
            raise ValueError("a rung is made of requests that all succeeded")
        duration_s = max(r.end_s for r in requests) - min(r.start_s for r in requests)
        return cls(
            concurrency=concurrency,
            num_requests=len(requests),
            duration_s=duration_s,
            output_tok_per_s=sum(r.output_tokens for r in requests) / duration_s,
            ttft_s=Spread.of([r.ttft_s for r in requests]),
            tpot_s=Spread.of([r.tpot_s for r in requests]),
            cached_tokens=sum(r.cached_tokens for r in requests),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Rungs in rising concurrency. `simulated`: the times are those of a simulated server's clock."""

    rungs: tuple[Rung, ...]
    simulated: bool
    startup_s: float
    kv_tokens: int
    """`max_total_num_tokens` as the server reports it, per KV replica."""

    def at(self, concurrency: int) -> Rung | None:
        return next((r for r in self.rungs if r.concurrency == concurrency), None)

    @property
    def peak(self) -> Rung:
        return max(self.rungs, key=lambda r: r.output_tok_per_s)
