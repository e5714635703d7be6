"""Runs an event loop that a signal ends in order.

A handler that raises would do so inside whatever callback runs at that moment, and a loop takes what a callback raises
for a fault of its connection: the request fails, and nobody hears that the tuner was asked to end.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")

_ASKED_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_interruptibly(work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns.

    Raises KeyboardInterrupt, with `work` cancelled and its tidying up done, where the process was asked to end by a
    signal that it has a handler for; asking again changes nothing then.
    """
    handlers = {each: signal.getsignal(each) for each in _ASKED_TO_END}
    handled = [each for each, handler in handlers.items() if callable(handler)]
    is_asked = False
    found: list[T] = []

    async def main() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def ask(_signal: int, _frame: FrameType | None) -> None:
            nonlocal is_asked
            if not is_asked:
                is_asked = True
                loop.call_soon_threadsafe(task.cancel)

        for each in handled:
            signal.signal(each, ask)
        try:
            found.append(await work)
        except asyncio.CancelledError:
            if not is_asked:
                raise

    if threading.current_thread() is not threading.main_thread():
        return uvloop.run(work)  # where no signal is handled
    try:
        uvloop.run(main())
    finally:
        for each in handled:
            signal.signal(each, signal.SIG_IGN if is_asked else handlers[each])
    if is_asked:
        raise KeyboardInterrupt
    return found[0]
