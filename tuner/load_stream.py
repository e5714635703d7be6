"""One HTTP connection that streams answers, and when they came: as little as possible between socket and clock.

An event loop that drives hundreds of streams spends its time on each piece of text that arrives. Here a piece is
parsed by llhttp (httptools), looked at once, and kept only while it is the newest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

DATA = b"data: "
_DONE = b"data: [DONE]"
_ERROR = b'data: {"error"'
_ERROR_CHARS = 300
_LONGEST_LINE_BYTES = 2**26  # one event repeats all output so far; what is longer than this is no event


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where requests go, and what their heads say beside the length."""

    host: str
    port: int
    is_tls: bool
    head: bytes

    @classmethod
    def of(cls, url: str, headers: Mapping[str, str]) -> Address:
        """Raises ValueError where `url` is none, or a header holds a line break."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not the address of a server: {url}")
        if any(c in text for pair in headers.items() for text in pair for c in "\r\n"):
            raise ValueError("a header holds a line break")
        lines = [
            f"POST {parts.path or '/'} HTTP/1.1",
            f"Host: {parts.netloc.rpartition('@')[2]}",
            "Content-Type: application/json",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        is_tls = parts.scheme == "https"
        return cls(
            host=parts.hostname,
            port=parts.port or (443 if is_tls else 80),
            is_tls=is_tls,
            head="\r\n".join(lines).encode(),
        )

    def message(self, body: bytes) -> bytes:
        return b"%b\r\nContent-Length: %d\r\n\r\n%b" % (self.head, len(body), body)


@dataclass(slots=True)
class Pulse:
    """When anything last arrived on any connection, by `time.perf_counter()`."""

    heard_s: float


@dataclass(slots=True)
class Answer:
    """What came of one request. first, last: the JSON of those events; *_s by `time.perf_counter()`.

    error: why it did not end as it should; empty when it did. events: how many came.
    """

    first: bytes = b""
    last: bytes = b""
    first_s: float = 0.0
    last_s: float = 0.0
    events: int = 0
    error: str = ""
    is_unheard: bool = False
    """Whether the connection ended without a byte of an answer."""


class Stream(asyncio.Protocol):
    """One connection, for one request at a time."""

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiting: asyncio.Future[Answer] | None = None
        self._answer = Answer()
        self._pending = b""
        self._refusal = b""
        self._is_done = False
        self._has_heard = False
        self._now_s = 0.0

    @classmethod
    async def open(cls, address: Address, pulse: Pulse) -> Stream:
        """Raises OSError."""
        _, stream = await asyncio.get_running_loop().create_connection(
            lambda: cls(pulse), address.host, address.port, ssl=True if address.is_tls else None
        )
        return stream

    @property
    def is_usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, message: bytes) -> asyncio.Future[Answer]:
        """Sends a whole request; the answer never raises. The connection must be usable and at rest."""
        assert self._transport is not None
        self._waiting = asyncio.get_running_loop().create_future()
        self._answer, self._pending, self._refusal, self._is_done = Answer(), b"", b"", False
        self._has_heard = False
        self._transport.write(message)
        return self._waiting

    def close(self) -> None:
        """At once: a server aborts what was under way."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclasses

    def data_received(self, data: bytes) -> None:
        self._now_s = self._pulse.heard_s = time.perf_counter()
        self._has_heard = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._end(f"{type(error).__name__}: the server sent what is no HTTP: {error} {data[:60]!r}")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_done:
            self._end("")
            return
        self._answer.is_unheard = not self._has_heard
        why = f"{type(exc).__name__}: {exc}" if exc is not None else "ConnectionError: closed by the server"
        where = f"after {self._answer.events} events" if self._answer.events else "before an answer"
        self._end(f"{why}, {where}")

    def on_body(self, body: bytes) -> None:
        if self._parser.get_status_code() != 200:
            self._refusal = (self._refusal + body)[:_ERROR_CHARS]
        elif not self._pending and body.startswith(DATA) and body.find(b"\n") == len(body) - 2:
            self._event(body)
        else:
            self._pieces(body)

    def _pieces(self, body: bytes) -> None:
        *lines, self._pending = (self._pending + body).split(b"\n")
        for line in lines:
            if line.startswith(DATA):
                self._event(line)
        if len(self._pending) > _LONGEST_LINE_BYTES:
            self._end(f"the server sent a line of more than {_LONGEST_LINE_BYTES} bytes")
            self.close()

    def _event(self, line: bytes) -> None:
        answer = self._answer
        if line.startswith(_DONE):
            self._is_done = True
        elif line.startswith(_ERROR):
            answer.error = answer.error or line[len(DATA) :].decode(errors="replace").strip()[:_ERROR_CHARS]
        else:
            answer.events += 1
            if not answer.first:
                answer.first, answer.first_s = line, self._now_s
            answer.last, answer.last_s = line, self._now_s

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status == 200:
            self._end("")
        else:
            self._end(f"HTTP {status}: {self._refusal.decode(errors='replace')}")
        if not self._parser.should_keep_alive():
            self.close()

    def _end(self, error: str) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is None or waiting.done():
            return
        answer = self._answer
        answer.error = answer.error or error
        if not answer.error and not answer.last:
            answer.error = "the stream ended without a token"
        waiting.set_result(answer)
