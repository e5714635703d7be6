"""The contract with the real SGLang on the CPU: it starts, is seen ready, answers, says why it ends, and leaves nothing."""

from __future__ import annotations

import os
import secrets
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import requests

from tests.end_to_end.conftest import TinyCheckpoint, engine_python, tiny_checkpoint
from tests.engine_support.environment import ARGUMENTS, ENVIRONMENT
from tests.engine_support.server import START_LIMIT_S, STOP_LIMIT_S, engine_server
from tests.tuner.servers.contract_place import DEATH_SEEN_S, killed_once_attached
from tests.tuner.servers.implementations import IMPLEMENTATIONS, every_implementation
from tests.waiting import eventually
from tuner.server_control import is_ready, server_info
from tuner.servers.protocol import Launch, LaunchError, Server

__all__ = ["engine_python", "tiny_checkpoint"]

pytestmark = pytest.mark.engine
WAYS = [pytest.param(name, marks=IMPLEMENTATIONS[name].marks) for name in ("docker", "local", "ssh")]


def started(
    way: str, request: pytest.FixtureRequest, python: str, checkpoint: TinyCheckpoint, log: Path, *flags: str
) -> tuple[Server, str]:
    """The server, and a word that stands in the environment of all its processes."""
    launcher = IMPLEMENTATIONS[way].launcher(request)
    port, word = launcher.free_port(), secrets.token_hex(8)
    command = (python, "-m", "sglang.launch_server", "--model-path", str(checkpoint.folder), *ARGUMENTS, *flags)
    launch = Launch(
        command=IMPLEMENTATIONS[way].words((*command, "--host", "127.0.0.1", "--port", str(port))),
        host="127.0.0.1",
        port=port,
        log_path=log,
        env={**ENVIRONMENT, "TEST_WORD": word},
        grace_s=float(STOP_LIMIT_S),
    )
    server = launcher.start(launch)
    request.addfinalizer(server.stop)
    return server, word


def sessions_of(word: str) -> set[int]:
    """Of the server's processes. Its ranks have a title where their environment was (setproctitle)."""
    found = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if process.environ().get("TEST_WORD") == word:
                found.add(os.getsid(process.pid))
    return found


def alive(sessions: set[int]) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) in sessions and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def answered_ids(server: Server, checkpoint: TinyCheckpoint) -> list[int]:
    sampling = {"max_new_tokens": len(checkpoint.output_ids), "temperature": 0, "ignore_eos": True}
    body = {"input_ids": checkpoint.input_ids, "sampling_params": sampling}
    ids: list[int] = requests.post(f"{server.base_url}/generate", json=body, timeout=STOP_LIMIT_S).json()["output_ids"]
    return ids


def tail(server: Server) -> str:
    return f"{server.exit_code()} {server.lost()} {server.launch.log_path.read_text(errors='replace')[-3000:]}"


@pytest.mark.parametrize("way", WAYS)
def test_two_ranks_are_seen_ready_answer_as_transformers_does_and_end_in_order(
    way: str, request: pytest.FixtureRequest, engine_python: str, tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    flags = ("--tp-size", "2", "--ep-size", "2")
    server, word = started(way, request, engine_python, tiny_checkpoint, tmp_path / "server.log", *flags)
    ended = lambda: server.exit_code() is not None or server.lost()  # noqa: E731
    assert eventually(lambda: is_ready(server.base_url) or ended(), START_LIMIT_S)
    assert not ended(), tail(server)
    assert server_info(server.base_url)["ep_size"] == 2
    assert answered_ids(server, tiny_checkpoint) == tiny_checkpoint.output_ids
    sessions = sessions_of(word)
    assert len(alive(sessions)) > 2
    server.stop()
    assert (server.exit_code(), server.lost()) == (0, ""), tail(server)
    assert not alive(sessions)
    assert not sessions_of(word)


@pytest.mark.parametrize("way", WAYS)
def test_what_the_engine_refuses_ends_with_its_own_code_and_words(
    way: str, request: pytest.FixtureRequest, engine_python: str, tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    flags = ("--tp-size", "2", "--ep-size", "4")
    server, word = started(way, request, engine_python, tiny_checkpoint, tmp_path / "server.log", *flags)
    assert eventually(lambda: server.exit_code() is not None or server.lost(), START_LIMIT_S)
    assert server.exit_code() == 1, tail(server)
    assert "parallel topology is inconsistent" in server.launch.log_path.read_text()
    assert not sessions_of(word)


@pytest.mark.parametrize("way", every_implementation(starts=False))
def test_one_that_somebody_else_started_answers_outlives_its_tuners_and_its_death_is_known_within_a_second(
    way: str, request: pytest.FixtureRequest, engine_python: str, tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    attaching = IMPLEMENTATIONS[way]
    launcher = attaching.launcher(request)
    log = tmp_path / "server.log"
    with engine_server(engine_python, tiny_checkpoint.folder, "--tp-size", "2", "--ep-size", "2", log=log) as engine:
        launch = Launch(command=(), host="127.0.0.1", port=engine.port, log_path=log)
        with pytest.raises(LaunchError, match="nothing answers at"):
            launcher.start(launch)  # nothing listens there before its weights are loaded
        engine.wait_until_ready()
        let_go = launcher.start(launch)
        let_go.stop()
        let_go.stop()
        killed_once_attached(attaching.source(request), engine.port)
        server = launcher.start(launch)
        request.addfinalizer(server.stop)
        assert is_ready(server.base_url)
        assert server_info(server.base_url)["ep_size"] == 2
        assert answered_ids(server, tiny_checkpoint) == tiny_checkpoint.output_ids
        assert [(each.exit_code(), each.lost()) for each in (let_go, server)] == [(None, "")] * 2
        engine.process.kill()
        engine.process.wait()
        began_s = time.monotonic()
        assert eventually(server.lost, STOP_LIMIT_S)
        assert time.monotonic() - began_s < DEATH_SEEN_S
        assert server.lost() == f"{server.base_url} no longer answers: Connection refused"
        assert server.exit_code() is None
