"""SGLang's benchmark as the load generator: what is made of what it writes, and how its process is kept.

The processes here stand in for SGLang's: a package `sglang` of a few lines, which writes what the real one was seen to
write. The real one runs in tests/end_to_end/test_load_generator.py.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from search_spaces.catalogue import parse_cluster
from search_spaces.errors import UserError
from search_spaces.sglang.versions import NEWEST
from search_spaces.workload import Workload
from tuner.engine import Engine, simulated
from tuner.load_by_sglang import GeneratorError, SglangLoad, environment, timings_of
from tuner.load_mix import LoadMix, load_told
from tuner.load_plan import Load
from tuner.load_words import LoadWords, check_generator, sent_by
from tuner.measurement import Rung
from tuner.server_keys import NO_KEYS, ServerKeys
from tuner.sglang_benchmark import SglangBenchmark, found_benchmark

KEY = "canary-of-a-server-93c0"
LOAD = Load(concurrency=2, num_requests=3, input_tokens=8, output_tokens=4, vocab_size=100, seed=0)
RESULT: dict[str, Any] = json.loads("""
{"backend": "sglang", "dataset_name": "random-ids", "request_rate": Infinity, "max_concurrency": 2,
 "random_input_len": 8, "random_output_len": 4, "duration": 0.23858577200007858, "completed": 3,
 "total_output_tokens": 12, "output_throughput": 50.29637727096337, "mean_ttft_ms": 54.5769480013405,
 "mean_tpot_ms": 20.300953665961668, "mean_itl_ms": 20.297437444646167, "input_lens": [8, 8, 8],
 "output_lens": [4, 4, 4], "ttfts": [0.052462190004007425, 0.05183655099972384, 0.059432103000290226],
 "itls": [[0.020188677997794002, 0.022904047997144517, 0.020133306003117468], [0.020158223000180442,
  0.02288080399739556, 0.02025900200533215], [0.01618550800048979, 0.023601462002261542, 0.01636590599810006]],
 "errors": ["", "", ""], "cached_tokens": [0, 0, 0], "cached_tokens_details": [null, null, null]}
""")
"""As 0.5.23 wrote it of three requests, without the texts and what the server says of itself."""

WRITES = """
import json, os, sys, time
words = sys.argv[1:]
assert os.environ.get("WANTED_KEY", "no key") not in " ".join(words)
print("benchmark_args", words, os.environ.get("OPENAI_API_KEY") == os.environ.get("WANTED_KEY"), flush=True)
sys.stderr.write("\\r 67%|######6   | 2/3 [00:01<00:00,  1.9it/s]")
sys.stderr.flush()
"""
ENDS = "open(words[words.index('--output-file') + 1], 'a').write({text!r} + '\\n')"


def engine(folder: Path, source: str, name: str = "benchmark/serving.py") -> tuple[str, ...]:
    """The words of an engine whose `sglang` has a benchmark of `source`."""
    path = folder / "engine" / "sglang" / name
    path.parent.mkdir(parents=True)
    for package in {path.parent, folder / "engine" / "sglang"}:
        (package / "__init__.py").touch()
    path.write_text(source)
    return ("env", f"PYTHONPATH={folder / 'engine'}", sys.executable, "-m", "sglang.launch_server")


def model(folder: Path) -> str:
    (folder / "model").mkdir()
    (folder / "model" / "tokenizer.json").touch()
    return str(folder / "model")


def generator(folder: Path, source: str, keys: ServerKeys = NO_KEYS) -> SglangLoad:
    return SglangLoad(
        found_benchmark(engine(folder, source), model(folder)),
        "http://127.0.0.1:1",
        keys=keys,
        log_path=folder / "load.log",
        silence_limit_s=60.0,
    )


def test_timings_are_read_from_what_it_wrote_and_know_no_start() -> None:
    timings = timings_of(RESULT, LOAD)
    assert [t.error for t in timings] == ["", "", ""]
    assert [t.ttft_s for t in timings] == RESULT["ttfts"]
    assert [(t.prompt_tokens, t.output_tokens, t.first_chunk_tokens) for t in timings] == [(8, 4, 1)] * 3
    assert timings[0].tpot_s == pytest.approx(sum(RESULT["itls"][0]) / 3)
    assert {t.is_start_known for t in timings} == {False}


def test_a_rung_of_it_has_the_throughput_that_it_says_itself_and_no_steady_window() -> None:
    rung = Rung.of(2, timings_of(RESULT, LOAD), duration_s=RESULT["duration"])
    assert rung.output_tok_per_s == rung.run_output_tok_per_s == pytest.approx(RESULT["output_throughput"])
    assert rung.ttft_s.mean == pytest.approx(RESULT["mean_ttft_ms"] / 1e3)
    assert rung.tpot_s.mean == pytest.approx(RESULT["mean_tpot_ms"] / 1e3, rel=0.02)
    assert rung.window_s is None
    assert rung.doubts == ()


def test_tokens_that_came_with_the_first_chunk_count_as_its() -> None:
    changed = {**RESULT, "itls": [[0.01, 0.01], *RESULT["itls"][1:]]}
    assert timings_of(changed, LOAD)[0].first_chunk_tokens == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"errors": ["Traceback ...\nConnectionResetError: gone\n", "", ""]}, "ConnectionResetError: gone"),
        ({"output_lens": [3, 4, 4]}, "ended after 3 of 4 tokens"),
        ({"ttfts": [0.0, 0.1, 0.1]}, "no text came back"),
    ],
)
def test_a_request_that_did_not_end_as_asked_is_a_failure_and_never_throughput(
    changes: dict[str, Any], said: str
) -> None:
    first, *others = timings_of({**RESULT, **changes}, LOAD)
    assert said in first.error
    assert first.output_tokens == 0
    assert [t.error for t in others] == ["", ""]


def test_prompt_tokens_from_the_cache_are_told_where_it_reports_them() -> None:
    rung = Rung.of(2, timings_of({**RESULT, "cached_tokens": [0, 5, 0]}, LOAD), duration_s=1.0)
    assert rung.doubts == ("5 prompt tokens came from a warm prefix cache",)


def test_what_it_wrote_of_another_load_is_not_taken() -> None:
    with pytest.raises(ValueError, match="3 requests instead of 4"):
        timings_of(RESULT, Load(concurrency=2, num_requests=4, input_tokens=8, output_tokens=4, vocab_size=9, seed=0))


def test_it_gets_the_servers_key_by_its_environment_and_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of somebody else")
    monkeypatch.setenv("no_proxy", "example.org")
    with_key = environment("http://10.0.0.7:30000", ServerKeys(api_key=KEY))
    assert (with_key["OPENAI_API_KEY"], with_key["API_KEY"]) == (KEY, "")
    assert with_key["no_proxy"] == "example.org,10.0.0.7"
    assert environment("http://[::1]:30000", NO_KEYS)["OPENAI_API_KEY"] == ""


def test_a_run_gives_timings_progress_and_its_own_duration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Larger than a pipe holds at once.
    result = {**RESULT, "generated_texts": ["w" * 300_000], "server_info": {"api_key": KEY}}
    monkeypatch.setenv("WANTED_KEY", KEY)
    load = generator(
        tmp_path, WRITES + "time.sleep(0.5)\n" + ENDS.format(text=json.dumps(result)), ServerKeys(api_key=KEY)
    )
    done: list[int] = []
    timings = asyncio.run(load.run(LOAD, on_done=done.append))
    assert timings == timings_of(RESULT, LOAD)
    assert load.duration_s == RESULT["duration"]
    assert done == [2]
    log = (tmp_path / "load.log").read_text()
    assert "'--max-concurrency', '2'" in log
    assert "] True\n" in log
    assert [path for path in tmp_path.rglob("*.log") if KEY in path.read_text()] == []


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise SystemExit('no such server')", "ended with 1: no such server"),
        (WRITES + ENDS.format(text="{}"), "cannot be read (KeyError: 'duration')"),
        (WRITES, "cannot be read"),
    ],
)
def test_a_generator_that_fails_says_so_and_is_no_measurement(tmp_path: Path, source: str, said: str) -> None:
    with pytest.raises(GeneratorError) as failed:
        asyncio.run(generator(tmp_path, source).run(LOAD))
    assert said in str(failed.value)


def test_a_run_that_is_given_up_leaves_no_process(tmp_path: Path) -> None:
    load = generator(tmp_path, "import os, time\nprint('pid', os.getpid(), flush=True)\ntime.sleep(600)")
    log = tmp_path / "load.log"

    async def given_up() -> int:
        run = asyncio.create_task(load.run(LOAD))
        await eventually(lambda: log.exists() and log.read_text().endswith("\n"))
        pid = int(log.read_text().split()[-1])
        assert psutil.pid_exists(pid)
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        assert run.cancelled()
        return pid

    assert not psutil.pid_exists(asyncio.run(given_up()))


async def eventually(claim: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not claim():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def test_a_release_before_the_move_is_driven_by_its_old_name_without_what_it_lacks(tmp_path: Path) -> None:
    found = found_benchmark(engine(tmp_path, "", "bench_serving.py"), model(tmp_path))
    assert (found.module, found.reports_cache) == ("sglang.bench_serving", False)
    assert "--cache-report" not in found.words("http://127.0.0.1:1", LOAD, Path("out"))


def test_the_new_name_goes_before_the_old_one(tmp_path: Path) -> None:
    program = engine(tmp_path, "parser.add_argument('--cache-report')")
    (tmp_path / "engine" / "sglang" / "bench_serving.py").touch()
    found = found_benchmark(program, model(tmp_path))
    assert (found.module, found.reports_cache) == ("sglang.benchmark.serving", True)
    assert "--cache-report" in found.words("http://127.0.0.1:1", LOAD, Path("out"))


HERE = (sys.executable, "-m", "sglang.launch_server")


@pytest.mark.parametrize(
    ("program", "tokenizer", "engine_args", "said"),
    [
        (("docker", "run", "image", "python3", "-m", "sglang.launch_server"), "hub/id", (), "a Python of this machine"),
        (("bash", "-c", "python -m sglang.launch_server"), "hub/id", (), "a Python of this machine"),
        (("/no/python", "-m", "sglang.launch_server"), "hub/id", (), "a Python of this machine"),
        (HERE, "/no/model", (), "there is no tokenizer /no/model on this machine"),
        (HERE, "hub/id", ("--tokenizer-path", "/no/other"), "there is no tokenizer /no/other"),
        (HERE, "hub/id", ("--skip-tokenizer-init",), "a server without tokenizer"),
        (HERE, "", (), "a server without tokenizer"),
    ],
)
def test_what_it_cannot_be_run_for_is_refused_in_a_line(
    program: tuple[str, ...], tokenizer: str, engine_args: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UserError) as refused:
        found_benchmark(program, tokenizer, engine_args)
    assert said in str(refused.value)
    assert str(refused.value).startswith("--load-generator sglang")
    assert "\n" not in str(refused.value)


def test_a_model_without_tokenizer_and_a_release_without_benchmark_are_refused(tmp_path: Path) -> None:
    program = engine(tmp_path, "", "launch_server.py")
    with pytest.raises(UserError, match="holds no tokenizer"):
        found_benchmark(program, str(tmp_path))
    with pytest.raises(UserError, match="has neither sglang"):
        found_benchmark(program, model(tmp_path))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"trace": Path("t.jsonl")}, "no --trace"),
        ({"prompts": Path("p.txt")}, "no --prompts"),
        ({"request_rate": "1"}, "no --request-rate"),
        ({"noise": 0.1}, "no --noise"),
        ({"output_tokens": "8:16"}, "no range of lengths"),
        ({"generator": "sglagn"}, "sglang"),
    ],
)
def test_loads_that_it_cannot_send_are_refused_by_name(words: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_generator(LoadWords(**{"generator": "sglang", **words}))


def test_it_needs_a_real_engine_on_this_machine() -> None:
    cluster = parse_cluster("8xh200")
    story = simulated(cluster, NEWEST, because="x", clock_scale=1.0)
    with pytest.raises(UserError, match="needs the real engine"):
        sent_by("sglang", LoadMix(), story, "hub/id", is_elsewhere=False)
    real = Engine(name="sglang", version=NEWEST, program=HERE)
    with pytest.raises(UserError, match="runs on this machine"):
        sent_by("sglang", LoadMix(), real, "hub/id", is_elsewhere=True)
    assert sent_by("own", LoadMix(), story, "hub/id", is_elsewhere=True) == LoadMix()


def test_a_load_says_who_sends_it_and_what_its_throughput_is_of() -> None:
    by_sglang = SglangBenchmark(
        python=("python3",), module="sglang.benchmark.serving", tokenizer="x", reports_cache=True
    )
    mix = LoadMix(by_sglang=by_sglang)
    assert load_told(Workload(), mix).endswith("out, sent by sglang.benchmark.serving (throughput of the whole run)")
    assert mix.identity["generator"] == "sglang"
    assert "generator" not in LoadMix().identity
    assert (mix.figures, LoadMix().figures) == ("whole run, by SGLang's benchmark", "steady window")
