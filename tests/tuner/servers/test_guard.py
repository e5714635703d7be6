"""The guard by itself: a program of the standard library that holds one server."""

from __future__ import annotations

import ast
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.waiting import eventually
from tuner.servers.guarded import GUARD_SOURCE

SLEEP = "import time; print('up', flush=True); time.sleep(600)"


class Guarded:
    """A guard, its output, and what it says, without a launcher around it."""

    def __init__(self, code: str, folder: Path, **order: object) -> None:
        self.out = folder / "out"
        self._said = folder / "said"
        with self.out.open("wb") as out, self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-c", GUARD_SOURCE],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=said,
                start_new_session=True,
            )
        usual = {"mark": "m", "command": [sys.executable, "-c", code], "env": {}, "host": "127.0.0.1", "port": 0}
        assert self.process.stdin is not None
        self.stdin = self.process.stdin
        self.stdin.write(json.dumps({**usual, "grace_s": 5.0, "silence_s": 0.0, **order}).encode() + b"\n")
        self.stdin.flush()

    def reports(self) -> list[dict[str, int | str]]:
        return [json.loads(line[2:]) for line in self._said.read_text().splitlines() if line.startswith("m ")]

    def server(self) -> psutil.Process:
        assert eventually(lambda: "up" in self.out.read_text()), self._said.read_text()
        return psutil.Process(int(self.reports()[0]["started"]))

    def end(self) -> None:
        with suppress(psutil.Error):
            for process in psutil.Process(self.process.pid).children(recursive=True):
                process.kill()
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Callable[..., Guarded]]:
    made: list[Guarded] = []

    def make(code: str = SLEEP, **order: object) -> Guarded:
        made.append(Guarded(code, tmp_path, **order))
        return made[-1]

    yield make
    for each in made:
        each.end()


def gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_it_is_understood_by_the_oldest_python_and_needs_its_standard_library_alone() -> None:
    tree = ast.parse(GUARD_SOURCE, feature_version=(3, 8))
    imported = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported <= sys.stdlib_module_names


def test_its_reports_say_how_the_server_began_and_ended(guarded: Callable[..., Guarded]) -> None:
    one = guarded("import sys; sys.exit(5)")
    assert one.process.wait(60) == 5
    started, ended = one.reports()
    assert isinstance(started["started"], int)
    assert ended == {"exit": 5}


def test_the_end_of_its_input_ends_the_server(guarded: Callable[..., Guarded]) -> None:
    one = guarded()
    server = one.server()
    one.stdin.close()
    assert one.process.wait(60) == 143
    assert gone(server)


def test_silence_ends_the_server_and_a_byte_now_and_then_does_not(guarded: Callable[..., Guarded]) -> None:
    silence_s = 3.0
    one = guarded(silence_s=silence_s)
    server = one.server()
    began_s = time.monotonic()
    while time.monotonic() - began_s < 2 * silence_s:
        one.stdin.write(b"\n")
        one.stdin.flush()
        time.sleep(silence_s / 30)
    assert one.process.poll() is None
    assert one.process.wait(60) == 143
    assert gone(server)


def test_without_a_limit_silence_is_no_reason(guarded: Callable[..., Guarded]) -> None:
    """A tuner whose machine sleeps, or that is stopped by a signal, comes back to a server that still runs."""
    quiet, limited = guarded(), guarded(silence_s=0.5)
    assert limited.process.wait(60) == 143
    assert quiet.process.poll() is None


def test_sigterm_of_the_guard_ends_the_server_and_other_signals_of_a_terminal_do_not(
    guarded: Callable[..., Guarded],
) -> None:
    one = guarded()
    server = one.server()
    for harmless in (signal.SIGINT, signal.SIGHUP):
        one.process.send_signal(harmless)
    one.stdin.write(b"\n")
    one.stdin.flush()
    assert not gone(server)
    one.process.terminate()
    assert one.process.wait(60) == 143
    assert gone(server)


def test_a_server_whose_guard_is_killed_dies_with_it(guarded: Callable[..., Guarded]) -> None:
    one = guarded()
    server = one.server()
    one.process.kill()
    assert eventually(lambda: gone(server))


def test_input_that_ends_before_the_order_starts_nothing(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-I", "-c", GUARD_SOURCE], input=b'{"mark": "m"', capture_output=True, check=False
    )
    assert answer.returncode == 1
    assert answer.stdout == b""
    assert b"no order came" in answer.stderr


def test_what_the_server_leaves_when_it_is_asked_to_end_has_the_rest_of_the_grace(
    guarded: Callable[..., Guarded], tmp_path: Path
) -> None:
    """A shell that is ended leaves what it ran: that is asked too, and not killed at once."""
    child = (
        "import pathlib, signal, sys, time\n"
        f"signal.signal(15, lambda *_: (pathlib.Path({str(tmp_path / 'drained')!r}).touch(), sys.exit(0)))\n"
        "print('up', flush=True); time.sleep(600)"
    )
    one = guarded(command=["sh", "-c", f'{sys.executable} -c "$1"; exit 0', "sh", child], grace_s=60.0)
    one.server()
    one.stdin.close()
    assert one.process.wait(60) == 143
    assert (tmp_path / "drained").exists()


def test_a_port_that_is_not_to_be_looked_at_is_none(guarded: Callable[..., Guarded]) -> None:
    assert guarded(port=0).server().is_running()


@pytest.mark.parametrize(
    ("given", "spared"),
    [
        ({"HTTP_PROXY": "http://proxy:3128"}, "127.0.0.1,localhost"),
        ({"https_proxy": "http://proxy:3128", "NO_PROXY": ".example.org"}, ".example.org,127.0.0.1,localhost"),
        ({"all_proxy": "socks5://proxy", "no_proxy": "10.0.0.1", "NO_PROXY": "x"}, "10.0.0.1,127.0.0.1,localhost"),
        ({}, None),
    ],
)
def test_a_server_that_has_a_proxy_for_the_world_outside_asks_itself_without_it(
    guarded: Callable[..., Guarded], given: dict[str, str], spared: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    tell = "import json, os; print(json.dumps([os.environ.get('no_proxy'), os.environ.get('NO_PROXY')]))"
    one = guarded(tell, env=given)
    one.process.wait(60)
    assert json.loads(one.out.read_text()) == [spared, spared]


def test_zombies_do_not_pile_up_under_it(guarded: Callable[..., Guarded]) -> None:
    one = guarded(
        "import os, time\n"
        "for _ in range(20):\n"
        "    if os.fork() == 0:\n"
        "        os._exit(0 if os.fork() else 0)\n"
        "    os.wait()\n"
        "print('up', flush=True); time.sleep(600)"
    )
    server = one.server()
    children = psutil.Process(one.process.pid).children
    assert eventually(lambda: [p.pid for p in children()] == [server.pid])
