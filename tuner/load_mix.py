"""What the requests of a study are, beside its ladder of concurrency: their lengths, prompts and arrivals."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace

from search_spaces.errors import UserError
from search_spaces.model import Model
from search_spaces.workload import Workload
from tuner.load_plan import Asked, poisson

NOISE = 0.02
"""Relative standard error of the mean request time at which a rung has said enough, unless told otherwise."""
OPEN_RUN_S = 60.0
"""How long requests of one rate are sent."""
LEAST_OPEN = 32
MOST_OPEN = 2000
MOST_OPEN_SIMULATED = 400
"""In simulated time all requests of a run are sent at once, each over a connection of its own."""
LONGEST_TRACE_S = 600.0
"""Of a trace with arrivals, so much is sent as it came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """Requests with their times of sending, on average `requests_per_s`."""

    requests_per_s: float
    asked: tuple[Asked, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadMix:
    """asked: the requests, gone through in turn from their start at every rung; empty where all are as long as the
    workload says. words: what they are, for people; empty likewise.
    request_rates: in requests per second, rising: each is a rung of its own after the ladder of concurrency.
    noise: what a rung of a real server goes on for, see `tuner.load_plan.Load`; 0 for a fixed number of requests.
    is_whole_ladder: whether all rungs are measured, also past the peak and with the KV pool full.
    """

    asked: tuple[Asked, ...] = ()
    words: str = ""
    request_rates: tuple[float, ...] = ()
    noise: float = NOISE
    is_whole_ladder: bool = False

    @property
    def in_turn(self) -> tuple[Asked, ...]:
        """For a closed loop, in which a request is sent as soon as a place is free."""
        return tuple(replace(each, due_s=None) for each in self.asked)

    @property
    def has_arrivals(self) -> bool:
        return bool(self.asked) and self.asked[0].due_s is not None

    @property
    def has_prompts(self) -> bool:
        return any(each.text for each in self.asked)

    def longest_tokens(self, workload: Workload) -> int:
        """Prompt and answer of the longest request; prompts of text are estimated."""
        return max((each.input_tokens + each.output_tokens for each in self.asked), default=workload.tokens_per_request)

    def check_against(self, workload: Workload, model: Model, engine_args: Sequence[str]) -> None:
        """Raises MalformedError where a request is longer than `model` allows, UserError where the engine is told to
        take no text and prompts are text.
        """
        longest = max(self.asked, key=lambda each: each.input_tokens + each.output_tokens, default=None)
        if longest is not None:
            workload = replace(workload, input_tokens=longest.input_tokens, output_tokens=longest.output_tokens)
        workload.check_against(model)
        if self.has_prompts and "--skip-tokenizer-init" in engine_args:
            raise UserError("--prompts are text, which a server with --skip-tokenizer-init does not take")

    def open_runs(self, workload: Workload, seed: int, *, is_simulated: bool) -> Iterator[OpenRun]:
        """Poisson arrivals at each rate, or, where no rate is asked for, a trace's own."""
        most = MOST_OPEN_SIMULATED if is_simulated else MOST_OPEN
        if self.has_arrivals and not self.request_rates:
            sent = [each for each in self.asked if (each.due_s or 0.0) <= LONGEST_TRACE_S][:most]
            yield OpenRun(requests_per_s=_rate_of(sent), asked=tuple(sent))
        alike = (Asked(input_tokens=workload.input_tokens, output_tokens=workload.output_tokens),)
        for rate in self.request_rates:
            count = min(max(math.ceil(rate * OPEN_RUN_S), LEAST_OPEN), most)
            asked = tuple(itertools.islice(itertools.cycle(self.in_turn or alike), count))
            yield OpenRun(requests_per_s=rate, asked=poisson(asked, rate, seed))

    @property
    def identity(self) -> dict[str, object]:
        """What a measurement depends on: equal where the same requests are sent in the same way."""
        return {
            "requests": hashlib.sha256(repr([astuple(each) for each in self.asked]).encode()).hexdigest()[:16],
            "request_rates": list(self.request_rates),
            "noise": self.noise,
            "is_whole_ladder": self.is_whole_ladder,
        }


def _rate_of(asked: list[Asked]) -> float:
    last_s = max(each.due_s or 0.0 for each in asked)
    return (len(asked) - 1) / last_s if last_s > 0 else float(len(asked))


def load_told(workload: Workload, mix: LoadMix) -> str:
    """For people: lengths or the file they are from, and the rates."""
    told = mix.words or f"{workload.input_tokens} tokens in, {workload.output_tokens} out"
    rates = ",".join(f"{rate:g}" for rate in mix.request_rates)
    return f"{told}, then {rates} requests/s" if rates else told
