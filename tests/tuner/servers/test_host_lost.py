"""A connection to a server's host that is cut, at every place where it can be: nothing is left there, and no exit code
is made up. After such a cut what runs there goes on by itself: it is the guard there that ends it.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from search_spaces.layout import Layout
from search_spaces.sglang.versions import NEWEST
from search_spaces.workload import Workload
from tests.processes import alive_with
from tests.services.ssh_server import Sshd
from tests.waiting import eventually
from tuner.engine import Engine
from tuner.fault import Fault
from tuner.outcome import Environment
from tuner.patience import Patience
from tuner.servers.guarded import GuardedLauncher, GuardedServer
from tuner.servers.orphans import end_orphans
from tuner.servers.protocol import Launch
from tuner.servers.ssh_host import SshHost
from tuner.trial import Trial
from tuner.watcher import Watcher

pytestmark = pytest.mark.services

# Ignores SIGTERM, and so does its daemon in a session of its own.
SERVER = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
else:
    os.wait()
print('up', flush=True)
time.sleep(600)
"""
SILENCE_S = 10.0
IMPATIENT = ["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """token: in the words of each process of the server."""

    server: GuardedServer
    host: SshHost
    token: str

    def alive(self) -> list[psutil.Process]:
        return alive_with(self.token)


@pytest.fixture
def started(sshd: Sshd, tmp_path: Path) -> Iterator[Started]:
    host = SshHost(sshd.destination, [*IMPATIENT, *sshd.options])
    token = f"token-{secrets.token_hex(8)}"
    launcher = GuardedLauncher(host, silence_s=SILENCE_S)
    launch = Launch(
        command=(sys.executable, "-c", SERVER, token),
        host="127.0.0.1",
        port=launcher.free_port(),
        log_path=tmp_path / "server.log",
        grace_s=0.5,
    )
    server = launcher.start(launch)
    one = Started(server=server, host=host, token=token)
    assert eventually(lambda: launch.log_path.read_text().count("up") == 2)
    assert len(one.alive()) == 2
    yield one
    server.stop()
    host.close()
    for process in one.alive():
        process.kill()


def master_of(host: SshHost) -> psutil.Process:
    connection = host._connection
    assert connection is not None
    (ssh,) = [p for p in psutil.Process(connection.pid).children() if p.name() == "ssh"]
    return ssh


def sessions_of(started: Started, sshd: Sshd) -> list[psutil.Process]:
    """The processes of sshd between it and the guard."""
    between, process = [], psutil.Process(started.server.server_pid)
    while process.pid != sshd.pid:
        process = process.parent() or pytest.fail("not under sshd")
        if process.name() in {"sshd", "sshd-session"} and process.pid != sshd.pid:
            between.append(process)
    return between


def assert_lost(started: Started) -> None:
    server = started.server
    assert eventually(server.lost)
    assert server.lost().startswith(f"the connection to {started.host.name} was lost")
    assert server.exit_code() is None
    assert eventually(lambda: not started.alive())
    server.stop()
    server.stop()
    assert server.exit_code() is None
    assert server.lost()


def test_the_client_of_the_server_is_killed(started: Started) -> None:
    os.kill(started.server.pid, signal.SIGKILL)
    assert_lost(started)


def test_the_shared_connection_is_killed(started: Started) -> None:
    master_of(started.host).kill()
    assert_lost(started)
    assert started.host.run(["true"]).code == 0


def test_the_session_of_sshd_is_killed(started: Started, sshd: Sshd) -> None:
    for process in sessions_of(started, sshd):
        process.kill()
    assert_lost(started)


def test_the_session_of_sshd_stands_still_as_behind_a_cut_network(started: Started, sshd: Sshd) -> None:
    """Nothing is closed there, so that only the tuner's silence tells the guard."""
    sessions = sessions_of(started, sshd)
    for process in sessions:
        process.suspend()
    try:
        assert_lost(started)
    finally:
        for process in sessions:
            with suppress(psutil.Error):
                process.resume()


def test_the_guard_there_is_killed_and_what_it_held_is_ended_by_stop(started: Started) -> None:
    psutil.Process(started.server.server_pid).parent().kill()  # type: ignore[union-attr]
    assert eventually(started.server.lost)
    assert started.server.exit_code() is None
    started.server.stop()
    assert not started.alive()


def test_what_a_killed_guard_of_a_killed_tuner_leaves_is_ended_at_the_next_start(sshd: Sshd, tmp_path: Path) -> None:
    token = f"token-{secrets.token_hex(8)}"
    tuner = (
        "import os, sys, time\nfrom pathlib import Path\nimport psutil\n"
        "from tuner.servers.guarded import GuardedLauncher\nfrom tuner.servers.protocol import Launch\n"
        "from tuner.servers.ssh_host import SshHost\n"
        f"launcher = GuardedLauncher(SshHost({sshd.destination!r}, {sshd.options!r}))\n"
        f"launch = Launch(command=({sys.executable!r}, '-c', {SERVER!r}, {token!r}), host='127.0.0.1',\n"
        f"    port=launcher.free_port(), log_path=Path({str(tmp_path / 'log')!r}))\n"
        "server = launcher.start(launch)\n"
        "while launch.log_path.read_text().count('up') < 2: time.sleep(0.05)\n"
        "psutil.Process(server.server_pid).parent().kill()\nos.kill(os.getpid(), 9)\n"
    )
    assert psutil.Popen([sys.executable, "-c", tuner]).wait(120) == -9
    host = SshHost(sshd.destination, sshd.options)
    try:
        end_orphans(host)
        assert eventually(lambda: not alive_with(token))
    finally:
        host.close()
        for process in alive_with(token):
            process.kill()


def test_a_trial_whose_connection_is_cut_ends_by_its_environment(sshd: Sshd, tmp_path: Path) -> None:
    host = SshHost(sshd.destination, sshd.options)
    launcher = GuardedLauncher(host)
    port = launcher.free_port()

    class Cuts(Watcher):
        def on_stage(self, stage: str) -> None:
            master_of(host).kill()

    trial = Trial(
        engine=Engine(name="sglang", version=NEWEST, program=(sys.executable,)),
        launcher=launcher,
        workload=Workload(input_tokens=16, output_tokens=16, concurrencies=(1,)),
        vocab_size=32000,
        seed=0,
        patience=Patience(starting_s=600.0, loaded_s=60.0),
    )
    log_path = tmp_path / "server.log"
    launch = Launch(command=(sys.executable, "-c", SERVER), host="127.0.0.1", port=port, log_path=log_path, grace_s=0.5)
    try:
        outcome = trial.run(launch, Layout(tp_size=1), Cuts()).outcome
    finally:
        host.close()
    assert isinstance(outcome, Environment)
    assert outcome.cause.startswith(f"the connection to {sshd.destination} was lost")
    assert outcome.fault is Fault.NETWORK
    assert outcome.exit_code is None
