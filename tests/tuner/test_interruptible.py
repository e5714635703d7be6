"""A signal ends a loop in order, whatever callback it comes in."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

SCRIPT = """
import asyncio, os, signal, sys
from tuner.interruptible import run_interruptibly

def interrupt(*_):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt

async def work():
    loop = asyncio.get_running_loop()

    class Speaks(asyncio.Protocol):
        def connection_made(self, transport):
            transport.write(b"x")

    class Interrupts(asyncio.Protocol):
        def data_received(self, data):
            for _ in range(times):
                os.kill(os.getpid(), number)
            sum(range(1000))

    server = await loop.create_server(Speaks, "127.0.0.1", 0)
    await loop.create_connection(Interrupts, *server.sockets[0].getsockname()[:2])
    try:
        if times:
            await asyncio.Event().wait()
        return None
    finally:
        print("tidied up", flush=True)

number, times = int(sys.argv[1]), int(sys.argv[2])
signal.signal(number, interrupt)
try:
    print(run_interruptibly(work()))
except KeyboardInterrupt:
    print("interrupted", signal.getsignal(number) is signal.SIG_IGN)
else:
    print("done", signal.getsignal(number) is interrupt)
"""


def said(number: int, times: int) -> list[str]:
    words = [sys.executable, "-c", SCRIPT, str(number), str(times)]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout.splitlines()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("times", [1, 5])
def test_a_signal_in_a_callback_of_a_connection_is_heard(number: int, times: int) -> None:
    """uvloop takes what `data_received` raises for a fault of the transport."""
    assert said(number, times) == ["tidied up", "interrupted True"]


def test_without_a_signal_the_result_comes_back_and_the_handlers_too() -> None:
    assert said(signal.SIGINT, 0) == ["tidied up", "None", "done True"]
