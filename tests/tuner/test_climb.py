"""The climb against a real HTTP server that answers as told, in seconds of its own clock."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from search_spaces.workload import Workload
from tuner.climb import Ascent, Climb
from tuner.latency_limits import limits_of
from tuner.load_mix import LoadMix
from tuner.load_plan import Asked
from tuner.outcome import Crashed, Environment
from tuner.server_seen import ServerSeen
from tuner.servers.protocol import Launch
from tuner.sglang_benchmark import SglangBenchmark
from tuner.watcher import Watcher

WORKLOAD = Workload(input_tokens=8, output_tokens=4, concurrencies=(1, 2, 4, 8, 16, 32))
PEAK = {1: 10.0, 2: 20.0, 4: 30.0, 8: 25.0, 16: 24.0, 32: 50.0}
"""Output tokens per second by concurrency."""

Respond = Callable[[dict[str, Any], dict[str, Any]], Awaitable[None]]


class Served:
    """A server of `PEAK`'s pace. Its clock gives each request of a ladder its place in waves; arrivals are kept."""

    def __init__(self, respond: Respond | None = None) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.flushed = 0
        self.code: int | None = None
        self.port = 0
        self.is_up = True
        self._respond = respond

    @property
    def launch(self) -> Launch:
        return Launch(command=("server",), host="127.0.0.1", port=self.port, log_path=Path("server.log"))

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def exit_code(self) -> int | None:
        return self.code

    def lost(self) -> str:
        return ""

    def stop(self) -> None: ...

    async def flush(self, _: web.Request) -> web.Response:
        self.flushed += 1
        return web.Response()

    async def ready(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.is_up else 503)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        self.bodies.append(body)
        load, tokens = body["simulated_load"], body["sampling_params"]["max_new_tokens"]
        arrives_s = load.get("arrives_in_s")
        if arrives_s is None:
            wave_s = load["in_flight"] * tokens / PEAK.get(load["in_flight"], 1.0)
            arrives_s = load["number"] // load["in_flight"] * wave_s
        else:
            wave_s = 0.5
        meta = {
            "prompt_tokens": 8,
            "completion_tokens": tokens,
            "cached_tokens": 0,
            "finish_reason": {"type": "length"},
            "simulated_arrival_s": arrives_s,
            "simulated_time_s": arrives_s + wave_s,
        }
        if self._respond is not None:
            await self._respond(load, meta)
        first = {**meta, "completion_tokens": 1, "simulated_time_s": arrives_s + wave_s / tokens}
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for each in (first, meta):
            await response.write(b"data: " + orjson.dumps({"meta_info": each}) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


class Notes(Watcher):
    def __init__(self) -> None:
        self.stages: list[str] = []
        self.notices: list[str] = []

    def on_stage(self, stage: str) -> None:
        if ", " not in stage:  # progress within one
            self.stages.append(stage)

    def on_notice(self, text: str) -> None:
        self.notices.append(text)


ASCENT = Ascent(workload=WORKLOAD, vocab_size=1000, seed=0, is_simulated=True, silence_limit_s=60.0)


def climbed(server: Served, **changes: Any) -> tuple[Climb, Any, Notes, dict[Any, Any]]:
    notes, requests = Notes(), {}

    async def go() -> tuple[Climb, Any]:
        app = web.Application()
        app.router.add_post("/generate", server.generate)
        app.router.add_post("/flush_cache", server.flush)
        app.router.add_get("/ready", server.ready)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.port = runner.addresses[0][1]
        try:
            climb = Climb(dataclasses.replace(ASCENT, **changes), server, notes, requests)
            return climb, await climb.to_the_top()
        finally:
            await runner.cleanup()

    climb, ended = asyncio.run(go())
    return climb, ended, notes, requests


def test_the_climb_ends_after_two_rungs_below_the_peak_and_says_so() -> None:
    server = Served()
    climb, ended, notes, requests = climbed(server)
    assert ended is None
    assert [rung.concurrency for rung in climb.measured] == list(requests) == [1, 2, 4, 8, 16]
    assert max(rung.output_tok_per_s for rung in climb.measured) == pytest.approx(30.0)
    assert climb.ended == "throughput peaked at concurrency 4 (30 tok/s)"
    assert notes.notices == [f"no further concurrency: {climb.ended}"]
    assert server.flushed == len(notes.stages) == 6
    assert notes.stages[0] == "warm-up"


def test_the_whole_ladder_is_climbed_where_that_is_wanted() -> None:
    climb, ended, _, _ = climbed(Served(), mix=LoadMix(is_whole_ladder=True))
    assert ended is None
    assert [rung.concurrency for rung in climb.measured] == list(WORKLOAD.concurrencies)
    assert climb.ended == ""


def test_the_warm_up_is_in_no_figure() -> None:
    server = Served()
    climb, _, _, _ = climbed(server)
    warm_up = [body for body in server.bodies if body["sampling_params"]["max_new_tokens"] == 8]
    assert len(warm_up) == 16
    assert sum(rung.num_requests for rung in climb.measured) == len(server.bodies) - len(warm_up)


def test_requests_taken_back_mean_a_full_pool_and_end_the_climb() -> None:
    async def crowded(load: dict[str, Any], meta: dict[str, Any]) -> None:
        meta["num_retractions"] = int(load["in_flight"] == 2)

    climb, ended, notes, _ = climbed(Served(crowded))
    assert ended is None
    assert [rung.concurrency for rung in climb.measured] == [1, 2]
    assert climb.ended == "the KV pool was full at concurrency 2 (4 retractions)"
    assert "concurrency 2: requests lost their place in the KV pool 4 times" in notes.notices


def test_a_pool_is_full_where_some_wait_all_the_time_and_not_where_all_wait_for_their_prefill() -> None:
    full = ServerSeen(samples=9, most_running=54, most_waiting=10, most_token_usage=0.8, median_waiting=9)
    burst = dataclasses.replace(full, most_running=64)
    assert full.is_full(64)
    assert not burst.is_full(64)
    assert not dataclasses.replace(full, median_waiting=0).is_full(64)
    assert not dataclasses.replace(full, samples=2).is_full(64)


def test_rates_follow_the_ladder_with_arrivals_on_the_clock_of_the_server() -> None:
    server = Served()
    mix = LoadMix(request_rates=(1.0, 4.0))
    climb, ended, notes, requests = climbed(server, mix=mix, limits=limits_of("ttft_p99=1s"))
    assert ended is None
    assert [rung.requests_per_s for rung in climb.rates] == [1.0, 4.0]
    assert notes.stages[-2:] == list(requests)[-2:] == ["1 requests/s", "4 requests/s"]
    slow, fast = climb.rates
    assert (slow.num_requests, fast.num_requests) == (60, 240)
    assert slow.ttft_s.mean == pytest.approx(0.125)
    assert slow.duration_s == pytest.approx(60, rel=0.5)
    assert slow.within == fast.within == 1.0
    prompts = [tuple(body["input_ids"]) for body in server.bodies]
    assert len(set(prompts)) == len(prompts)


def test_a_rate_that_is_sent_faster_than_it_is_answered_is_doubted_and_said() -> None:
    async def one_by_one(load: dict[str, Any], meta: dict[str, Any]) -> None:
        if "arrives_in_s" in load:
            meta["simulated_time_s"] = load["arrives_in_s"] + 1.0 + load["number"] / 40  # of 100 a second

    mix = LoadMix(request_rates=(100.0,))
    climb, ended, notes, _ = climbed(Served(one_by_one), mix=mix, limits=limits_of("ttft_p99=1000s"))
    assert ended is None
    (rate,) = climb.rates
    assert (rate.num_requests, rate.is_kept_up, rate.within) == (400, False, 1.0)
    assert rate.doubts[0].startswith("the server does not keep up: in ")
    assert f"100 requests/s: {rate.doubts[0]}" in notes.notices


def test_requests_that_take_long_alone_are_sent_for_longer() -> None:
    async def slow(load: dict[str, Any], meta: dict[str, Any]) -> None:
        meta["simulated_arrival_s"] = load.get("arrives_in_s", load["number"] * 20.0)
        meta["simulated_time_s"] = meta["simulated_arrival_s"] + 20.0

    climb, ended, _, _ = climbed(
        Served(slow), mix=LoadMix(request_rates=(1.0,)), workload=dataclasses.replace(WORKLOAD, concurrencies=(1,))
    )
    assert ended is None
    assert [rate.num_requests for rate in climb.rates] == [80]


def test_prompts_that_come_again_in_a_rung_are_doubted_whatever_the_server_says_of_its_cache() -> None:
    asked = tuple(Asked(input_tokens=1, output_tokens=4, text=text) for text in ("one", "two", "three"))
    climb, ended, _, _ = climbed(
        Served(),
        mix=LoadMix(asked=asked, request_rates=(1.0,)),
        workload=dataclasses.replace(WORKLOAD, concurrencies=(1,)),
    )
    assert ended is None
    assert climb.measured[0].doubts == ("1 of 4 prompts had been sent in it before: a cache may answer",)
    assert climb.rates[0].doubts == ("57 of 60 prompts had been sent in it before: a cache may answer",)
    many = tuple(dataclasses.replace(asked[0], text=str(i)) for i in range(60))
    climb, _, _, _ = climbed(
        Served(), mix=LoadMix(asked=many), workload=dataclasses.replace(WORKLOAD, concurrencies=(1,))
    )
    assert climb.measured[0].doubts == ()


def test_a_rate_counts_its_failures_and_the_ladder_ends_at_one() -> None:
    async def now_and_then(load: dict[str, Any], _: dict[str, Any]) -> None:
        if load["number"] == 3 and "arrives_in_s" in load:
            raise web.HTTPServiceUnavailable(text="busy")

    mix = LoadMix(request_rates=(1.0,))
    climb, ended, _, _ = climbed(Served(now_and_then), mix=mix)
    assert ended is None
    assert (climb.rates[0].num_requests, climb.rates[0].num_failed) == (60, 1)
    assert "HTTP 503: busy" in climb.rates[0].doubts[0]

    async def always(load: dict[str, Any], _: dict[str, Any]) -> None:
        if load["in_flight"] == 2:
            raise web.HTTPServiceUnavailable(text="busy")

    climb, ended, _, _ = climbed(Served(always), mix=mix)
    assert isinstance(ended, Crashed)
    assert (ended.stage, [rung.concurrency for rung in climb.measured]) == ("concurrency 2", [1])


def test_a_rate_at_which_every_request_fails_is_a_failure_under_load() -> None:
    async def refused(load: dict[str, Any], _: dict[str, Any]) -> None:
        if "arrives_in_s" in load:
            raise web.HTTPServiceUnavailable(text="busy")

    climb, ended, _, _ = climbed(Served(refused), mix=LoadMix(request_rates=(1.0,)))
    assert isinstance(ended, Crashed)
    assert ended.stage == "1 requests/s"
    assert climb.rates == []


def test_a_server_that_goes_down_at_a_rate_has_crashed_whatever_it_answered_before() -> None:
    async def going_down(load: dict[str, Any], _: dict[str, Any]) -> None:
        if "arrives_in_s" in load and load["number"] > 30:
            server.is_up = False
            raise web.HTTPServiceUnavailable(text="leaving")

    server = Served(going_down)
    climb, ended, _, _ = climbed(server, mix=LoadMix(request_rates=(1.0,)))
    assert isinstance(ended, Crashed)
    assert (ended.stage, climb.rates) == ("1 requests/s", [])
    assert climb.measured


def test_every_request_has_the_lengths_of_its_turn() -> None:
    server = Served()
    asked = tuple(Asked(input_tokens=5 + i, output_tokens=2 + i) for i in range(3))
    climbed(server, mix=LoadMix(asked=asked), workload=dataclasses.replace(WORKLOAD, concurrencies=(1,)))
    lengths = [(len(body["input_ids"]), body["sampling_params"]["max_new_tokens"]) for body in server.bodies[1:]]
    assert lengths == [(5, 2), (6, 3), (7, 4), (5, 2)]


def test_a_budget_that_is_over_ends_the_climb_after_a_rung() -> None:
    climb, ended, _, _ = climbed(Served(), deadline=0.0)
    assert ended == "the budget ended before concurrency 2"
    assert [rung.concurrency for rung in climb.measured] == [1]


STANDS_IN = """
import json, sys
words = dict(zip(sys.argv, sys.argv[1:]))
n = int(words["--num-prompts"])
{before}
line = {{"duration": n / 2, "ttfts": [0.1] * n, "itls": [[0.1] * 3] * n, "input_lens": [8] * n, "output_lens": [4] * n,
         "errors": {errors}}}
with open(words["--output-file"], "a") as output:
    output.write(json.dumps(line) + "\\n")
"""


def stands_in(folder: Path, *, before: str = "", errors: str = "[''] * n") -> LoadMix:
    """Sent by a few lines in the place of SGLang's benchmark, which write what it would."""
    package = folder / "sglang" / "benchmark"
    package.mkdir(parents=True)
    (package / "serving.py").write_text(STANDS_IN.format(before=before, errors=errors))
    python = ("env", f"PYTHONPATH={folder}", sys.executable)
    by = SglangBenchmark(python=python, module="sglang.benchmark.serving", tokenizer="x", reports_cache=False)
    return LoadMix(by_sglang=by)


TWO_RUNGS = dataclasses.replace(WORKLOAD, concurrencies=(1, 8))


def test_rungs_sent_by_another_generator_have_its_figures_and_its_log_beside_the_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    server = Served()
    climb, ended, _, requests = climbed(server, mix=stands_in(tmp_path), workload=TWO_RUNGS)
    assert ended is None
    assert [len(timings) for timings in requests.values()] == [16, 32]
    assert [(rung.output_tok_per_s, rung.window_s, rung.client) for rung in climb.measured] == [(8.0, None, None)] * 2
    assert [rung.ttft_s.p99 for rung in climb.measured] == pytest.approx([0.1, 0.1])
    assert len(server.bodies) == 8  # of the warm-up, which is ours
    assert server.flushed == 3
    assert (tmp_path / "load.log").is_file()


def test_a_generator_that_fails_beside_a_good_server_is_no_verdict_on_the_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mix = stands_in(tmp_path, before="raise SystemExit('no tokenizer there')")
    climb, ended, _, _ = climbed(Served(), mix=mix, workload=TWO_RUNGS)
    assert isinstance(ended, Environment)
    assert ended.summary == ("environment at concurrency 1: SGLang's benchmark ended with 1: no tokenizer there")
    assert climb.measured == []


def test_a_generator_that_fails_with_its_server_leaves_the_word_to_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    server = Served()
    server.is_up = False
    _, ended, _, _ = climbed(server, mix=stands_in(tmp_path, before="raise SystemExit('gone')"), workload=TWO_RUNGS)
    assert isinstance(ended, Crashed)


def test_a_request_that_the_other_generator_says_failed_ends_the_climb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    climb, ended, _, _ = climbed(
        Served(), mix=stands_in(tmp_path, errors="[''] * (n - 1) + ['it was refused']"), workload=TWO_RUNGS
    )
    assert isinstance(ended, Crashed)
    assert ended.cause == "a request failed under load: it was refused"
    assert climb.measured == []
