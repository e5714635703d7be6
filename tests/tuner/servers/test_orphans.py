"""What a killed tuner left behind is found by its mark, here and elsewhere, and nothing else is touched."""

from __future__ import annotations

import ast
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psutil
import pytest

from tests.services.ssh_server import Sshd
from tests.waiting import eventually
from tuner.servers.host import Host, LocalHost
from tuner.servers.orphans import (
    _SOURCE,
    OWNER_VARIABLE,
    SERVER_VARIABLE,
    end_orphans,
    end_server,
    may_live,
    owner_mark,
)
from tuner.servers.ssh_host import SshHost


@pytest.fixture(params=["local", pytest.param("ssh", marks=pytest.mark.services)])
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    if request.param == "local":
        yield LocalHost()
        return
    sshd: Sshd = request.getfixturevalue("sshd")
    reached = SshHost(sshd.destination, sshd.options)
    yield reached
    reached.close()


@pytest.fixture
def marked() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    with ExitStack() as ended:

        def start(code: str = "import time; time.sleep(600)", **env: str) -> subprocess.Popen[bytes]:
            process = ended.enter_context(
                subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **env}, start_new_session=True)
            )
            ended.callback(process.kill)
            # The environment is the new one once the child has replaced its image.
            name, value = next(iter(env.items()))
            assert eventually(lambda: psutil.Process(process.pid).environ().get(name) == value)
            return process

        yield start


def mark_of_a_tuner_that_is_gone() -> str:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        started = psutil.Process(gone.pid).create_time()
    _, _, place = owner_mark().split(":", 2)
    return f"{gone.pid}:{started:.2f}:{place}"


def test_only_processes_of_a_tuner_that_is_gone_are_ended(
    host: Host, marked: Callable[..., subprocess.Popen[bytes]]
) -> None:
    lost = marked(**{OWNER_VARIABLE: mark_of_a_tuner_that_is_gone()})
    kept = marked(**{OWNER_VARIABLE: owner_mark()})
    other_machine = marked(**{OWNER_VARIABLE: mark_of_a_tuner_that_is_gone().rpartition(":")[0] + ":elsewhere"})
    end_orphans(host)  # any tuner at work on this machine may have been faster
    assert lost.wait(60) == -9
    assert kept.poll() is None
    assert other_machine.poll() is None


def test_a_mark_that_cannot_be_judged_from_here_is_let_live() -> None:
    pid, started, namespace, machine = owner_mark().split(":")
    assert may_live(owner_mark())
    assert not may_live(f"{pid}:{float(started) - 3600:.2f}:{namespace}:{machine}")
    assert may_live(f"{pid}:{float(started) - 3600:.2f}:1:{machine}")
    assert may_live(f"{pid}:{float(started) - 3600:.2f}:{namespace}:another")


def test_a_server_s_remains_are_waited_for_and_then_killed(
    host: Host, marked: Callable[..., subprocess.Popen[bytes]]
) -> None:
    word, other = secrets.token_hex(8), secrets.token_hex(8)
    stubborn, spared = marked(**{SERVER_VARIABLE: word}), marked(**{SERVER_VARIABLE: other})
    assert end_server(host, word, wait_s=0.3) == 1
    assert stubborn.wait(60) == -9
    assert spared.poll() is None
    assert end_server(host, word, wait_s=0.0) == 0


RETITLED = """
import os, sys
if os.fork():
    import time; time.sleep(600)
else:  # what setproctitle makes of an environment
    os.execve(sys.executable, [sys.executable, '-c', 'import time; print("up", flush=True); time.sleep(600)'], {})
"""


def test_a_process_that_lost_its_environment_is_found_by_its_session(
    host: Host, marked: Callable[..., subprocess.Popen[bytes]]
) -> None:
    word = secrets.token_hex(8)
    parent = marked(RETITLED, **{SERVER_VARIABLE: word})
    assert eventually(lambda: [not c.environ() for c in psutil.Process(parent.pid).children()] == [True])
    (child,) = psutil.Process(parent.pid).children()
    assert end_server(host, word, wait_s=0.0) == 2
    assert eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_the_script_is_understood_by_the_oldest_python() -> None:
    ast.parse(_SOURCE, feature_version=(3, 8))
