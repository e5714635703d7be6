"""What no measurement can be: times and rates of another unit, of another model, or of more than output tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from cost_models.calibration import Observation
from cost_models.estimate import predict_if_it_fits
from cost_models.limit import limits
from cost_models.prediction import Limit
from search_spaces.errors import MalformedError
from search_spaces.layout import Layout
from search_spaces.workload import MOST_ACCEPTED, Workload
from tuner.checking import Server
from tuner.predict_words import figure, said_time

_ROUNDING = 1.05
"""By how much a stated rate may exceed what the times beside it make: both are means, each of another kind."""
_SENSE = 300.0
"""Between measured and predicted times; seconds for milliseconds, or microseconds, are a thousand."""
_LONGEST_TTFT_S = 3600.0
_LONG = 10.0
"""Times longer than predicted from which on `_LONGEST_TTFT_S` holds."""


def refuse_the_impossible(seen: Observation, server: Server, workload: Workload) -> None:
    """Raises MalformedError for what is faster than these GPUs, or than its own times."""
    most = _limit(seen, server, workload)
    allowed = _rate_of_times(seen, workload)
    if allowed > most.output_tok_per_s:
        tpot_ms = seen.tpot_s * 1e3
        raise MalformedError(
            f"tpot_ms {tpot_ms:g} with {seen.concurrency} at once is {figure(allowed)} tok/s, {_exceeds(most, server)}"
            f"; is it milliseconds (in seconds it would be {tpot_ms * 1e3:g} ms), of {server.model.name}?"
        )
    rate = seen.output_tok_per_s
    if rate is None:
        return
    if rate > most.output_tok_per_s:
        raise MalformedError(
            f"output_tok_s is {figure(rate)} with {seen.concurrency} at once, {_exceeds(most, server)}; is it of "
            f"output tokens alone, of {server.model.name}?"
        )
    if rate > _ROUNDING * allowed:
        raise MalformedError(
            f"output_tok_s is {figure(rate)}, more than its own times allow with {seen.concurrency} at once, which is "
            f"{figure(allowed)}: input tokens counted too?"
        )


def _limit(seen: Observation, server: Server, workload: Workload) -> Limit:
    drafted = float(seen.layout.speculative_num_draft_tokens or MOST_ACCEPTED)
    accepted = 1.0 if seen.layout.speculative_algorithm is None else min(drafted, MOST_ACCEPTED)
    at_once = tuple(sorted({1, seen.concurrency}))
    load = replace(workload, concurrencies=at_once, acceptance_length=accepted)
    return limits(server.model, server.cluster, load)[-1]


def _rate_of_times(seen: Observation, workload: Workload) -> float:
    """Output tokens per second of a closed loop; without a wait for the first token where that was not measured."""
    tokens = workload.output_tokens
    return seen.concurrency * tokens / ((seen.ttft_s or 0.0) + (tokens - 1) * seen.tpot_s)


def _exceeds(most: Limit, server: Server) -> str:
    return f"and no layout of {server.cluster.name} can exceed {figure(most.output_tok_per_s)} ({most.bound_by})"


def refuse_beyond_sense(found: Sequence[tuple[int, Observation]], server: Server, workload: Workload) -> None:
    """found: each with the number of its line. Raises MalformedError with that number where a time is so far from its
    prediction that it is another one.
    """
    launches: dict[tuple[Layout, tuple[tuple[str, str], ...]], list[tuple[int, Observation]]] = defaultdict(list)
    for number, seen in found:
        launches[seen.layout, seen.environment].append((number, seen))
    for (layout, environment), lines in launches.items():
        load = replace(workload, concurrencies=tuple(sorted({1, *(seen.concurrency for _, seen in lines)})))
        setting = replace(server.setting, environment=environment)
        predicted = predict_if_it_fits(server.model, server.cluster, layout, load, setting=setting)
        points = {point.concurrency: point for point in predicted.points}
        for number, seen in lines:
            point = points[seen.concurrency]
            for name, measured_s, predicted_s in (
                ("tpot_ms", seen.tpot_s, point.tpot_s),
                ("ttft_ms", seen.ttft_s, point.ttft_s),
            ):
                if measured_s is not None and (why := _beyond_sense(name, measured_s, predicted_s)):
                    raise MalformedError(
                        f"line {number}: {name} {measured_s * 1e3:g} of {layout.label} with {seen.concurrency} at once "
                        f"{why}; is it milliseconds, of {server.model.name}?"
                    )


def _beyond_sense(name: str, measured_s: float, predicted_s: float) -> str:
    """Why it is; empty where it is not."""
    ratio = measured_s / predicted_s
    if ratio > _SENSE:
        return f"is {ratio:,.0f} times what is predicted ({said_time(predicted_s)})"
    if ratio < 1 / _SENSE:
        return f"is 1/{1 / ratio:,.0f} of what is predicted ({said_time(predicted_s)})"
    if name == "ttft_ms" and measured_s > _LONGEST_TTFT_S and ratio > _LONG:
        return f"is more than an hour, and {said_time(predicted_s)} is predicted"
    return ""
