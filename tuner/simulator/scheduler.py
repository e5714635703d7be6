"""Continuous batching on one attention-DP rank: who waits, who prefills, who decodes, who is thrown out.

Follows SGLang 0.5.23: prefill goes before decode and is cut into chunks; a request is admitted when its
prompt and what it may still write fit beside what the running ones may still write
(managers/schedule_policy.py `PrefillAdder.add_one_req`); when decode finds the pool full, those that have
written least go back to the queue (managers/schedule_batch.py `retract_decode`). No clock and no I/O.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tuner.simulator.timing import RankLoad

_CLIP_NEW_TOKENS = 4096  # SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION
_INIT_NEW_TOKEN_RATIO = 0.7  # SGLANG_INIT_NEW_TOKEN_RATIO
_MIN_NEW_TOKEN_RATIO_FACTOR = 0.14  # SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR
_RATIO_DECAY_STEPS = 600  # SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS
_RETRACT_DECODE_STEPS = 20  # SGLANG_RETRACT_DECODE_STEPS

EOS_TOKEN_ID = 1

_OUT_OF_POOL = "Out of memory even after retracting all other requests in the decode batch. Aborting the last request."


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """One generation and how far it has come.

    stops_after: output tokens after which it ends; below `max_new_tokens` where the model stops by itself.
    held_tokens: KV entries it occupies. sent_tokens: output tokens that the client has been told of.
    finish_reason: as SGLang words it; None while it goes on.
    """

    rid: str
    prompt_tokens: int
    max_new_tokens: int
    stops_after: int
    ignore_eos: bool
    arrival_s: float
    output_tokens: int = 0
    held_tokens: int = 0
    sent_tokens: int = 0
    retractions: int = 0
    finish_reason: dict[str, Any] | None = None

    @property
    def tokens_to_prefill(self) -> int:
        """After a retraction the output so far is prefilled again."""
        return self.prompt_tokens + self.output_tokens - self.held_tokens

    @property
    def tokens_to_write(self) -> int:
        return min(max(self.max_new_tokens - self.output_tokens, 0), _CLIP_NEW_TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds the batches of one rank, in tokens and requests.

    prefill_chunk_tokens: 0 or less turns chunking off; `prefill_tokens` then bounds a batch of whole prompts.
    """

    pool_tokens: int
    page_tokens: int
    running_requests: int
    prefill_chunk_tokens: int
    prefill_tokens: int
    conservativeness: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Retraction:
    """Who went back to the queue, who was ended, and what that freed."""

    requests: tuple[Request, ...]
    aborted: Request | None
    tokens_gained: int
    ratio_before: float
    ratio_after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One step of a rank. prefill: who, and how many tokens of it. decode: who gets one token each."""

    load: RankLoad = field(default_factory=RankLoad)
    prefill: tuple[tuple[Request, int], ...] = ()
    decode: tuple[Request, ...] = ()
    retraction: Retraction | None = None


@dataclass(slots=True)
class _TokenRatio:
    """Share of its allowance that a running request is expected to write (NewTokenRatioTracker)."""

    init: float
    value: float = field(init=False)

    def __post_init__(self) -> None:
        self.value = self.init

    def decay(self) -> None:
        floor = self.init * _MIN_NEW_TOKEN_RATIO_FACTOR
        self.value = max(self.value - (self.init - floor) / _RATIO_DECAY_STEPS, floor)

    def reset(self) -> None:
        self.value = self.init


class Rank:
    """The queue, the running batch and the KV pool of one attention-DP rank."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.used_tokens = 0
        self._chunked: Request | None = None
        self._ratio = _TokenRatio(min(_INIT_NEW_TOKEN_RATIO * limits.conservativeness, 1.0))

    @property
    def num_running(self) -> int:
        return len(self.running) + (self._chunked is not None)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running or self._chunked)

    @property
    def token_usage(self) -> float:
        return self.used_tokens / self.limits.pool_tokens

    def plan(self) -> Plan:
        """Takes the KV entries that the next step needs, and says what the step does."""
        if prefill := self._admit():
            return Plan(load=self._prefill_load(prefill), prefill=tuple(prefill))
        if not self.running:
            self._ratio.reset()
            return Plan()
        retraction = self._make_room()
        for request in self.running:
            self._hold(request, 1)
        self._ratio.decay()
        load = RankLoad(
            decode_requests=len(self.running),
            decode_context_tokens=sum(r.held_tokens for r in self.running),
            requests=self.num_running,
        )
        return Plan(load=load, decode=tuple(self.running), retraction=retraction)

    def commit(self, plan: Plan) -> list[Request]:
        """The step is over. Returns the requests that have one more output token.

        A request that was dropped while the step ran gets nothing.
        """
        produced = []
        for request, _ in plan.prefill:
            if request.finish_reason is None and request.tokens_to_prefill == 0:
                self.running.append(request)
                if self._chunked is request:
                    self._chunked = None
                produced.append(request)
        produced += [r for r in plan.decode if r.finish_reason is None]
        ended = False
        for request in produced:
            # A request for no token at all ends with its prefill.
            request.output_tokens = min(request.output_tokens + 1, request.stops_after)
            if request.output_tokens >= request.stops_after:
                request.finish_reason = _end_of(request)
                self._release(request)
                ended = True
        if ended:
            self.running = [r for r in self.running if r.finish_reason is None]
        return produced

    def drop(self, request: Request) -> None:
        """Forgets a request wherever it stands and frees what it holds."""
        if self._chunked is request:
            self._chunked = None
        if request in self.running:
            self.running.remove(request)
        if request in self.waiting:
            self.waiting.remove(request)
        self._release(request)

    def _admit(self) -> list[tuple[Request, int]]:
        """Who prefills in the next step, and how much of it; their KV entries are taken."""
        limits = self.limits
        chunking = limits.prefill_chunk_tokens > 0
        budget = min(limits.prefill_chunk_tokens, limits.prefill_tokens) if chunking else limits.prefill_tokens
        taken: list[tuple[Request, int]] = []
        if self._chunked is not None:
            taken.append((self._chunked, min(self._chunked.tokens_to_prefill, budget)))
            self._hold(*taken[-1])
            budget -= taken[-1][1]
        while self.waiting and budget > 0 and len(self.running) + len(taken) < limits.running_requests:
            request = self.waiting[0]
            whole = request.tokens_to_prefill
            if (not chunking and taken and whole > budget) or not self._fits(request, taken):
                break
            self.waiting.popleft()
            taken.append((request, min(whole, budget) if chunking else whole))
            self._hold(*taken[-1])
            budget -= taken[-1][1]
            if request.tokens_to_prefill > 0:
                self._chunked = request
        return taken

    def _fits(self, request: Request, taken: list[tuple[Request, int]]) -> bool:
        """Whether the request can be served to its end beside the others, by what they are expected to write.

        Output that must come (`ignore_eos`) counts in full, other output by the ratio.
        """
        if not self.running and not taken:
            return True
        promised = sum(r.tokens_to_write * (1.0 if r.ignore_eos else self._ratio.value) for r in self.running)
        promised += sum(r.tokens_to_prefill + r.tokens_to_write for r, _ in taken)
        needed = request.tokens_to_prefill + request.tokens_to_write + self.limits.page_tokens
        return promised + needed < self.limits.pool_tokens - self.used_tokens

    def _prefill_load(self, prefill: list[tuple[Request, int]]) -> RankLoad:
        return RankLoad(
            prefill_tokens=sum(tokens for _, tokens in prefill),
            prefill_requests=len(prefill),
            prefill_attended_tokens=sum(tokens * (r.held_tokens - tokens / 2) for r, tokens in prefill),
            requests=len(self.running) + len(prefill),
        )

    def _make_room(self) -> Retraction | None:
        """Sends requests back to the queue until each that stays can hold one more token."""
        if self._decode_need() <= self.limits.pool_tokens - self.used_tokens:
            return None
        ratio_before, used_before = self._ratio.value, self.used_tokens
        # Those that have written most stay; of equals, the shorter prompt.
        self.running.sort(key=lambda r: (-r.output_tokens, r.prompt_tokens))
        retracted: list[Request] = []
        while len(self.running) > 1 and (
            not retracted or self._decode_need() > self.limits.pool_tokens - self.used_tokens
        ):
            request = self.running.pop()
            self._release(request)
            request.retractions += 1
            retracted.append(request)
        aborted = None
        if self._decode_need() > self.limits.pool_tokens - self.used_tokens:
            aborted = self.running.pop()
            self._release(aborted)
            aborted.finish_reason = abort_reason(_OUT_OF_POOL, status_code=500)
        self.waiting.extend(retracted)
        written = sum(r.output_tokens for r in self.running) + _RETRACT_DECODE_STEPS * len(self.running)
        allowed = sum(r.max_new_tokens for r in self.running) + 1
        self._ratio.value = min(1.0, written / allowed)
        return Retraction(
            requests=tuple(retracted),
            aborted=aborted,
            tokens_gained=used_before - self.used_tokens,
            ratio_before=ratio_before,
            ratio_after=self._ratio.value,
        )

    def _decode_need(self) -> int:
        page = self.limits.page_tokens
        return page * sum(r.held_tokens % page == 0 for r in self.running)

    def _hold(self, request: Request, tokens: int) -> None:
        self.used_tokens -= self._paged(request.held_tokens)
        request.held_tokens += tokens
        self.used_tokens += self._paged(request.held_tokens)

    def _release(self, request: Request) -> None:
        self.used_tokens -= self._paged(request.held_tokens)
        request.held_tokens = 0

    def _paged(self, tokens: int) -> int:
        page = self.limits.page_tokens
        return -(-tokens // page) * page


def abort_reason(message: str, *, status_code: int | None = None) -> dict[str, Any]:
    return {"type": "abort", "message": message, "status_code": status_code, "err_type": None}


def _end_of(request: Request) -> dict[str, Any]:
    if request.output_tokens >= request.max_new_tokens:
        return {"type": "length", "length": request.output_tokens}
    return {"type": "stop", "matched": EOS_TOKEN_ID}
