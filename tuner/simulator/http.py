"""SGLang's HTTP surface on aiohttp (entrypoints/http_server.py of sglang 0.5.23)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import Enum, auto
from typing import Any

import orjson
from aiohttp import web

from search_spaces.errors import MalformedError
from tuner.simulator.engine import Chunk, Engine, Ticket
from tuner.simulator.keys import middleware_for
from tuner.simulator.server_facts import ServerFacts
from tuner.simulator.serving import Answer, Bounds, Generation, read_generation

_HEALTH_CHECK_TIMEOUT_S = 20.0  # SGLANG_HEALTH_CHECK_TIMEOUT
_LARGEST_BODY_BYTES = 64 * 2**20
_NOT_FLUSHED = "Flush cache failed.\n"
_FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)


class Status(Enum):
    STARTING = auto()
    UP = auto()
    UNHEALTHY = auto()
    LEAVING = auto()


class Server:
    """The handlers, and how ready the server says it is."""

    def __init__(
        self,
        engine: Engine,
        facts: ServerFacts,
        bounds: Bounds,
        *,
        enable_metrics: bool,
        api_key: str = "",
        admin_api_key: str = "",
    ) -> None:
        self.status = Status.STARTING
        self._engine = engine
        self._facts = facts
        self._bounds = bounds
        self._enable_metrics = enable_metrics
        self.on_chunk: Callable[[asyncio.Transport | None, int], None] = lambda _transport, _tokens: None
        """Called after each piece of a streamed answer, with how many tokens were asked for."""
        self._middlewares = middleware_for(api_key, admin_api_key)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=_LARGEST_BODY_BYTES, middlewares=self._middlewares)
        any_method: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
            "/health": self._health,
            "/health_generate": self._health,
            "/ready": self._ready,
            "/v1/models": self._models,
            "/server_info": self._server_info,
            "/get_server_info": self._server_info,
            "/v1/loads": self._loads,
            "/flush_cache": self._flush_cache,
        }
        if self._enable_metrics:
            any_method["/metrics"] = self._metrics
        for path, handler in any_method.items():
            app.router.add_get(path, handler)
        app.router.add_post("/flush_cache", self._flush_cache)
        app.router.add_post("/abort_request", self._abort_request)
        app.router.add_post("/generate", self._generate)
        app.router.add_put("/generate", self._generate)
        return app

    async def _health(self, _: web.Request) -> web.Response:
        if self.status in (Status.STARTING, Status.LEAVING):
            return web.Response(status=503)
        if self._engine.is_hung:
            await asyncio.sleep(_HEALTH_CHECK_TIMEOUT_S)
            self.status = Status.UNHEALTHY
            return web.Response(status=503)
        return web.Response(status=200)

    async def _ready(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.status is Status.UP else 503)

    async def _models(self, _: web.Request) -> web.Response:
        return _json(self._facts.models())

    async def _server_info(self, _: web.Request) -> web.Response:
        await self._scheduler_answers()
        return _json(self._facts.server_info())

    async def _loads(self, _: web.Request) -> web.Response:
        await self._scheduler_answers()
        return _json(self._facts.loads())

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            text=self._facts.metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def _flush_cache(self, _: web.Request) -> web.Response:
        await self._scheduler_answers()
        if self._engine.rids:
            return web.Response(status=400, text=_NOT_FLUSHED)
        return web.Response(text=_FLUSHED)

    async def _abort_request(self, request: web.Request) -> web.Response:
        try:
            asked = orjson.loads(await request.read())
        except orjson.JSONDecodeError as error:
            return _error(400, str(error))
        if not isinstance(asked, dict):
            return _error(400, "the body must be a JSON object")
        if asked.get("abort_all"):
            self._engine.abort_all()
        elif ticket := self._engine.ticket_of(str(asked.get("rid"))):
            self._engine.abort(ticket)
        return web.Response(status=200)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        try:
            generation = read_generation(orjson.loads(await request.read()), self._bounds)
        except (orjson.JSONDecodeError, MalformedError) as error:
            return _error(400, str(error))
        if generation.is_streamed:
            return await self._stream(request, generation)
        return await self._answer(generation)

    async def _answer(self, generation: Generation) -> web.Response:
        try:
            async with self._served(generation) as (ticket, answer):
                while True:
                    chunk = await ticket.chunks.get()
                    self._engine.turnaround.on_chunk_sent()
                    if chunk.finish_reason is not None:
                        if problem := _problem(chunk):
                            return _error(problem["code"], problem["message"])
                        return _json(answer.document(chunk))
        except MalformedError as error:
            return _error(400, str(error))

    async def _stream(self, request: web.Request, generation: Generation) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        try:
            async with self._served(generation) as (ticket, answer):
                await self._send_chunks(request, response, ticket, answer)
        except MalformedError as error:
            await response.write(_event({"error": _error_body(400, str(error))}))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _send_chunks(
        self, request: web.Request, response: web.StreamResponse, ticket: Ticket, answer: Answer
    ) -> None:
        while True:
            chunk = await ticket.chunks.get()
            try:
                problem = _problem(chunk)
                await response.write(_event({"error": problem} if problem else answer.document(chunk)))
            finally:
                self._engine.turnaround.on_chunk_sent()
            self.on_chunk(request.transport, ticket.request.max_new_tokens)
            if chunk.finish_reason is not None:
                return

    @asynccontextmanager
    async def _served(self, generation: Generation) -> AsyncIterator[tuple[Ticket, Answer]]:
        """A place in the engine, given up when the client goes away.

        Raises MalformedError where the engine would not take the prompt.
        """
        request = generation.request(self._engine.clock.now_s, self._bounds)
        if self._engine.ticket_of(request.rid) is not None:
            raise MalformedError(f"Duplicate request ID detected: {request.rid}")
        ticket = self._engine.submit(request, generation.announced)
        try:
            yield ticket, Answer(generation, request, self._bounds)
        finally:
            self._engine.abort(ticket)
            while not ticket.chunks.empty():
                ticket.chunks.get_nowait()
                self._engine.turnaround.on_chunk_sent()

    async def _scheduler_answers(self) -> None:
        """What the scheduler would be asked for never comes once it hangs."""
        if self._engine.is_hung:
            await asyncio.Event().wait()


def _problem(chunk: Chunk) -> dict[str, Any] | None:
    """An abort that SGLang reports as an error and not as an answer: one with a status code."""
    reason = chunk.finish_reason
    if reason is None or reason["type"] != "abort" or reason["status_code"] is None:
        return None
    return _error_body(reason["status_code"], reason["message"])


def _error_body(code: int, message: str) -> dict[str, Any]:
    kind = "invalid_request_error" if code == 400 else "internal_server_error"
    return {"message": message, "type": kind, "code": code, "retryable": False}


def _error(code: int, message: str) -> web.Response:
    return _json({"error": {"message": message}}, status=code)


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(document) + b"\n\n"


def _json(document: dict[str, Any], *, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(document), status=status, content_type="application/json")
