"""The engine's event loop: replicas step through their batches on one simulated clock."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NoReturn

from tuner.simulator.arrivals import Announced, Arrivals
from tuner.simulator.batch_log import BatchLog
from tuner.simulator.clock import Turnaround, VirtualClock
from tuner.simulator.scheduler import Plan, Rank, Request, abort_reason
from tuner.simulator.timing import StepTimer


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What a client learns: `output_tokens` so far at `time_s`; with a finish reason it is the last.

    dp_rank: None where there is but one."""

    output_tokens: int
    time_s: float
    dp_rank: int | None
    finish_reason: dict[str, Any] | None


class Fault(Enum):
    """What can end a serving engine."""

    OUT_OF_MEMORY = auto()
    ILLEGAL_ACCESS = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """crash_at_running, hang_at_running: so many running requests bring the engine down; None: never.

    step_tokens: more prompt tokens in one step of a rank than that exhaust the GPU's memory.
    """

    crash_at_running: int | None = None
    hang_at_running: int | None = None
    step_tokens: int | None = None


class Ticket:
    """One request's place in the engine; `chunks` is what its client reads."""

    def __init__(self, request: Request, announced: Announced | None) -> None:
        self.request = request
        self.announced = announced
        self.rank_index: int | None = None
        self.chunks: asyncio.Queue[Chunk] = asyncio.Queue()


class Replica:
    """The ranks that step together, and the step they are in."""

    def __init__(self, ranks: Sequence[Rank], timer: StepTimer, logs: Sequence[BatchLog]) -> None:
        self.ranks = ranks
        self.logs = logs
        self.ends_s = 0.0
        self.plans: list[Plan] = []
        self._timer = timer

    @property
    def is_busy(self) -> bool:
        return bool(self.plans)

    @property
    def has_work(self) -> bool:
        return any(rank.has_work for rank in self.ranks)

    def begin(self, now_s: float) -> None:
        self.plans = [rank.plan() for rank in self.ranks]
        for log, rank, plan in zip(self.logs, self.ranks, self.plans, strict=True):
            log.on_step(rank, plan, now_s)
        loads = [plan.load for plan in self.plans]
        # A step that only threw its last request out takes no time.
        self.ends_s = now_s + (self._timer.step_s(loads) if any(load.tokens for load in loads) else 0.0)


@dataclass(slots=True)
class Totals:
    """Counted since the start, for the metrics."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    requests: int = 0
    aborted_requests: int = 0
    retracted_requests: int = 0


class Engine:
    def __init__(
        self,
        replicas: Sequence[Replica],
        *,
        clock: VirtualClock,
        stream_interval: int,
        faults: Faults,
        on_fault: Callable[[Fault], NoReturn],
    ) -> None:
        self.clock = clock
        self.turnaround = Turnaround()
        self.totals = Totals()
        self.is_hung = False
        self.ranks = [rank for replica in replicas for rank in replica.ranks]
        self.logs = [log for replica in replicas for log in replica.logs]
        self._replicas = replicas
        self._stream_interval = stream_interval
        self._faults = faults
        self._on_fault = on_fault
        self._tickets: dict[Request, Ticket] = {}
        self._arrivals = Arrivals()
        self._load_began_s = 0.0
        self._next_rank = 0
        self._arrived = asyncio.Event()
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    @property
    def rids(self) -> list[str]:
        """Ids of the requests that are not done."""
        return [request.rid for request in self._tickets]

    def ticket_of(self, rid: str) -> Ticket | None:
        return next((ticket for request, ticket in self._tickets.items() if request.rid == rid), None)

    def submit(self, request: Request, announced: Announced | None = None) -> Ticket:
        """Takes a request in; it goes to the next rank in turn once it arrives."""
        ticket = Ticket(request, announced)
        if announced is not None:
            if not self.turnaround.is_announced:
                self._load_began_s = self.clock.now_s
            if announced.arrives_in_s is not None:
                request.arrival_s = self._load_began_s + announced.arrives_in_s
        self._tickets[request] = ticket
        self._is_empty.clear()
        self._arrivals.add(ticket)
        self.turnaround.on_arrival(announced)
        self._arrived.set()
        return ticket

    def _hand_out(self) -> None:
        """Queues what has arrived, on each rank in turn."""
        for ticket in self._arrivals.take(self.clock.now_s):
            ticket.rank_index = self._next_rank
            self._next_rank = (self._next_rank + 1) % len(self.ranks)
            self.ranks[ticket.rank_index].waiting.append(ticket.request)

    def abort(self, ticket: Ticket) -> None:
        """Ends a request where it stands. Does nothing to one that has ended."""
        request = ticket.request
        if request.finish_reason is None:
            request.finish_reason = abort_reason("Aborted")
            if ticket.rank_index is None:
                self._arrivals.drop(ticket)
            else:
                self.ranks[ticket.rank_index].drop(request)
            self.turnaround.on_abort()
            self.totals.aborted_requests += 1
            self._deliver(request)

    def abort_all(self) -> None:
        for ticket in tuple(self._tickets.values()):
            self.abort(ticket)

    async def drained(self) -> None:
        """Returns once no request is left."""
        await self._is_empty.wait()

    async def run(self) -> NoReturn:
        """Serves for ever, or hangs, or dies, as its faults will have it."""
        while True:
            await self._begin_steps()
            await self._suffer()
            first = min((r for r in self._replicas if r.is_busy), key=lambda r: r.ends_s)
            if self._arrivals.next_s < first.ends_s:  # a replica at rest can begin with it
                await self.clock.advance_to(max(self._arrivals.next_s, self.clock.now_s))
                continue
            await self.clock.advance_to(first.ends_s)
            some_are_done = self._end_step(first)
            if some_are_done and any(r.is_busy or r.has_work for r in self._replicas):
                await self.turnaround.settle(from_idle=False)
                self.clock.stood_still()

    async def _begin_steps(self) -> None:
        """Starts every replica that has something to do; waits while none has."""
        while True:
            self._hand_out()
            for replica in self._replicas:
                if not replica.is_busy and replica.has_work:
                    replica.begin(self.clock.now_s)
            if any(replica.is_busy for replica in self._replicas):
                return
            if math.isfinite(self._arrivals.next_s):
                await self.clock.advance_to(self._arrivals.next_s)
                continue
            self._arrived.clear()
            await self._arrived.wait()
            await self.turnaround.settle(from_idle=True)
            self.clock.stood_still()

    def _end_step(self, replica: Replica) -> bool:
        """Hands out what the step brought. Returns whether a request is done."""
        plans, replica.plans = replica.plans, []
        num_done = 0
        for rank, plan in zip(replica.ranks, plans, strict=True):
            if plan.retraction is not None:
                self.totals.retracted_requests += len(plan.retraction.requests)
                if plan.retraction.aborted is not None:
                    self._deliver(plan.retraction.aborted)
            for request in rank.commit(plan):
                unsent = request.output_tokens - request.sent_tokens
                if request.finish_reason is not None:
                    num_done += 1
                    self._deliver(request)
                elif unsent >= self._stream_interval or request.sent_tokens == 0:
                    self._deliver(request)
        if num_done:
            self.turnaround.on_completions(num_done)
        return num_done > 0

    def _deliver(self, request: Request) -> None:
        ticket = self._tickets[request]
        request.sent_tokens = request.output_tokens
        ticket.chunks.put_nowait(
            Chunk(
                output_tokens=request.output_tokens,
                time_s=self.clock.now_s,
                dp_rank=ticket.rank_index if len(self.ranks) > 1 else None,
                finish_reason=request.finish_reason,
            )
        )
        self.turnaround.on_chunk()
        if request.finish_reason is not None:
            self.turnaround.on_end(ticket.announced)
            del self._tickets[request]
            if not self._tickets:
                self._is_empty.set()
            self.totals.requests += 1
            self.totals.prompt_tokens += request.prompt_tokens
            self.totals.output_tokens += request.output_tokens

    async def _suffer(self) -> None:
        """Brings about the faults whose time has come."""
        faults = self._faults
        if faults.step_tokens is not None and any(
            plan.load.prefill_tokens > faults.step_tokens for r in self._replicas for plan in r.plans
        ):
            self._on_fault(Fault.OUT_OF_MEMORY)
        running = sum(rank.num_running for rank in self.ranks)
        if faults.crash_at_running is not None and running >= faults.crash_at_running:
            self._on_fault(Fault.ILLEGAL_ACCESS)
        if faults.hang_at_running is not None and running >= faults.hang_at_running:
            self.is_hung = True
            await asyncio.Event().wait()
