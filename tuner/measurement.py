"""What a trial saw: one rung for each concurrency or request rate, made from the timings of its requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.client_share import ClientShare
from tuner.correctness import Agreement
from tuner.keeping_up import KeepingUp
from tuner.server_seen import ServerSeen

FIGURES = "steady window"
"""What `Rung.output_tok_per_s` is of. Part of what a study is about: before it was named, it was of the whole run, and
the two are not compared."""

RungKey = int | str
"""A concurrency, or a request rate in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTiming:
    """One request, in seconds on the clock of the measurement.

    output_tokens: tokens received. first_chunk_tokens: those that came with the first chunk, so that the
    pace of the rest can be told. cached_tokens: prompt tokens that the engine answered from its prefix cache.
    retractions: how often the engine took the request out of its batch again, for want of KV memory.
    error: empty when the request ended as asked. is_start_known: where not, `start_s` is 0 for every request.
    """

    start_s: float
    first_token_s: float
    end_s: float
    prompt_tokens: int
    output_tokens: int
    first_chunk_tokens: int
    cached_tokens: int
    error: str = ""
    retractions: int = 0
    is_start_known: bool = True

    @property
    def ttft_s(self) -> float:
        return self.first_token_s - self.start_s

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first: (end - first) / (tokens after the first chunk)."""
        return (self.end_s - self.first_token_s) / max(self.output_tokens - self.first_chunk_tokens, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Percentiles between two values are interpolated linearly (numpy's default, method 7 of Hyndman and Fan)."""

    mean: float
    p50: float
    p99: float
    p90: float | None = None
    p95: float | None = None
    """None in studies that did not keep them."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        a = np.asarray(values, dtype=float)
        p50, p90, p95, p99 = (float(q) for q in np.quantile(a, (0.5, 0.9, 0.95, 0.99)))
        return cls(mean=float(a.mean()), p50=p50, p99=p99, p90=p90, p95=p95)


def relative_error(requests: Sequence[RequestTiming], concurrency: int) -> float:
    """Relative standard error of the mean time of a request; infinite where there is no telling.

    Requests that run side by side share their fate, so each `concurrency` of them, in order of completion, count as
    one observation.
    """
    times_s = np.array([r.end_s - r.start_s for r in requests if not r.error])
    waves = len(times_s) // concurrency
    if waves < 2:
        return float("inf")
    means_s = times_s[: waves * concurrency].reshape(waves, concurrency).mean(axis=1)
    return float(means_s.std(ddof=1) / np.sqrt(waves) / means_s.mean())


def steady_window(requests: Sequence[RequestTiming], concurrency: int) -> tuple[float, float] | None:
    """From when until when a closed loop kept `concurrency` requests in flight, the first burst left out.

    It begins with the first request that ends, so that streams are no longer in the step in which they were sent, and
    ends with the first end that no request follows. In between each place is used at least once from prefill to last
    token, so that neither phase counts too much. None where fewer than twice `concurrency` requests were sent.
    """
    if len(requests) < 2 * concurrency:
        return None
    ends_s = sorted(r.end_s for r in requests)
    begin_s, end_s = ends_s[0], ends_s[len(ends_s) - concurrency]
    return (begin_s, end_s) if end_s > begin_s else None


def tokens_between(requests: Sequence[RequestTiming], begin_s: float, end_s: float) -> float:
    """Output tokens that came after `begin_s` and not after `end_s`: those of a request's first chunk when it came,
    the rest evenly from then to its end."""
    total = 0.0
    for r in requests:
        rest = r.output_tokens - r.first_chunk_tokens
        if begin_s < r.first_token_s <= end_s:
            total += r.first_chunk_tokens
        length_s = r.end_s - r.first_token_s
        if length_s > 0:
            inside_s = min(r.end_s, end_s) - max(r.first_token_s, begin_s)
            total += rest * max(0.0, inside_s) / length_s
        elif begin_s < r.end_s <= end_s:
            total += rest
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """Steady load at one concurrency.

    duration_s: from the first request's start to the last one's end, or as the load generator says.
    output_tok_per_s: output tokens of the whole deployment per second of the steady window, or of `duration_s` where
        there is none.
    window_s: length of the steady window (`steady_window`); None where there is none, and in studies that judged the
        whole run. run_output_tok_per_s: over `duration_s`, in which the first burst and the last requests alone count.
    ttft_s, tpot_s: over all requests.
    retractions: how often the engine took requests out of its batch again.
    within: share of all requests that kept every limit of the study which measured them; None without limits.
    doubts: why the figures may not be the layout's own; empty for none.
    """

    concurrency: int
    num_requests: int
    duration_s: float
    output_tok_per_s: float
    ttft_s: Spread
    tpot_s: Spread
    cached_tokens: int
    window_s: float | None = None
    run_output_tok_per_s: float | None = None
    retractions: int = 0
    client: ClientShare | None = None
    server: ServerSeen | None = None
    doubts: tuple[str, ...] = ()
    within: float | None = None

    @property
    def requests_per_s(self) -> float:
        """Requests that end per second of the steady window: its tokens over the mean length of an answer."""
        of_run = self.output_tok_per_s if self.run_output_tok_per_s is None else self.run_output_tok_per_s
        return self.output_tok_per_s / of_run * self.num_requests / self.duration_s

    @classmethod
    def of(
        cls,
        concurrency: int,
        requests: Sequence[RequestTiming],
        *,
        client: ClientShare | None = None,
        server: ServerSeen | None = None,
        doubts: Sequence[str] = (),
        within: float | None = None,
        duration_s: float | None = None,
    ) -> Rung:
        """From requests that all ended as asked; raises ValueError on an empty or failed one.

        duration_s: of the whole run, where the requests do not know when they were sent: there is no steady window.
        """
        if not requests or any(r.error for r in requests):
            raise ValueError("a rung is made of requests that all succeeded")
        window = steady_window(requests, concurrency) if duration_s is None else None
        if duration_s is None:
            duration_s = max(r.end_s for r in requests) - min(r.start_s for r in requests)
        output_tokens = sum(r.output_tokens for r in requests)
        of_run = output_tokens / duration_s
        steady = of_run if window is None else tokens_between(requests, *window) / (window[1] - window[0])
        cached_tokens = sum(r.cached_tokens for r in requests)
        retractions = sum(r.retractions for r in requests)
        found = [*doubts, *_doubts(cached_tokens, retractions, client)]
        if server is not None:
            found += server.doubts(concurrency, output_tokens)
        return cls(
            concurrency=concurrency,
            num_requests=len(requests),
            duration_s=duration_s,
            output_tok_per_s=steady,
            ttft_s=Spread.of([r.ttft_s for r in requests]),
            tpot_s=Spread.of([r.tpot_s for r in requests]),
            cached_tokens=cached_tokens,
            window_s=None if window is None else window[1] - window[0],
            run_output_tok_per_s=of_run,
            retractions=retractions,
            client=client,
            server=server,
            doubts=tuple(found),
            within=within,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RateRung:
    """Requests sent at a rate, whatever is in flight (an open loop).

    requests_per_s: the rate at which they were to be sent, on average. num_requests: all; num_failed: those that did
    not end as asked, which are in no other figure. duration_s: from the first one's time of sending to the last one's
    end. output_tok_per_s: over `duration_s`. ttft_s counts from the time at which a request was to be sent.
    within: share of all requests that kept every limit of the study; None without limits.
    keeping_up: whether as many requests end as are sent; None in studies that did not ask.
    """

    requests_per_s: float
    num_requests: int
    num_failed: int
    duration_s: float
    output_tok_per_s: float
    ttft_s: Spread
    tpot_s: Spread
    cached_tokens: int
    retractions: int = 0
    within: float | None = None
    doubts: tuple[str, ...] = ()
    keeping_up: KeepingUp | None = None

    @property
    def is_kept_up(self) -> bool:
        return self.keeping_up is None or self.keeping_up.is_kept_up

    @property
    def ended_per_s(self) -> float | None:
        """Requests that ended per second of the second half of the sending; None where it is not known."""
        seen = self.keeping_up
        return seen.ended / seen.span_s if seen is not None and seen.span_s > 0 else None

    @property
    def name(self) -> str:
        return rate_name(self.requests_per_s)

    @classmethod
    def of(
        cls,
        requests_per_s: float,
        requests: Sequence[RequestTiming],
        *,
        client: ClientShare | None = None,
        doubts: Sequence[str] = (),
        within: float | None = None,
    ) -> RateRung:
        """Raises ValueError where no request ended as asked."""
        ended = [r for r in requests if not r.error]
        if not ended:
            raise ValueError("a rung of which no request succeeded has no figures")
        duration_s = max(r.end_s for r in ended) - min(r.start_s for r in ended)
        num_failed = len(requests) - len(ended)
        cached_tokens = sum(r.cached_tokens for r in ended)
        retractions = sum(r.retractions for r in ended)
        found = [*doubts, *_doubts(cached_tokens, retractions, client)]
        if num_failed:
            first = next(r.error for r in requests if r.error)
            found.append(f"{num_failed} of {len(requests)} requests failed: {first}")
        keeping_up = KeepingUp.of([r.start_s for r in ended], [r.end_s for r in ended])
        found += keeping_up.doubts
        return cls(
            requests_per_s=requests_per_s,
            num_requests=len(requests),
            num_failed=num_failed,
            duration_s=duration_s,
            output_tok_per_s=sum(r.output_tokens for r in ended) / duration_s,
            ttft_s=Spread.of([r.ttft_s for r in ended]),
            tpot_s=Spread.of([r.tpot_s for r in ended]),
            cached_tokens=cached_tokens,
            retractions=retractions,
            within=within,
            doubts=tuple(found),
            keeping_up=keeping_up,
        )


def rate_name(requests_per_s: float) -> str:
    return f"{requests_per_s:.4g} requests/s"


def _doubts(cached_tokens: int, retractions: int, client: ClientShare | None) -> list[str]:
    found = []
    if cached_tokens:
        found.append(f"{cached_tokens} prompt tokens came from a warm prefix cache")
    if retractions:
        found.append(f"requests lost their place in the KV pool {retractions} times")
    return [*found, *client.doubts] if client is not None else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Rungs in rising concurrency, then those in rising request rate. `simulated`: the times are those of a simulated
    server's clock. ended: why the climb ended below the top of its ladder of concurrency, with nothing to see above;
    empty at the top.
    """

    rungs: tuple[Rung, ...]
    simulated: bool
    startup_s: float
    kv_tokens: int
    """`max_total_num_tokens` as the server reports it, per KV replica."""
    rates: tuple[RateRung, ...] = ()
    ended: str = ""
    agreement: Agreement | None = None
    """Of its answers with the reference's; None where they were not judged."""

    def at(self, concurrency: int) -> Rung | None:
        return next((r for r in self.rungs if r.concurrency == concurrency), None)

    @property
    def peak(self) -> Rung:
        return max(self.rungs, key=lambda r: r.output_tok_per_s)
