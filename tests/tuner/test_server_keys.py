"""Which key goes with which question, and where it is found."""

from __future__ import annotations

import pytest

from search_spaces.errors import MalformedError
from tuner.server_keys import ServerKeys, checked_key, keys_of


@pytest.mark.parametrize(
    "words",
    [
        ("python", "-m", "sglang.launch_server", "--api-key", "k-123"),
        ("--api-key=k-123",),
        ("--api-key", "old", "--api-k", "k-123"),
        ("bash", "-c", "exec python -m sglang.launch_server --api-key 'k-123' \"$@\"", "bash", "--tp-size", "8"),
        ("bash", "-c", "python -m sglang.launch_server --api-key $ITS_KEY"),
        ("bash", "-c", "HF_TOKEN=other python -m sglang.launch_server --api-key ${ITS_KEY}"),
    ],
)
def test_the_key_is_found_in_the_words_that_start_the_server(words: tuple[str, ...]) -> None:
    assert keys_of(words, {"ITS_KEY": "k-123"}) == ServerKeys(api_key="k-123")


@pytest.mark.parametrize("key", ["k-123\n", " k-123", "k-123\r\nX: y", "k-123é", "k-123☃", "k-123\x00", "k-123\udcff"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(MalformedError, match="--api-key-env K holds a key that no request can carry") as refused:
        checked_key("--api-key-env K", key)
    assert "k-123" not in str(refused.value)


def test_a_key_may_hold_what_headers_hold() -> None:
    assert checked_key("K", "a b~!$%&'*+-.^_`|:/=") == "a b~!$%&'*+-.^_`|:/="


def test_no_key_is_made_up() -> None:
    assert keys_of(("--tokenizer-path", "p", "--ssl-keyfile-password", "x", "-e", "OPENAI_API_KEY=y")) == ServerKeys()


# utils/auth.py:74 of sglang 0.5.23, seen on the real server: /flush_cache answers 401 to the other key of the two.
@pytest.mark.parametrize(
    ("keys", "path", "bearer"),
    [
        (("k", ""), "/generate", "k"),
        (("k", ""), "/flush_cache", "k"),
        (("k", "a"), "/generate", "k"),
        (("k", "a"), "/flush_cache", "a"),
        (("", "a"), "/generate", None),
        (("", "a"), "/flush_cache", "a"),
        (("k", "a"), "/ready", None),
        (("k", "a"), "/health_generate", None),
        (("k", "a"), "/metrics", None),
        (("k", "a"), "/server_info", "k"),
        (("k", "a"), "/v1/loads", "k"),
        (("", ""), "/generate", None),
    ],
)
def test_each_question_carries_the_key_that_it_needs(keys: tuple[str, str], path: str, bearer: str | None) -> None:
    headers = ServerKeys(api_key=keys[0], admin_api_key=keys[1]).headers(path)
    assert headers == ({} if bearer is None else {"Authorization": f"Bearer {bearer}"})


def test_keys_are_not_shown_by_chance() -> None:
    assert "k-123" not in repr(ServerKeys(api_key="k-123", admin_api_key="k-123"))
