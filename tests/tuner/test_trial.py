"""What a trial makes of servers that are not worth a load, or are gone before it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import psutil

from search_spaces.layout import Layout
from search_spaces.sglang.versions import NEWEST
from search_spaces.verdict import Stage
from search_spaces.workload import Workload
from tuner.engine import Engine
from tuner.fault import Fault
from tuner.outcome import Direction, Environment, Hung, OutOfMemory
from tuner.patience import Patience
from tuner.servers.local import LocalLauncher
from tuner.servers.protocol import Launch
from tuner.trial import Trial, TrialResult
from tuner.watcher import Watcher

SERVER = Path(__file__).parent / "small_server.py"
LOAD = Workload(input_tokens=1024, output_tokens=512, concurrencies=(1,))


def run(tmp_path: Path, script: dict[str, object], starting_s: float = 60.0) -> TrialResult:
    launcher = LocalLauncher()
    port = launcher.free_port()
    engine = Engine(name="sglang", version=NEWEST, program=(sys.executable,))
    trial = Trial(
        engine=engine,
        launcher=launcher,
        workload=LOAD,
        vocab_size=32000,
        seed=0,
        patience=Patience(starting_s=starting_s, loaded_s=60.0),
    )
    launch = Launch(
        command=(sys.executable, str(SERVER), str(port), json.dumps(script)),
        host="127.0.0.1",
        port=port,
        log_path=tmp_path / "server.log",
    )
    result = trial.run(launch, Layout(tp_size=8), Watcher())
    lines = [each.info["cmdline"] or () for each in psutil.process_iter(["cmdline"])]
    assert not any(str(SERVER) in line and str(port) in line for line in lines)
    return result


def test_a_server_that_dies_is_not_waited_for(tmp_path: Path) -> None:
    """https://github.com/openshift-psap/auto-tuning-vllm/issues/68: the whole time-out was waited for."""
    began_s = time.monotonic()
    result = run(tmp_path, {"dies": "Traceback (most recent call last):\nValueError: no such thing"}, starting_s=1800.0)
    assert time.monotonic() - began_s < 900.0
    assert not isinstance(result.outcome, Hung)
    assert "no such thing" in result.outcome.summary


def test_a_server_that_answers_503_while_kernels_compile_is_not_dead(tmp_path: Path) -> None:
    """https://github.com/sgl-project/sglang/issues/10856: what answers in the end is looked at, here another layout."""
    outcome = run(tmp_path, {"busy": 20, "info": {"tp_size": 4}}).outcome
    assert isinstance(outcome, Environment)
    assert outcome.cause == "the server that answers says tp_size=4, but tp_size=8 was launched"


def test_a_server_without_room_for_one_request_is_no_fast_one(tmp_path: Path) -> None:
    """https://github.com/sgl-project/sglang/pull/36583: every request was refused by a KV cache of 1,741 tokens."""
    outcome = run(tmp_path, {"info": {"tp_size": 8, "max_total_num_tokens": 1500}}).outcome
    assert isinstance(outcome, OutOfMemory)
    assert (outcome.stage, outcome.fault) == (Stage.KV_POOL, Fault.KV_CACHE)
    assert outcome.direction is Direction.RAISE_FRACTION
    assert outcome.cause == "the KV cache has 1500 tokens, and one request of this load takes 1536"


def test_a_key_that_is_asked_for_and_not_known_is_no_fault_of_the_layout(tmp_path: Path) -> None:
    outcome = run(tmp_path, {"info": {"tp_size": 8}, "wants": "Bearer of a file that only the engine reads"}).outcome
    assert isinstance(outcome, Environment)
    assert "a key (--api-key) that is not known here" in outcome.cause
