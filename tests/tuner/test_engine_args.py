"""Words that are passed on to the engine, and those that may not be."""

from __future__ import annotations

import pytest

from search_spaces.errors import UserError
from tuner.engine_args import extra_args_of, program_of, skips_tokenizer


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("--host 0.0.0.0", "--host"),
        ("--hos 0.0.0.0", "--host"),
        ("--po 3", "--port"),
        ("--port=3", "--port"),
        ("--model-p /m", "--model-path"),
        ("--model /m", "--model"),
        ("--tp-siz 4", "--tp-size"),
    ],
)
def test_what_the_tuner_sets_is_refused_under_every_name_that_the_engine_takes(text: str, option: str) -> None:
    with pytest.raises(UserError, match=f"may not hold {option}:"):
        extra_args_of(text)


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("python -m sglang.launch_server --tp-size 8", "--tp-size"),
        ("/opt/sglang/bin/python serve.py --attn-dp-size=8 --cluster x", "--attn-dp-size"),
        ("docker run --gpus all IMAGE python3 -m sglang.launch_server --port 5", "--port"),
        ("python -m sglang.launch_server --model-path /m --ep 8", "--ep, --model-path"),
    ],
)
def test_what_the_tuner_sets_is_refused_in_the_command_too(text: str, option: str) -> None:
    with pytest.raises(UserError, match=f"--engine-command may not hold {option}:"):
        program_of(text)


def test_other_words_of_a_command_are_taken_as_they_are() -> None:
    text = "docker --host ssh://box run --network host --shm-size 8g IMAGE python3 -m sglang.launch_server"
    assert program_of(text) == tuple(text.split())


def test_other_words_are_passed_on_as_they_are() -> None:
    assert extra_args_of("--skip-tokenizer --log-level info") == ("--skip-tokenizer", "--log-level", "info")


@pytest.mark.parametrize(
    ("word", "skips"),
    [
        ("--skip-tokenizer-init", True),
        ("--skip-tokenizer", True),
        ("--skip-t", True),
        ("--skip-server-warmup", False),
        ("--skip-", False),
        ("--tokenizer-path", False),
    ],
)
def test_a_server_without_tokenizer_is_known_by_any_beginning_of_the_option(word: str, *, skips: bool) -> None:
    assert skips_tokenizer(("--log-level", "info", word)) is skips
