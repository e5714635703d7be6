"""What the requests of a study are, beside its ladder of concurrency: their lengths, prompts and arrivals."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from search_spaces.errors import MalformedError, UserError
from search_spaces.model import Model
from search_spaces.workload import Workload
from tuner.engine_args import skips_tokenizer
from tuner.load_plan import Asked, poisson
from tuner.measurement import FIGURES
from tuner.sglang_benchmark import SglangBenchmark

NOISE = 0.02
"""Relative standard error of the mean request time at which a rung has said enough, unless told otherwise."""
OPEN_RUN_S = 60.0
"""How long requests of one rate are sent, or longer where they take long."""
LONG_REQUEST_SHARE = 0.25
"""So much of the sending a request may take, told by how long it takes alone: half of the sending fills the server."""
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
    arrivals_seed: of their arrivals.
    noise: what a rung of a real server goes on for, see `tuner.load_plan.Load`; 0 for a fixed number of requests.
    is_whole_ladder: whether all rungs are measured, also past the peak and with the KV pool full.
    by_sglang: what sends the requests instead of our own client; then all are alike, in a closed loop alone.
    """

    asked: tuple[Asked, ...] = ()
    words: str = ""
    request_rates: tuple[float, ...] = ()
    arrivals_seed: int = 0
    noise: float = NOISE
    is_whole_ladder: bool = False
    by_sglang: SglangBenchmark | None = None

    @property
    def figures(self) -> str:
        """What throughput is of."""
        return FIGURES if self.by_sglang is None else "whole run, by SGLang's benchmark"

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
        """Raises MalformedError where a request is longer than `model` allows, naming its line, UserError where the
        engine is told to take no text and prompts are text.
        """
        longest = max(self.asked, key=lambda each: each.input_tokens + each.output_tokens, default=None)
        if longest is not None:
            workload = replace(workload, input_tokens=longest.input_tokens, output_tokens=longest.output_tokens)
        try:
            workload.check_against(model)
        except MalformedError as error:
            where = "" if longest is None else longest.where
            raise MalformedError(f"{where}: {error}" if where else str(error)) from None
        if self.has_prompts and skips_tokenizer(engine_args):
            raise UserError("--prompts are text, which a server with --skip-tokenizer-init does not take")

    def as_it_came(self, *, is_simulated: bool) -> tuple[Asked, ...]:
        """So much of a trace with arrivals as is sent at its own times; nothing where there are none to keep."""
        if not self.has_arrivals or self.request_rates:
            return ()
        most = MOST_OPEN_SIMULATED if is_simulated else MOST_OPEN
        return tuple(each for each in self.asked if (each.due_s or 0.0) <= LONGEST_TRACE_S)[:most]

    def with_cut_told(self, *, is_simulated: bool) -> LoadMix:
        """The same, and where a trace is longer than what is sent of it as it came, `words` say so."""
        sent = self.as_it_came(is_simulated=is_simulated)
        if not 0 < len(sent) < len(self.asked):
            return self
        last_s = sent[-1].due_s or 0.0
        told = f"{self.words} (sent as they came: the first {len(sent)}, over {last_s:.4g} s)"
        return replace(self, words=told)

    def open_runs(self, workload: Workload, *, is_simulated: bool, request_s: float = 0.0) -> Iterator[OpenRun]:
        """Poisson arrivals at each rate, or, where no rate is asked for, a trace's own.

        request_s: how long one request takes alone. Where that is long, requests are sent for longer, the same ones
        first.
        """
        most = MOST_OPEN_SIMULATED if is_simulated else MOST_OPEN
        if sent := self.as_it_came(is_simulated=is_simulated):
            yield OpenRun(requests_per_s=_rate_of(sent), asked=sent)
        run_s = max(OPEN_RUN_S, request_s / LONG_REQUEST_SHARE)
        alike = (Asked(input_tokens=workload.input_tokens, output_tokens=workload.output_tokens),)
        for rate in self.request_rates:
            count = min(max(math.ceil(rate * run_s), LEAST_OPEN), most)
            asked = tuple(itertools.islice(itertools.cycle(self.in_turn or alike), count))
            yield OpenRun(requests_per_s=rate, asked=poisson(asked, rate, self.arrivals_seed))

    @property
    def identity(self) -> dict[str, object]:
        """What a measurement depends on: equal where the same requests are sent in the same way."""
        return {
            "requests": hashlib.sha256(repr([_identity(each) for each in self.asked]).encode()).hexdigest()[:16],
            "request_rates": list(self.request_rates),
            "noise": self.noise,
            "is_whole_ladder": self.is_whole_ladder,
            **({"arrivals_seed": self.arrivals_seed} if self.request_rates else {}),
            **({"rates_hold": "where kept up with"} if self.request_rates or self.has_arrivals else {}),
            **({} if self.by_sglang is None else {"generator": "sglang"}),
        }


def num_repeated(asked: Sequence[Asked]) -> int:
    """Prompts of text that were among `asked` before."""
    texts = [each.text for each in asked if each.text]
    return len(texts) - len(set(texts))


def _identity(asked: Asked) -> tuple[int, int, str, float | None]:
    return asked.input_tokens, asked.output_tokens, asked.text, asked.due_s


def _rate_of(asked: Sequence[Asked]) -> float:
    """Of a trace's arrivals, of which there are two at least; all at once, in what is sent of them, is no rate."""
    last_s = max(each.due_s or 0.0 for each in asked)
    return (len(asked) - 1) / last_s if last_s > 0 else float(len(asked))


def load_told(workload: Workload, mix: LoadMix) -> str:
    """For people: lengths or the file they are from, and the rates."""
    told = mix.words or f"{workload.input_tokens} tokens in, {workload.output_tokens} out"
    rates = ",".join(f"{rate:g}" for rate in mix.request_rates)
    told = f"{told}, then {rates} requests/s" if rates else told
    return told if mix.by_sglang is None else f"{told}, sent by {mix.by_sglang.module} (throughput of the whole run)"
