"""A `/generate` server of exactly known pace, as a process of its own: one token for every stream each 20 ms.

    paced_server.py [CORE]

A request's first token comes with the first tick that is at least 50 ms after its arrival. Every tick's messages
are made ahead, so that 512 streams cost a part of one core. Prints its port. At the end of its standard input:
a line of how late its ticks were at most and the share of its core that it used, then, for each request, a line of
what it really sent: start, first, last, tokens.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import cast

import httptools
import uvloop

TICK_S = 0.02
PREFILL_S = 0.05
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


class Messages:
    """What each token of an answer is sent as, in SGLang's form: all output so far, and then `meta_info`."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int], list[bytes]] = {}

    def of(self, prompt_tokens: int, total: int) -> list[bytes]:
        found = self._made.get((prompt_tokens, total))
        if found is None:
            found = [self._message(prompt_tokens, n, total) for n in range(1, total + 1)]
            found[0] = HEAD + found[0]
            found[-1] += DONE
            self._made[prompt_tokens, total] = found
        return found

    @staticmethod
    def _message(prompt_tokens: int, n: int, total: int) -> bytes:
        meta = {
            "id": "0" * 32,
            "finish_reason": {"type": "length", "length": n} if n == total else None,
            "prompt_tokens": prompt_tokens,
            "completion_tokens": n,
            "cached_tokens": 0,
            "num_retractions": 0,
            "e2e_latency": 0.0,
        }
        answer = {"text": "a " * n, "output_ids": list(range(10, 10 + n)), "meta_info": meta}
        return _chunk(b"data: " + json.dumps(answer).encode() + b"\n\n")


class Request:
    def __init__(self, transport: asyncio.Transport, messages: list[bytes], start_s: float) -> None:
        self.transport = transport
        self.messages = messages
        self.start_s = start_s
        self.first_s = self.last_s = 0.0
        self.sent = 0


class Engine:
    def __init__(self) -> None:
        self.messages = Messages()
        self.running: list[Request] = []
        self.ended: list[Request] = []
        self.latest_s = 0.0

    async def run(self) -> None:
        due_s = time.perf_counter()
        while True:
            due_s += TICK_S
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            if self.running:
                self.latest_s = max(self.latest_s, time.perf_counter() - due_s)
                self.step(due_s)

    def step(self, due_s: float) -> None:
        going_on = []
        for request in self.running:
            if due_s < request.start_s + PREFILL_S:
                going_on.append(request)
                continue
            request.last_s = time.perf_counter()
            request.first_s = request.first_s or request.last_s
            request.transport.write(request.messages[request.sent])
            request.sent += 1
            (going_on if request.sent < len(request.messages) else self.ended).append(request)
        self.running = going_on


class Connection(asyncio.Protocol):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._path, self._body = b"", b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclasses

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        path, body, self._path, self._body = self._path, self._body, b"", b""
        if path != b"/generate":
            answer = json.dumps({"data": [{"id": "paced"}], "internal_states": [{}]}).encode()
            head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(answer)}\r\n\r\n"
            self._transport.write(head.encode() + answer)
            return
        start_s = time.perf_counter()
        asked = json.loads(body)
        prompt_tokens = len(asked["input_ids"]) if "input_ids" in asked else len(asked["text"].split())
        messages = self._engine.messages.of(prompt_tokens, asked["sampling_params"]["max_new_tokens"])
        self._engine.running.append(Request(self._transport, messages, start_s))


async def main() -> None:
    engine = Engine()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(engine), "127.0.0.1", 0, backlog=2048)
    running = asyncio.create_task(engine.run())
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    await loop.run_in_executor(None, sys.stdin.read)
    share = (time.process_time() - began_cpu_s) / (time.perf_counter() - began_s)
    sys.stdout.write(f"{engine.latest_s} {share}\n")
    for r in engine.ended:
        sys.stdout.write(f"{r.start_s} {r.first_s} {r.last_s} {r.sent}\n")
    server.close()
    running.cancel()


if len(sys.argv) > 1:
    os.sched_setaffinity(0, {int(sys.argv[1])})
uvloop.run(main())
