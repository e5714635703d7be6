"""What is done for a server's log while the load keeps everybody busy."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.waiting import eventually
from tuner.server_log import KEPT_TAIL_BYTES, ServerLog
from tuner.servers.local import LocalLauncher
from tuner.servers.protocol import Launch
from tuner.watched import Asking, Watched

SECRET = "canary-7f3a"


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    launcher = LocalLauncher()
    launch = Launch(
        command=("sleep", "600"), host="127.0.0.1", port=launcher.free_port(), log_path=tmp_path / "server.log"
    )
    return Watched(server=launcher.start(launch), log=ServerLog(launch.log_path, secrets=(SECRET,)))


def test_a_secret_does_not_stand_in_the_log_until_the_load_is_over(watched: Watched) -> None:
    path = watched.server.launch.log_path
    try:
        with watched.looking():
            with path.open("a") as log:
                log.write(f"api_key='{SECRET}'\n")
            assert eventually(lambda: SECRET not in path.read_text())
            assert "api_key='***********'" in path.read_text()
    finally:
        watched.server.stop()


def test_a_flood_is_given_back_to_the_disk_while_the_load_goes_on(watched: Watched) -> None:
    path = watched.server.launch.log_path
    try:
        with watched.looking(), path.open("ab") as log:
            for _ in range(100):
                log.write(b"x" * 2**20)
            log.flush()

            def is_given_back() -> bool:
                return path.stat().st_blocks * 512 < 3 * KEPT_TAIL_BYTES

            if not eventually(is_given_back, 60.0):
                pytest.skip("this file system gives nothing back from the middle of a file")
            assert path.stat().st_size == 100 * 2**20
    finally:
        watched.server.stop()


def test_a_question_that_is_not_answered_keeps_nobody() -> None:
    may_answer = threading.Event()
    with Asking(may_answer.wait) as asking:
        assert [asking.answer() for _ in range(3)] == [None] * 3
        may_answer.set()
        heard: list[bool] = []
        assert eventually(lambda: bool(heard) or heard.extend(filter(None, [asking.answer()])) or bool(heard))
