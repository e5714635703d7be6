"""Simulated time: how it passes, how it is paced, and when it stands still.

Simulated time advances by engine steps alone. Two things tie it to the wall clock: a pace (so many
simulated seconds a wall second), and standing still until clients have had their say, so that what is
measured does not depend on how fast this machine happens to be.
"""

from __future__ import annotations

import asyncio
import math

from tuner.simulator.arrivals import Announced

_FINEST_SLEEP_S = 2e-3
"""Shorter waits are saved up: the event loop cannot sleep them exactly."""


class VirtualClock:
    """scale: simulated seconds per wall second; infinite: as fast as the machine can."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.now_s = 0.0
        self._ahead_of: tuple[float, float] | None = None

    async def advance_to(self, time_s: float) -> None:
        """Lets time pass, and others run, even where there is nothing to wait for."""
        wait_s = 0.0
        if math.isfinite(self.scale):
            wall_s = asyncio.get_running_loop().time()
            if self._ahead_of is None:
                self._ahead_of = (wall_s, self.now_s)
            since_wall_s, since_s = self._ahead_of
            wait_s = since_wall_s + (time_s - since_s) / self.scale - wall_s
        await asyncio.sleep(wait_s if wait_s >= _FINEST_SLEEP_S else 0)
        self.now_s = time_s

    def stood_still(self) -> None:
        """Wall time that passed while the clock stood is not made up for."""
        self._ahead_of = None


class Turnaround:
    """How long simulated time stands still for clients, in wall time.

    A client that keeps a fixed number of requests in flight answers each completion with a new request; on
    the machine it imitates, that takes no time worth naming. So after completions the clock stands until as
    many requests have come in, or until none has for so long that none will. When the engine is idle, the
    first request of a burst waits for the rest of it in the same way.

    Of a client that announces its load, all this is known and nothing need be guessed: the clock stands while it has
    fewer requests in flight than it keeps, and more to send.
    """

    _DRAINING_S = 2e-3
    _PATIENCE_S = (0.1, 1.0)
    _BURST_GAP_S = (0.02, 1.0)
    _PATIENCE_SHARE = 8.0
    _BURST_GAP_SHARE = 2.0
    """Of the slowest answer lately, in which the speed of the client and of this machine show."""
    _GONE_S = 20.0
    """A client that announced more and sends nothing for so long is no longer there."""

    def __init__(self) -> None:
        self._owed = 0
        self._since_s = 0.0
        self._slowest_s = 0.06
        self._is_draining = False
        self._arrived = asyncio.Event()
        self._unsent = 0
        self._sent = asyncio.Event()
        self._sent.set()
        self._in_flight = 0
        self._keeps = 0
        self._to_come = 0
        self._came = 0

    @property
    def is_announced(self) -> bool:
        """Whether a load that was announced is under way."""
        return self._in_flight > 0 or self._to_come > 0

    def on_end(self, announced: Announced | None) -> None:
        if announced is not None:
            self._in_flight -= 1

    def on_abort(self) -> None:
        """A client that gives one up may give all of them up."""
        self._to_come = 0
        self._arrived.set()

    def on_arrival(self, announced: Announced | None) -> None:
        if announced is not None:
            self._came = self._came + 1 if self.is_announced else 1
            self._in_flight += 1
            self._keeps, self._to_come = announced.in_flight, announced.of - self._came
            self._owed = 0
            self._arrived.set()
            return
        taken_s = asyncio.get_running_loop().time() - self._since_s
        if taken_s > self._PATIENCE_S[1]:
            self._owed = 0  # not an answer, but something new after a pause
        if self._owed:
            self._owed -= 1
            # Half of what was seen before: one slow answer is forgotten after some quick ones.
            self._slowest_s = max(taken_s, 0.5 * self._slowest_s)
        self._is_draining = False
        self._arrived.set()

    def on_completions(self, count: int) -> None:
        self._owed += count
        self._since_s = asyncio.get_running_loop().time()

    def on_chunk(self) -> None:
        """A chunk is on its way to a client."""
        self._unsent += 1
        self._sent.clear()

    def on_chunk_sent(self) -> None:
        self._unsent -= 1
        if self._unsent == 0:
            self._sent.set()

    async def settle(self, *, from_idle: bool) -> None:
        """Returns when time may go on."""
        if self.is_announced:
            self._owed = 0
            return await self._all_there()
        return await self._guessed(from_idle=from_idle)

    async def _all_there(self) -> None:
        while self._to_come and self._in_flight < self._keeps:
            self._arrived.clear()
            try:
                async with asyncio.timeout(self._GONE_S):
                    await self._arrived.wait()
            except TimeoutError:
                self._to_come = 0

    async def _guessed(self, *, from_idle: bool) -> None:
        gap_s = self._within(self._BURST_GAP_S, self._BURST_GAP_SHARE) if from_idle else 0.0
        while self._owed or from_idle:
            await self._let_chunks_go()
            self._arrived.clear()
            wall = asyncio.get_running_loop()
            began_s = wall.time()
            try:
                async with asyncio.timeout(max(self._patience_s() if self._owed else 0.0, gap_s)):
                    await self._arrived.wait()
            except TimeoutError:
                self._is_draining = self._owed > 0
                self._owed = 0
                return
            if from_idle:
                # Requests of a burst that come slowly are waited for longer.
                gap_s = min(max(gap_s, 4.0 * (wall.time() - began_s)), self._BURST_GAP_S[1])

    def _patience_s(self) -> float:
        return self._DRAINING_S if self._is_draining else self._within(self._PATIENCE_S, self._PATIENCE_SHARE)

    def _within(self, bounds: tuple[float, float], share: float) -> float:
        shortest, longest = bounds
        return min(max(share * self._slowest_s, shortest), longest)

    async def _let_chunks_go(self) -> None:
        """A client cannot answer what it has not been sent; one that does not read is not waited for."""
        try:
            async with asyncio.timeout(self._PATIENCE_S[1]):
                await self._sent.wait()
        except TimeoutError:
            return
