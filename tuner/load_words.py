"""From the words of the command line to a load: a workload to predict for, and the requests that are really sent."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from search_spaces.errors import MalformedError, UnknownNameError, UserError
from search_spaces.workload import Workload
from tuner.engine import Engine
from tuner.load_mix import LONGEST_TRACE_S, NOISE, LoadMix
from tuner.load_plan import Asked, in_ranges, read_prompts, read_trace
from tuner.measurement import rate_name
from tuner.sglang_benchmark import OPTION, found_benchmark

GENERATORS = ("own", "sglang")
DRAWN = 4096
"""So many lengths are drawn from ranges before they come again."""
LEAST_RATE = 0.05
"""Requests per second: at fewer, the least number of requests takes more than about ten minutes to send."""
MOST_RATE = 1000.0
"""At more, the greatest number of requests is sent within two seconds."""
_RANGE = re.compile(r"([0-9]{1,9})(?::([0-9]{1,9}))?")
_RATE = re.compile(r"[0-9]{1,9}(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?|\.[0-9]+")
_INPUT_TOKENS = Workload().input_tokens
_OUTPUT_TOKENS = Workload().output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadWords:
    """As given; None where not. input_tokens, output_tokens: `1024` or `100:2000`. request_rate: `2` or `1,2,4`.

    generator: of `GENERATORS`.
    """

    input_tokens: str | None = None
    output_tokens: str | None = None
    trace: Path | None = None
    prompts: Path | None = None
    request_rate: str | None = None
    noise: float | None = None
    is_whole_ladder: bool = False
    generator: str = "own"


def load_of(words: LoadWords, concurrencies: tuple[int, ...], seed: int) -> tuple[Workload, LoadMix]:
    """The workload has the mean lengths, which is what is predicted for. Raises UserError, naming option or line."""
    check_generator(words)
    noise = NOISE if words.noise is None else words.noise
    if not 0 <= noise < 1:
        raise MalformedError(f"--noise is a share from 0 to below 1, e.g. 0.02 (got {noise:g})")
    asked, told, lengths = _requests(words, seed)
    workload = Workload(input_tokens=lengths[0], output_tokens=lengths[1], concurrencies=concurrencies)
    mix = LoadMix(
        asked=asked,
        words=told,
        request_rates=(rates := request_rates_of(words.request_rate)),
        arrivals_seed=seed if rates else 0,
        noise=noise,
        is_whole_ladder=words.is_whole_ladder,
    )
    return workload, mix


def check_generator(words: LoadWords) -> None:
    """`--load-generator`. Raises UserError where it cannot send what is asked for."""
    if words.generator not in GENERATORS:
        raise UnknownNameError("load generator", words.generator, GENERATORS)
    if words.generator == "own":
        return
    for option, given in (
        ("--trace", words.trace is not None),
        ("--prompts", words.prompts is not None),
        ("--request-rate", words.request_rate is not None),
        ("--noise", words.noise is not None),
        ("range of lengths", ":" in f"{words.input_tokens}{words.output_tokens}"),
    ):
        if given:
            raise UserError(
                f"{OPTION} sends requests of one length in a closed loop, a fixed number of them: no {option}"
            )


def sent_by(generator: str, mix: LoadMix, engine: Engine, model_path: str, *, is_elsewhere: bool) -> LoadMix:
    """The same load, sent by `--load-generator`, and what is left out of it said. Raises UserError where it cannot
    be had."""
    if generator == "own":
        return mix.with_cut_told(is_simulated=engine.is_simulated)
    if is_elsewhere:
        raise UserError(f"{OPTION} runs on this machine, beside its server: no --host, no --slurm")
    benchmark = found_benchmark(engine.program, model_path, engine.extra_args, is_simulated=engine.is_simulated)
    return replace(mix, by_sglang=benchmark, noise=0.0)


def _requests(words: LoadWords, seed: int) -> tuple[tuple[Asked, ...], str, tuple[int, int]]:
    """The requests, what they are, and their mean lengths; none where all are alike."""
    if words.trace is not None:
        for name in ("prompts", "input_tokens", "output_tokens"):
            if getattr(words, name) is not None:
                raise UserError(f"--trace says how long requests are: leave --{name.replace('_', '-')} out")
        asked = read_trace(words.trace)
        last_s = max(each.due_s or 0.0 for each in asked)
        if asked[0].due_s is not None and last_s == 0:
            raise MalformedError(f"{words.trace}: all requests arrive at the same time: leave their arrivals out")
        if asked[0].due_s is not None and sum((each.due_s or 0.0) <= LONGEST_TRACE_S for each in asked) < 2:
            raise MalformedError(
                f"{words.trace}: of a trace {LONGEST_TRACE_S:.0f} s are sent as they came, in which there is one "
                "request here: leave the arrivals out"
            )
        arrivals = "" if asked[0].due_s is None else f", arriving over {last_s:.4g} s"
        return asked, f"{len(asked)} requests of {_name(words.trace)}{arrivals}", _means(asked)
    if words.prompts is not None:
        if words.input_tokens is not None:
            raise UserError("--prompts says what is asked: leave --input-tokens out")
        output_tokens = length_of("--output-tokens", words.output_tokens, _OUTPUT_TOKENS)
        if output_tokens[0] != output_tokens[1]:
            raise UserError(
                "--prompts takes one --output-tokens, or lengths of their own in the file (`output_tokens`), and no "
                f"range (got {words.output_tokens})"
            )
        asked = read_prompts(words.prompts, output_tokens[0])
        return asked, f"{len(asked)} prompts of {_name(words.prompts)}", _means(asked)
    inputs = length_of("--input-tokens", words.input_tokens, _INPUT_TOKENS)
    outputs = length_of("--output-tokens", words.output_tokens, _OUTPUT_TOKENS)
    means = (round(sum(inputs) / 2), round(sum(outputs) / 2))  # of at most nine digits each
    if inputs[0] == inputs[1] and outputs[0] == outputs[1]:
        return (), "", means
    told = f"{_told(inputs)} tokens in, {_told(outputs)} out, drawn evenly"
    return in_ranges(inputs, outputs, DRAWN, seed), told, means


def length_of(option: str, word: str | None, default: int) -> tuple[int, int]:
    """`1024`, or a range `100:2000` with both ends included."""
    if word is None:
        return default, default
    match = _RANGE.fullmatch(word.strip())
    if match is None:
        raise MalformedError(
            f"{option} is a number of tokens or a range of them, of nine digits at most, e.g. 1024 or 100:2000 "
            f"(got {word[:60]!r})"
        )
    low = int(match[1])
    return low, int(match[2] or low)


def request_rates_of(word: str | None) -> tuple[float, ...]:
    if word is None:
        return ()
    words = [each.strip() for each in word.split(",")]
    rates = tuple(float(each) for each in words) if all(map(_RATE.fullmatch, words)) else ()
    if not rates or not all(a < b for a, b in itertools.pairwise(rates)):
        raise MalformedError(f"--request-rate is requests per second, rising, e.g. 2 or 1,2,4 (got {word[:60]!r})")
    if not LEAST_RATE <= rates[0] <= rates[-1] <= MOST_RATE:
        raise MalformedError(
            f"--request-rate is between {LEAST_RATE:g} and {MOST_RATE:g} requests per second (got {word[:60]!r})"
        )
    if any(rate_name(a) == rate_name(b) or round(a * 1e3) == round(b * 1e3) for a, b in itertools.pairwise(rates)):
        raise MalformedError(f"--request-rate has two rates that are alike but for rounding (got {word[:60]!r})")
    return rates


def _name(path: Path) -> str:
    """As it may be shown and stored: a name of a file may hold bytes that are no text."""
    return path.name.encode(errors="replace").decode()


def _means(asked: Sequence[Asked]) -> tuple[int, int]:
    count = len(asked)
    return (
        max(1, round(sum(each.input_tokens for each in asked) / count)),
        max(2, round(sum(each.output_tokens for each in asked) / count)),
    )


def _told(length: tuple[int, int]) -> str:
    return str(length[0]) if length[0] == length[1] else f"{length[0]} to {length[1]}"
