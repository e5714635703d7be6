"""A `/generate` server of known pace, as a process of its own: one token for every stream each 20 ms.

Prints its port; on each closed stream, one line of what it really sent: start, first, last, tokens.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

TICK_S = 0.02
HEADERS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


class Ticker:
    """All streams advance together, as in continuous batching."""

    def __init__(self) -> None:
        self.tick: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        due = time.perf_counter()
        while True:
            due += TICK_S
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tick, self.tick = self.tick, asyncio.get_running_loop().create_future()
            tick.set_result(None)


async def main() -> None:
    ticker = Ticker()
    running = asyncio.create_task(ticker.run())

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                break
            started = time.perf_counter()
            lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            body = json.loads(await reader.readexactly(int(lengths[0].split(b":")[1])))
            total = body["sampling_params"]["max_new_tokens"]
            writer.write(HEADERS)
            first = last = 0.0
            ids: list[int] = []
            for n in range(1, total + 1):
                await asyncio.shield(ticker.tick)
                ids.append(n)
                meta = {
                    "prompt_tokens": len(body["input_ids"]),
                    "completion_tokens": n,
                    "cached_tokens": 0,
                    "finish_reason": {"type": "length", "length": n} if n == total else None,
                }
                last = time.perf_counter()
                first = first or last
                writer.write(_chunk(b"data: " + json.dumps({"output_ids": ids, "meta_info": meta}).encode() + b"\n\n"))
            writer.write(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
            await writer.drain()
            sys.stdout.write(f"{started} {first} {last} {total}\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2**24)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()
    running.cancel()


asyncio.run(main())
