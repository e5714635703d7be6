"""Log-probabilities as sglang 0.5.23 words them (managers/tokenizer_manager.py), and what a client can rely on."""

from __future__ import annotations

import math

import pytest

PROMPT = list(range(10, 50))


@pytest.fixture(scope="module")
def simulator(launch):
    with launch("--tp-size", "8", "--mem-fraction-static", "0.9") as simulator:
        simulator.wait_ready()
        yield simulator


def asked(simulator, ids, *, tokens=8, start=-1, top=3):
    body = {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0.0},
        "return_logprob": True,
        "logprob_start_len": start,
        "top_logprobs_num": top,
    }
    return simulator.json("/generate", body)


def test_reading_a_text_says_what_generating_it_said(simulator):
    generated = asked(simulator, PROMPT)
    ids, meta = generated["output_ids"], generated["meta_info"]
    assert [token for _, token, _ in meta["output_token_logprobs"]] == ids
    assert meta["input_token_logprobs"] == []
    read = asked(simulator, PROMPT + ids, tokens=1, start=len(PROMPT) - 1)["meta_info"]
    assert read["input_token_logprobs"][0] == [None, PROMPT[-1], None]
    assert read["input_token_logprobs"][1:] == meta["output_token_logprobs"]
    assert read["input_top_logprobs"][0] is None
    assert read["input_top_logprobs"][1:] == meta["output_top_logprobs"]


def test_they_are_logarithms_of_a_distribution_with_the_most_probable_first(simulator):
    meta = asked(simulator, PROMPT, tokens=32, top=5)["meta_info"]
    for (value, token, _), top in zip(meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True):
        assert value <= 0
        values = [each for each, _, _ in top]
        assert len(top) == 5
        assert values == sorted(values, reverse=True)
        assert sum(map(math.exp, values)) <= 1 + 1e-6
        assert token in {each for _, each, _ in top} or value <= values[-1]


def test_none_are_told_unless_asked_for(simulator):
    body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 2, "ignore_eos": True}}
    assert "output_token_logprobs" not in simulator.json("/generate", body)["meta_info"]


def test_a_start_behind_the_prompt_is_refused(simulator):
    body = {"input_ids": PROMPT, "return_logprob": True, "logprob_start_len": 41}
    assert simulator.status("/generate", body) == 400
