"""What `/generate` is asked for, and how its answers read."""

from __future__ import annotations

import math
import uuid
import zlib
from array import array
from dataclasses import dataclass
from typing import Any

from search_spaces.errors import MalformedError
from tuner.simulator.arrivals import Announced, read_announced
from tuner.simulator.engine import Chunk
from tuner.simulator.log_probs import LogProbs, read_log_probs
from tuner.simulator.scheduler import EOS_TOKEN_ID, Request

_DEFAULT_NEW_TOKENS = 128  # SGLang's
_BYTES_PER_TOKEN = 4
_MEAN_TOKENS_TO_EOS = 1024.0
"""INVENTED: where output may end by itself, it does so after this many tokens on average."""
_NONSENSE = 0x5EED
_STRIDE = 2654435761


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a request must keep to. prompt_tokens, total_tokens: SGLang's `max_req_input_len`, `max_req_len`."""

    vocab_size: int
    context_tokens: int
    pool_tokens: int
    takes_text: bool
    computes_wrongly: bool
    rounding: int = 0
    """Stands for the order in which the layout sums: its log-probabilities differ a little by it."""

    @property
    def total_tokens(self) -> int:
        return min(self.context_tokens - 1, self.pool_tokens - 1)

    @property
    def prompt_tokens(self) -> int:
        return self.total_tokens - 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A request, read. digest: stands for the prompt: greedy decoding gives equal prompts equal answers."""

    rid: str
    prompt_tokens: int
    digest: int
    max_new_tokens: int
    ignore_eos: bool
    is_streamed: bool
    announced: Announced | None = None
    log_probs: LogProbs | None = None

    def request(self, arrival_s: float, bounds: Bounds) -> Request:
        """Raises MalformedError where the prompt is too long."""
        if self.prompt_tokens >= bounds.context_tokens:
            raise MalformedError(
                f"The input ({self.prompt_tokens} tokens) is longer than the model's context length "
                f"({bounds.context_tokens} tokens)."
            )
        if self.prompt_tokens >= bounds.prompt_tokens:
            raise MalformedError(
                f"Input length ({self.prompt_tokens} tokens) exceeds the maximum allowed length "
                f"({bounds.prompt_tokens} tokens). Use a shorter input or enable --allow-auto-truncate."
            )
        allowed = min(self.max_new_tokens, bounds.total_tokens - self.prompt_tokens - 1)
        return Request(
            rid=self.rid,
            prompt_tokens=self.prompt_tokens,
            max_new_tokens=allowed,
            stops_after=allowed if self.ignore_eos else min(allowed, self._tokens_to_eos()),
            ignore_eos=self.ignore_eos,
            arrival_s=arrival_s,
        )

    def output_ids(self, start: int, stop: int, bounds: Bounds) -> list[int]:
        """Tokens `start` to `stop` of the answer: always the same for one prompt, and free of special tokens."""
        seed = self.digest ^ (_NONSENSE if bounds.computes_wrongly else 0)
        first = EOS_TOKEN_ID + 1
        return [first + (seed + i * _STRIDE) % (bounds.vocab_size - first) for i in range(start, stop)]

    def _tokens_to_eos(self) -> int:
        share = (zlib.crc32(self.digest.to_bytes(4, "big")) + 1) / 2**32
        return 1 + int(-_MEAN_TOKENS_TO_EOS * math.log(share))


def read_generation(body: Any, bounds: Bounds) -> Generation:
    """Raises MalformedError in SGLang's or in plain words."""
    if not isinstance(body, dict):
        raise MalformedError("the body must be a JSON object")
    text, ids = body.get("text"), body.get("input_ids")
    if (text is None) == (ids is None):
        raise MalformedError("Either text, input_ids or input_embeds should be provided.")
    sampling = body.get("sampling_params") or {}
    if not isinstance(sampling, dict):
        raise MalformedError("sampling_params must be an object; the simulator takes no batches")
    max_new_tokens = sampling.get("max_new_tokens", _DEFAULT_NEW_TOKENS)
    if max_new_tokens is None:
        max_new_tokens = bounds.total_tokens
    if type(max_new_tokens) is not int or max_new_tokens < 0:
        raise MalformedError(f"max_new_tokens must be at least 0, got {max_new_tokens}.")
    prompt_tokens, digest = _read_text(text, bounds) if ids is None else _read_ids(ids, bounds)
    return Generation(
        rid=str(body.get("rid") or uuid.uuid4().hex),
        prompt_tokens=prompt_tokens,
        digest=digest,
        max_new_tokens=max_new_tokens,
        ignore_eos=bool(sampling.get("ignore_eos", False)),
        is_streamed=bool(body.get("stream", False)),
        announced=read_announced(body.get("simulated_load")),
        log_probs=read_log_probs(body, () if ids is None else ids),
    )


def _read_text(text: Any, bounds: Bounds) -> tuple[int, int]:
    if not isinstance(text, str):
        raise MalformedError("text must be one string; the simulator takes no batches")
    if not bounds.takes_text:
        raise MalformedError(
            "The engine initialized with skip_tokenizer_init=True cannot accept text prompts. "
            "Please provide input_ids or re-initialize the engine with skip_tokenizer_init=False."
        )
    data = text.encode()
    return max(1, len(data) // _BYTES_PER_TOKEN), zlib.crc32(data)


def _read_ids(ids: Any, bounds: Bounds) -> tuple[int, int]:
    if not isinstance(ids, list) or not ids or not all(type(i) is int for i in ids):
        raise MalformedError("input_ids must be one list of token ids; the simulator takes no batches")
    if min(ids) < 0 or max(ids) >= bounds.vocab_size:
        raise MalformedError(f"The input_ids contain values outside the vocab size ({bounds.vocab_size}).")
    return len(ids), zlib.crc32(array("q", ids).tobytes())


class Answer:
    """The growing answer to one generation, as SGLang words it: every chunk repeats all that came before."""

    def __init__(self, generation: Generation, request: Request, bounds: Bounds) -> None:
        self._generation = generation
        self._request = request
        self._bounds = bounds
        self._ids: list[int] = []
        self._text = ""
        self._has_begun = False

    def document(self, chunk: Chunk) -> dict[str, Any]:
        new = self._generation.output_ids(len(self._ids), chunk.output_tokens, self._bounds)
        self._ids += new
        document: dict[str, Any] = {}
        if self._bounds.takes_text:
            self._text += "".join(f" t{i}" for i in new)
            document["text"] = self._text
        document["output_ids"] = self._ids
        document["meta_info"] = self._meta(chunk)
        return document

    def _meta(self, chunk: Chunk) -> dict[str, Any]:
        request = self._request
        meta: dict[str, Any] = {
            "id": request.rid,
            "finish_reason": chunk.finish_reason,
            "prompt_tokens": request.prompt_tokens,
            "weight_version": "default",
            "num_retractions": request.retractions,
            "reasoning_tokens": 0,
            "completion_tokens": chunk.output_tokens,
            "cached_tokens": 0,
            "dp_rank": chunk.dp_rank,
            "simulated_time_s": chunk.time_s,
        }
        if not self._has_begun:
            self._has_begun = True
            meta["simulated_arrival_s"] = request.arrival_s
        if self._generation.log_probs is not None:
            bounds = self._bounds
            meta |= self._generation.log_probs.told(
                self._ids, vocab_size=bounds.vocab_size, rounding=bounds.rounding, is_wrong=bounds.computes_wrongly
            )
        if chunk.finish_reason is not None:
            meta["e2e_latency"] = chunk.time_s - request.arrival_s
        return meta
