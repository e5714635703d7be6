"""The load client against a real HTTP server that answers as told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from aiohttp import web

from tuner.load import Load, NoProgressError, Traffic, simulated_clock, wall_clock
from tuner.load_plan import Asked
from tuner.measurement import Rung

Handler = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


def chunk(tokens: int, *, finish: str | None = None, **meta: Any) -> bytes:
    reason = {"type": finish, "length": tokens} if finish else None
    info = {"prompt_tokens": 8, "completion_tokens": tokens, "cached_tokens": 0, "finish_reason": reason, **meta}
    return b"data: " + orjson.dumps({"output_ids": list(range(tokens)), "meta_info": info}) + b"\n\n"


DONE = b"data: [DONE]\n\n"


async def stream(request: web.Request, *parts: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for part in parts:
        await response.write(part)
    return response


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    seen: list[dict[str, Any]] = []

    async def generate(request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        seen.append(body)
        return await handler(request, body)

    app = web.Application(client_max_size=2**24)
    app.router.add_post("/generate", generate)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield f"http://127.0.0.1:{port}", seen
    finally:
        await runner.cleanup()


LOAD = Load(concurrency=3, num_requests=7, input_tokens=8, output_tokens=4, vocab_size=100, seed=0)


def run(handler: Handler, load: Load = LOAD, *, clock: Any = wall_clock, silence_limit_s: float = 30.0) -> Any:
    async def go() -> Any:
        async with serving(handler) as (url, seen):
            timings = await Traffic(url, clock=clock, silence_limit_s=silence_limit_s).run(load)
            return timings, seen

    return asyncio.run(go())


async def good(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    n = body["sampling_params"]["max_new_tokens"]
    return await stream(request, chunk(1), chunk(n, finish="length"), DONE)


def test_every_request_is_sent_once_with_its_own_prompt_and_counted() -> None:
    timings, seen = run(good)
    assert len(timings) == len(seen) == 7
    assert not any(t.error for t in timings)
    assert {t.output_tokens for t in timings} == {4}
    prompts = {tuple(body["input_ids"]) for body in seen}
    assert len(prompts) == 7
    assert all(len(p) == 8 and min(p) >= 10 and max(p) < 100 for p in prompts)
    assert all(body["sampling_params"]["ignore_eos"] and body["stream"] for body in seen)


def test_the_same_seed_gives_the_same_prompts_and_another_seed_others() -> None:
    def prompts(seed: int) -> set[tuple[int, ...]]:
        load = Load(concurrency=1, num_requests=3, input_tokens=8, output_tokens=4, vocab_size=1000, seed=seed)
        return {tuple(b["input_ids"]) for b in run(good, load)[1]}

    assert prompts(1) == prompts(1)
    assert prompts(1).isdisjoint(prompts(2))


def test_no_more_than_the_concurrency_is_in_flight_and_it_is_reached() -> None:
    now, most = 0, 0

    async def counting(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.02)
        response = await good(request, body)
        now -= 1
        return response

    run(counting)
    assert most == 3


def test_a_simulated_server_s_own_clock_is_what_counts() -> None:
    async def stamped(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return await stream(
            request,
            chunk(1, simulated_time_s=12.5, simulated_arrival_s=10.0),
            chunk(4, finish="length", simulated_time_s=14.0),
            DONE,
        )

    load = Load(concurrency=1, num_requests=1, input_tokens=8, output_tokens=4, vocab_size=100, seed=0)
    timings, _ = run(stamped, load, clock=simulated_clock)
    assert timings[0].ttft_s == pytest.approx(2.5)
    assert timings[0].tpot_s == pytest.approx(0.5)
    rung = Rung.of(1, timings)
    assert rung.output_tok_per_s == pytest.approx(4 / 4.0)
    assert rung.ttft_s.mean == pytest.approx(2.5)


async def http_500(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    return web.Response(status=500, text="boom")


async def error_in_stream(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    return await stream(request, chunk(1), b'data: {"error":{"message":"out of pages"}}\n\n', DONE)


async def cut_in_mid_stream(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    response = await stream(request, chunk(1))
    assert request.transport is not None
    request.transport.close()
    return response


async def too_short(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    return await stream(request, chunk(2, finish="stop"), DONE)


async def empty(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    return await stream(request, DONE)


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (http_500, "HTTP 500: boom"),
        (error_in_stream, "out of pages"),
        (cut_in_mid_stream, "Error"),
        (too_short, "2 of 4 tokens"),
        (empty, "without a token"),
    ],
)
def test_a_request_that_does_not_end_as_asked_is_a_failure_and_never_a_fast_one(handler: Handler, words: str) -> None:
    timings, _ = run(handler)
    assert any(words in t.error for t in timings)
    with pytest.raises(ValueError, match="all succeeded"):
        Rung.of(3, timings)


def test_the_first_failure_ends_the_rung() -> None:
    _, seen = run(http_500)
    assert len(seen) <= LOAD.concurrency


def test_a_server_that_says_nothing_is_given_up_after_the_limit() -> None:
    async def silent(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(600)
        raise AssertionError

    with pytest.raises(NoProgressError):
        run(silent, silence_limit_s=0.3)


def test_long_outputs_with_large_cumulative_chunks_are_read() -> None:
    load = Load(concurrency=2, num_requests=2, input_tokens=8, output_tokens=60_000, vocab_size=100, seed=0)
    timings, _ = run(good, load)
    assert [t.error for t in timings] == ["", ""]


def test_arrivals_are_kept_whatever_is_in_flight_and_a_failure_does_not_end_them() -> None:
    seen_bodies = 0

    async def failing_once(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal seen_bodies
        seen_bodies += 1
        return await (http_500 if seen_bodies == 1 else good)(request, body)

    asked = tuple(Asked(input_tokens=8, output_tokens=4, due_s=0.01 * i) for i in range(5))
    load = Load(concurrency=9, num_requests=5, input_tokens=8, output_tokens=4, vocab_size=100, seed=0, asked=asked)
    timings, seen = run(failing_once, load)
    assert len(timings) == len(seen) == 5
    assert sum(bool(t.error) for t in timings) == 1


async def no_http(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.write(b"\x00garbage\r\n\r\n")  # type: ignore[attr-defined]
    request.transport.close()
    return web.Response()


async def no_json(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    return await stream(request, b"data: \xff{]\n\n", DONE)


@pytest.mark.parametrize("handler", [no_http, no_json])
def test_garbage_is_a_failed_request_and_no_fault_of_the_client(handler: Handler) -> None:
    timings, _ = run(handler)
    assert any(t.error for t in timings)


def test_a_chunk_that_comes_in_pieces_is_one_event() -> None:
    async def in_pieces(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        whole = chunk(1) + chunk(4, finish="length") + DONE
        return await stream(request, *(whole[i : i + 7] for i in range(0, len(whole), 7)))

    timings, _ = run(in_pieces)
    assert [(t.error, t.output_tokens, t.first_chunk_tokens) for t in timings] == [("", 4, 1)] * 7
