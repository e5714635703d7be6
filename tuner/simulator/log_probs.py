"""Log-probabilities of a model that there is not: always the same for the same tokens, and nearly so in every layout.

INVENTED, but with what a client can rely on: they follow from all tokens before and the token itself, so that reading a
text says what generating it said, up to rounding, which differs between layouts.
"""

from __future__ import annotations

import math
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from search_spaces.errors import MalformedError

_ROUNDING_NATS = 0.02
_WRONG = 0xBAD
_RESTS = (0.4, 0.2, 0.1, 0.05, 0.025)
"""Of what a token leaves, the shares of the next most probable ones."""
_MOST_TOP = 1 + len(_RESTS)

Place = list[Any]
"""As SGLang has it: `[log-probability, token, text]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogProbs:
    """What is asked for. prompt: its tokens. start: the first of them to be told, -1 for none. top: how many of the
    most probable tokens at each place.
    """

    prompt: tuple[int, ...]
    start: int
    top: int

    def told(self, output: Sequence[int], *, vocab_size: int, rounding: int, is_wrong: bool) -> dict[str, Any]:
        """For `meta_info`. rounding: stands for the order in which this layout sums. The first place of the input has
        no number, as nothing is known of its token.
        """
        start = len(self.prompt) if self.start < 0 else self.start
        source = _Source(self.top, vocab_size, rounding, is_wrong=is_wrong)
        words = [*self.prompt, *output]
        told = [source.place(words, i) for i in range(min(start + 1, len(self.prompt)), len(words))]
        split = max(len(self.prompt) - start - 1, 0)
        first: list[Place] = [[None, self.prompt[start], None]] if start < len(self.prompt) else []
        said: dict[str, Any] = {
            "input_token_logprobs": [*first, *(place for place, _ in told[:split])],
            "output_token_logprobs": [place for place, _ in told[split:]],
        }
        if self.top:
            said["input_top_logprobs"] = [*([None] * len(first)), *(top for _, top in told[:split])]
            said["output_top_logprobs"] = [top for _, top in told[split:]]
        return said


class _Source:
    def __init__(self, top: int, vocab_size: int, rounding: int, *, is_wrong: bool) -> None:
        self._top = top
        self._vocab_size = vocab_size
        self._rounding = rounding
        self._wrong = _WRONG if is_wrong else 0

    def place(self, words: Sequence[int], i: int) -> tuple[Place, list[Place]]:
        """Of token `i`, and the most probable tokens there: itself and others."""
        before = zlib.crc32(array("q", words[:i]).tobytes()) ^ self._wrong
        seed = zlib.crc32(before.to_bytes(4, "big") + words[i].to_bytes(8, "big"))
        share = 0.02 + 0.96 * _unit(seed)
        value = min(math.log(share) + _ROUNDING_NATS * (_unit(seed ^ self._rounding) - 0.5), 0.0)
        places = {(seed + 7919 * k) % self._vocab_size: math.log((1 - share) * rest) for k, rest in enumerate(_RESTS)}
        places[words[i]] = value
        ranked = sorted(places, key=lambda token: -places[token])
        return [value, words[i], None], [[places[token], token, None] for token in ranked[: self._top]]


def _unit(seed: int) -> float:
    """Between 0 and 1, scattered."""
    return (zlib.crc32(seed.to_bytes(4, "big")) + 1) / 2**32


def read_log_probs(body: dict[str, Any], prompt: Sequence[int]) -> LogProbs | None:
    """None where the request asks for none. Raises MalformedError."""
    if not body.get("return_logprob"):
        return None
    start, top = body.get("logprob_start_len", -1), body.get("top_logprobs_num", 0)
    if type(start) is not int or not -1 <= start <= len(prompt):
        raise MalformedError(f"logprob_start_len={start} is higher than the number of input tokens {len(prompt)}.")
    if type(top) is not int or not 0 <= top <= _MOST_TOP:
        raise MalformedError(f"top_logprobs_num is from 0 to {_MOST_TOP} here, got {top}.")
    return LogProbs(prompt=tuple(prompt), start=start, top=top)
