"""What is hidden of commands and environments, and what is not."""

from __future__ import annotations

import pytest

from tuner.secret_words import masked, masked_words, secret_values, secrets_in


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("--api-key", "k-123456", "--tp-size", "8"), ("--api-key", "***", "--tp-size", "8")),
        (("--admin-api-key=k-123456",), ("--admin-api-key=***",)),
        (("--api_key", "--tp-size", "8"), ("--api_key", "***", "8")),
        (("--ssl-keyfile-password", "k"), ("--ssl-keyfile-password", "***")),
        (("env", "HF_TOKEN=hf_123456", "python"), ("env", "HF_TOKEN=***", "python")),
        (("docker", "run", "-e", "WANDB_API_KEY=k", "x"), ("docker", "run", "-e", "WANDB_API_KEY=***", "x")),
    ],
)
def test_the_values_of_secret_flags_and_variables_are_hidden(words: tuple[str, ...], shown: tuple[str, ...]) -> None:
    assert masked_words(words) == shown


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("--api", "k-123456", "--adm=k"), ("--api", "***", "--adm=***")),
        (("--tokenizer-p", "p", "--t", "8"), ("--tokenizer-p", "p", "--t", "8")),
    ],
)
def test_the_beginning_of_a_flag_is_known_as_the_engine_knows_it(
    words: tuple[str, ...], shown: tuple[str, ...]
) -> None:
    assert masked_words(words) == shown


def test_secrets_in_a_shell_s_command_line_are_hidden_and_told() -> None:
    words = ("bash", "-c", "export WANDB_API_KEY='w 1'; python -m x --api-key k-123456 --tp 8 | tee log")
    assert masked_words(words)[2] == "export WANDB_API_KEY=***; python -m x --api-key *** --tp 8 | tee log"
    assert secrets_in(words) == (("WANDB_API_KEY", "w 1"), ("--api-key", "k-123456"))


def test_flags_that_only_sound_like_secrets_stay() -> None:
    words = ("--tokenizer-path", "p", "--max-total-tokens", "9", "--ssl-keyfile", "f", "--skip-tokenizer-init", "A=b")
    assert masked_words(words) == words


def test_a_secret_within_another_is_hidden_whole() -> None:
    secrets = secret_values(("--api-key", "canary"), {"HF_TOKEN": "canary-longer", "TOKENIZERS_PARALLELISM": "false1"})
    assert secrets == ("canary-longer", "canary")
    assert masked("a canary-longer, a canary", secrets) == "a ***, a ***"
