"""The load a layout is judged under."""

from __future__ import annotations

from dataclasses import dataclass

from search_spaces.errors import MalformedError
from search_spaces.layout import Layout
from search_spaces.model import Model

MOST_CONCURRENT = 8192
"""Twice what SGLang runs at once per KV pool by default (sglang 0.5.23, kv_cache_configurator.py:3119)."""

MOST_ACCEPTED = 64
"""More drafted tokens than any speculative algorithm of SGLang verifies in one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests of one length, kept at each concurrency of a ladder in turn (a closed loop).

    input_tokens, output_tokens: lengths per request, in tokens.
    concurrencies: requests in flight, strictly rising; always holds 1, so that one server start serves
        every objective.
    acceptance_length: tokens that a request gains per decode step where the layout decodes speculatively, the
        verified one included; a property of model, draft and text, so it is stated and not predicted.
    """

    input_tokens: int = 1024
    output_tokens: int = 512
    concurrencies: tuple[int, ...] = (1, 4, 16, 64, 128)
    acceptance_length: float = 1.0

    def __post_init__(self) -> None:
        if self.input_tokens < 1 or self.output_tokens < 2:
            raise MalformedError(
                "a workload needs at least 1 input token and 2 output tokens "
                f"(input_tokens={self.input_tokens}, output_tokens={self.output_tokens})"
            )
        if self.concurrencies and self.concurrencies[-1] > MOST_CONCURRENT:
            raise MalformedError(
                f"at most {MOST_CONCURRENT} requests in flight can be driven (concurrency {self.concurrencies[-1]})"
            )
        if not 1 <= self.acceptance_length <= MOST_ACCEPTED:
            raise MalformedError(
                f"an acceptance length lies between 1 and {MOST_ACCEPTED} tokens per step "
                f"(got {self.acceptance_length:g})"
            )
        rising = all(a < b for a, b in zip(self.concurrencies, self.concurrencies[1:], strict=False))
        if not self.concurrencies or self.concurrencies[0] != 1 or not rising:
            raise MalformedError(
                f"concurrencies must rise and start at 1, e.g. 1,4,16,64 (got {','.join(map(str, self.concurrencies))})"
            )

    def check_against(self, model: Model) -> None:
        """Raises MalformedError where a request is longer than `model` allows."""
        if self.tokens_per_request > model.max_position_embeddings:
            raise MalformedError(
                f"a request of {self.input_tokens} + {self.output_tokens} tokens is longer than {model.name} allows "
                f"(max_position_embeddings {model.max_position_embeddings})"
            )

    def check_drafts(self, layout: Layout) -> None:
        """Raises MalformedError where a step is said to gain more tokens than an effective `layout` verifies."""
        most = layout.speculative_num_draft_tokens or 1
        if layout.speculative_algorithm is not None and self.acceptance_length > most:
            raise MalformedError(
                f"a step that verifies {most} tokens (speculative_num_draft_tokens) cannot gain "
                f"{self.acceptance_length:g} (acceptance length)"
            )

    @property
    def tokens_per_request(self) -> int:
        return self.input_tokens + self.output_tokens
