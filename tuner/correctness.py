"""Whether a layout answers what the reference answers: log-probabilities of the same texts, compared.

Greedy answers of two right layouts part company where two tokens are nearly as probable, since sums are rounded in
another order. So tokens are not compared. The reference continues fixed prompts greedily; every layout then says how
probable it finds these very texts, token by token, which has nothing to part from. That judges prefill. Decoding is
judged by the layout itself: what it said of its own answer while it generated it, against what it says of the same text
read at once.

All log-probabilities are natural logarithms; their differences are in nats.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import TypeAdapter

from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.parts import Scheme

TOP = 5
"""So many of the most probable tokens are asked for at each place."""
ANSWER_TOKENS = 32
"""Greedy tokens a prompt. At no more places are log-probabilities asked for at once: each costs the server a row as
long as the vocabulary, and a layout must not run out of memory for being asked."""
SHORT_PROMPTS = (8, 37, 130)
"""Tokens; beside them one as long as the load's own prompts, which is prefilled in chunks where those are."""
LONGEST_PROMPT = 32768
_SEED = 20260
_FIRST_TOKEN_ID = 10
"""Below it tokenizers keep their special tokens."""
_UNIFORM_NATS = 1e-5
"""Top tokens that lie closer than this everywhere: logits that are all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Means over all places beyond which an answer is another one. difference: of the absolute differences, in nats.
    divergence: of the Kullback-Leibler divergence, in nats.
    """

    difference: float
    divergence: float


EXACT = Tolerance(difference=0.01, divergence=0.001)
"""Where all is computed in float32. On SGLang's CPU engine the same launch twice, and splits over two ranks, differ by
1e-6 in the mean and 1e-5 at most."""

ROUNDED = Tolerance(difference=0.25, divergence=0.1)
"""Where activations are of 16 bits or more. Logits of 16 to 32 come in steps of 1/8 in bfloat16, so that one step at
the end alone is 0.06 to 0.12. Published means for the same weights run in two ways: 0.005 to 0.006 (dense, two
programs), 0.04 (MoE, largest 0.13: https://github.com/radixark/miles/issues/2722), drift of tensor parallelism alone
0.06 in the median and 0.19 at most (https://github.com/vllm-project/vllm-omni/issues/7114). SGLang's own tests allow
0.05 to 0.06 at each place against transformers (test/runners.py). What was wrong was wrong by nats: attention DP with
EP over bfloat16 experts gave another answer from the second token on
(https://github.com/sgl-project/sglang/issues/23729)."""

COARSE = Tolerance(difference=0.5, divergence=0.2)
"""Where activations are of 8 bits or fewer: they are quantised anew behind every sum that is rounded otherwise.
Published means are 0.07 (largest 0.26) for FP8 against another program, and up to 0.18 at single places for an FP8 KV
cache (https://github.com/sgl-project/sglang/issues/25790)."""

_SIXTEEN_BIT_ACTIVATIONS = frozenset({Scheme.NONE, Scheme.INT4_GROUP})


def tolerance_of(model: Model, layout: Layout, *, dtype: str = "auto", kv_cache_dtype: str = "auto") -> Tolerance:
    """By the precision that experts and projections compute in, that tokens are sent to experts in (all-to-all backends
    send FP8 by default), and that the KV cache is kept in. dtype, kv_cache_dtype: as the server says them.
    """
    is_rounded = model.quantization.scheme in _SIXTEEN_BIT_ACTIVATIONS and layout.quantization is None
    keeps_all = "fp8" not in kv_cache_dtype and "fp4" not in kv_cache_dtype
    if not (is_rounded and keeps_all and layout.moe_a2a_backend == "none"):
        return COARSE
    return EXACT if dtype == "float32" and model.quantization.scheme is Scheme.NONE else ROUNDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A continuation, place by place. log_probs: of its tokens; nan where the server had none to say. top: the most
    probable tokens there with theirs, most probable first.
    """

    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    top: tuple[tuple[tuple[int, float], ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What one server said, a prompt each: own, while it generated; own_read, of the same when it reads it; reference,
    of the reference's continuations, empty where there is no reference.
    """

    own: tuple[Scored, ...]
    own_read: tuple[Scored, ...]
    reference: tuple[Scored, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Over `places` tokens, in nats.

    mean, largest: of the absolute difference of a token's two log-probabilities. divergence: mean of the
    Kullback-Leibler divergence, as far as the top tokens tell it.
    """

    mean: float
    largest: float
    divergence: float
    places: int

    @property
    def shown(self) -> str:
        return f"mean {self.mean:.2g}, largest {self.largest:.2g}, divergence {self.divergence:.2g} nats"

    def is_within(self, tolerance: Tolerance) -> bool:
        return self.mean <= tolerance.difference and self.divergence <= tolerance.divergence


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The answers that a study goes by. layout: whose. prompt_lengths: tokens of each prompt. quantization: as
    launched; of another one the weights differ, and so may the answers. decode: how far its own decoding was from its
    own prefill.
    """

    layout: str
    is_baseline: bool
    quantization: str
    prompt_lengths: tuple[int, ...]
    vocab_size: int
    read: tuple[Scored, ...]
    decode: Difference | None = None

    @property
    def title(self) -> str:
        return f"the baseline {self.layout}" if self.is_baseline else f"{self.layout}, the first layout that answered"


_ADAPTER: TypeAdapter[Reference] = TypeAdapter(Reference)


def reference_to_json(reference: Reference) -> str:
    return _ADAPTER.dump_json(reference).decode()


def reference_from_json(text: str) -> Reference:
    """Raises pydantic.ValidationError on one of another shape."""
    return _ADAPTER.validate_json(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What the comparison came to. against: the reference, as told to people; empty where the layout became it.
    prefill: against the reference; None without one. decode: against itself. Both None where they are of no numbers.
    """

    against: str
    prefill: Difference | None
    decode: Difference | None

    @property
    def lines(self) -> tuple[str, ...]:
        """One fact each, for people."""
        prefill = "" if self.prefill is None else f"against {self.against}: {self.prefill.shown}"
        decode = "" if self.decode is None else f"decoding against prefill of the same text: {self.decode.shown}"
        return tuple(line for line in (prefill, decode) if line)


def prompt_lengths(input_tokens: int) -> tuple[int, ...]:
    """Of the fixed prompts, for a load whose prompts have `input_tokens`, without repeats."""
    longest = min(input_tokens, LONGEST_PROMPT)
    return tuple(sorted({*(min(length, longest) for length in SHORT_PROMPTS), longest}))


def prompts(lengths: Sequence[int], vocab_size: int) -> tuple[tuple[int, ...], ...]:
    """Token ids: always the same."""
    rng = np.random.default_rng([_SEED, vocab_size])
    low = min(_FIRST_TOKEN_ID, vocab_size - 1)
    return tuple(tuple(rng.integers(low, vocab_size, size=length).tolist()) for length in lengths)


def garbage(answers: Answers) -> str:
    """What shows that these are no answers of a model, whatever the reference says; empty where nothing does."""
    scored = (*answers.own, *answers.own_read, *answers.reference)
    values = [value for each in scored for value in each.log_probs]
    if any(not math.isfinite(value) for value in values):
        return "log-probabilities that are no number"
    if any(value > _UNIFORM_NATS for value in values):
        return "probabilities above 1"
    spreads = [place[0][1] - place[-1][1] for each in scored for place in each.top if len(place) > 1]
    if spreads and max(spreads) < _UNIFORM_NATS:
        return "all tokens equally probable"
    if len(answers.own) > 1 and len({each.tokens for each in answers.own}) == 1:
        return "the same answer to every prompt"
    return ""


def difference(seen: Sequence[Scored], expected: Sequence[Scored]) -> Difference | None:
    """Of two scorings of the same continuations; None where some are no numbers. Raises ValueError where they are not
    of the same.
    """
    if [each.tokens for each in seen] != [each.tokens for each in expected]:
        raise ValueError("scorings of different texts")
    pairs = [pair for a, b in zip(seen, expected, strict=True) for pair in _places(a, b)]
    gaps = np.array([gap for gap, _ in pairs])
    divergences = np.array([divergence for _, divergence in pairs])
    if not np.isfinite(gaps).all():
        return None
    return Difference(
        mean=float(gaps.mean()),
        largest=float(gaps.max()),
        divergence=max(0.0, float(divergences.mean())),
        places=len(pairs),
    )


def _places(seen: Scored, expected: Scored) -> Iterator[tuple[float, float]]:
    """At each place the absolute difference, and the divergence of `seen` from `expected`."""
    for i, (value, wanted) in enumerate(zip(seen.log_probs, expected.log_probs, strict=True)):
        yield abs(value - wanted), _divergence(dict(seen.top[i]), dict(expected.top[i]))


def _divergence(seen: dict[int, float], expected: dict[int, float]) -> float:
    """Kullback-Leibler, of the expected top tokens and all others as one. A token that is not among those seen is at
    most as probable as the last of these.
    """
    if not seen or not expected:
        return 0.0
    least = min(seen.values())
    said = [(math.exp(value), math.exp(seen.get(token, least))) for token, value in expected.items()]
    p_rest, q_rest = (max(1.0 - sum(pair[i] for pair in said), 1e-9) for i in (0, 1))
    return sum(p * math.log(p / q) for p, q in (*said, (p_rest, q_rest)) if p > 0 and q > 0)


def judged(answers: Answers, reference: Reference | None, tolerance: Tolerance) -> tuple[Agreement, str]:
    """What the comparison came to, and what is wrong with the answers; empty where nothing is.

    Decoding is held to its own prefill where that of the reference kept to it. Else it may be how this server words its
    log-probabilities, speculative decoding for one, and every layout would be wrong.
    """
    agreement = Agreement(
        against="" if reference is None else reference.title,
        prefill=None if reference is None else difference(answers.reference, reference.read),
        decode=difference(answers.own, answers.own_read),
    )
    if what := garbage(answers):
        return agreement, what
    if agreement.prefill is not None and not agreement.prefill.is_within(tolerance):
        return agreement, f"other log-probabilities than {agreement.against}: {agreement.prefill.shown}"
    keeps = reference is not None and reference.decode is not None and reference.decode.is_within(tolerance)
    if keeps and agreement.decode is not None and not agreement.decode.is_within(tolerance):
        return agreement, f"decoding says otherwise than prefill of the same text: {agreement.decode.shown}"
    return agreement, ""
