"""Answers compared by log-probability: what counts as the same, what as wrong, and what as no answer at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from search_spaces.catalogue import load_model
from search_spaces.layout import Layout
from tuner.correctness import (
    COARSE,
    EXACT,
    ROUNDED,
    Answers,
    Reference,
    Scored,
    difference,
    garbage,
    judged,
    prompt_lengths,
    prompts,
    reference_from_json,
    reference_to_json,
    tolerance_of,
)

TOKENS = tuple(range(100, 132))


def scored(shift: Callable[[int], float] = lambda _: 0.0, tokens: Sequence[int] = TOKENS) -> Scored:
    """Each token has probability 1/2 but for `shift` of its logarithm, by place; another has 1/4."""
    values = [math.log(0.5) + shift(i) for i in range(len(tokens))]
    top = tuple(((token, value), (7, math.log(0.25))) for token, value in zip(tokens, values, strict=True))
    return Scored(tokens=tuple(tokens), log_probs=tuple(values), top=top)


def texts(shift: Callable[[int], float] = lambda _: 0.0) -> tuple[Scored, ...]:
    return tuple(scored(shift, [token + 1000 * k for token in TOKENS]) for k in range(3))


def answers(
    *, reference: Callable[[int], float] = lambda _: 0.0, own: Callable[[int], float] = lambda _: 0.0
) -> Answers:
    """reference: by how much the reference's text is read otherwise; own: by how much its own was generated otherwise."""
    return Answers(own=texts(own), own_read=texts(), reference=texts(reference))


REFERENCE = Reference(
    layout="TP8", is_baseline=True, quantization="", prompt_lengths=(8, 37, 130), vocab_size=32000, read=texts()
)


def test_equal_answers_differ_by_nothing() -> None:
    agreement, wrong = judged(answers(), REFERENCE, EXACT)
    assert wrong == ""
    assert agreement.prefill is not None
    assert (agreement.prefill.mean, agreement.prefill.largest, agreement.prefill.places) == (0.0, 0.0, 96)
    assert agreement.prefill.divergence == pytest.approx(0.0, abs=1e-12)
    assert agreement.against == "the baseline TP8"


def test_the_difference_is_the_mean_and_the_largest_of_all_places() -> None:
    found = difference(texts(lambda i: -0.3 if i == 0 else 0.0), texts())
    assert found is not None
    assert found.mean == pytest.approx(0.3 / 32)
    assert found.largest == pytest.approx(0.3)


def test_the_divergence_is_that_of_kullback_and_leibler() -> None:
    """P = (1/2, 1/4, 1/4), Q = (1/4, 1/4, 1/2): 1/2 log 2 + 1/4 log 1/2 = 1/4 log 2."""
    expected = scored(tokens=[5])
    seen = Scored(tokens=(5,), log_probs=(math.log(0.25),), top=(((5, math.log(0.25)), (7, math.log(0.25))),))
    found = difference([seen], [expected])
    assert found is not None
    assert found.divergence == pytest.approx(0.25 * math.log(2.0))


def test_rounding_passes_and_another_computation_does_not() -> None:
    assert judged(answers(reference=lambda i: 0.1 if i % 2 else -0.1), REFERENCE, ROUNDED)[1] == ""
    agreement, wrong = judged(answers(reference=lambda _: -1.0), REFERENCE, ROUNDED)
    assert wrong.startswith("other log-probabilities than the baseline TP8: mean 1, largest 1")
    assert agreement.lines[0].startswith("against the baseline TP8: mean 1")


def test_one_token_that_a_router_sends_elsewhere_is_no_wrong_answer() -> None:
    assert judged(answers(reference=lambda i: -2.0 if i == 3 else 0.0), REFERENCE, ROUNDED)[1] == ""


def test_decoding_is_held_against_prefill_of_the_same_text() -> None:
    sound = replace(REFERENCE, decode=difference(texts(), texts()))
    _, wrong = judged(answers(own=lambda _: -1.0), sound, ROUNDED)
    assert wrong.startswith("decoding says otherwise than prefill of the same text")


@pytest.mark.parametrize(
    "reference", [None, replace(REFERENCE, decode=difference(texts(lambda _: -1.0), texts()))], ids=["none", "unsound"]
)
def test_decoding_is_not_judged_where_the_reference_s_own_says_otherwise_too(reference: Reference | None) -> None:
    asked = answers(own=lambda _: -1.0)
    agreement, wrong = judged(asked if reference else replace(asked, reference=()), reference, ROUNDED)
    assert wrong == ""
    assert agreement.decode is not None
    assert not agreement.decode.is_within(ROUNDED)


@pytest.mark.parametrize(
    ("what", "spoilt"),
    [
        ("log-probabilities that are no number", replace(answers(), own_read=texts(lambda _: math.nan))),
        ("log-probabilities that are no number", replace(answers(), own=texts(lambda _: -math.inf))),
        ("probabilities above 1", replace(answers(), own=texts(lambda _: 1.0))),
        (
            "the same answer to every prompt",
            Answers(own=(scored(),) * 3, own_read=(scored(),) * 3),
        ),
    ],
)
def test_what_no_model_says_is_garbage_without_any_reference(what: str, spoilt: Answers) -> None:
    assert garbage(spoilt) == what
    assert judged(spoilt, None, COARSE)[1] == what


def test_logits_that_are_all_the_same_are_garbage() -> None:
    def flat(k: int) -> Scored:
        value = math.log(1 / 32000)
        tokens = tuple(token + 1000 * k for token in TOKENS)
        top = tuple(((token, value), (9, value)) for token in tokens)
        return Scored(tokens=tokens, log_probs=(value,) * len(tokens), top=top)

    same = tuple(flat(k) for k in range(3))
    assert garbage(Answers(own=same, own_read=same)) == "all tokens equally probable"


def test_sound_answers_without_a_reference_are_right() -> None:
    agreement, wrong = judged(replace(answers(), reference=()), None, EXACT)
    assert (wrong, agreement.against, agreement.prefill) == ("", "", None)


def test_the_reference_survives_the_store() -> None:
    assert reference_from_json(reference_to_json(REFERENCE)) == REFERENCE


def test_prompts_are_always_the_same_and_as_long_as_the_load_s_own() -> None:
    assert prompt_lengths(1024) == (8, 37, 130, 1024)
    assert prompt_lengths(20) == (8, 20)
    assert [len(prompt) for prompt in prompts((8, 37), 2048)] == [8, 37]
    assert prompts((8, 37), 2048) == prompts((8, 37), 2048)
    assert all(10 <= token < 2048 for prompt in prompts((8, 37, 130), 2048) for token in prompt)


def test_the_tolerance_follows_the_precision() -> None:
    bf16, fp8, int4 = (load_model(name) for name in ("qwen3-235b-a22b", "deepseek-v3", "kimi-k2.6"))
    plain = Layout(tp_size=8)
    assert tolerance_of(bf16, plain) is ROUNDED
    assert tolerance_of(int4, plain) is ROUNDED  # weights are widened, activations stay of 16 bits
    assert tolerance_of(fp8, plain) is COARSE
    assert tolerance_of(bf16, plain, dtype="float32") is EXACT
    assert tolerance_of(bf16, plain, kv_cache_dtype="fp8_e4m3") is COARSE
    assert tolerance_of(bf16, plain.changed(quantization="fp8")) is COARSE
    assert tolerance_of(bf16, Layout(tp_size=8, ep_size=8, moe_a2a_backend="deepep")) is COARSE
