"""What every way of starting a server keeps to, run for each of them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tuner.servers.local import OWNER_VARIABLE, LocalLauncher, end_orphans, port_is_free
from tuner.servers.protocol import Launch, Launcher, LaunchError, Server

LAUNCHERS: dict[str, Callable[[], Launcher]] = {"local": LocalLauncher}


@pytest.fixture(params=sorted(LAUNCHERS))
def launcher(request: pytest.FixtureRequest) -> Launcher:
    return LAUNCHERS[request.param]()


@pytest.fixture
def start(launcher: Launcher, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def start(code: str, *, grace_s: float = 5.0, **env: str) -> Server:
        launch = Launch(
            command=(sys.executable, "-c", code),
            host="127.0.0.1",
            port=launcher.free_port(),
            log_path=tmp_path / f"{len(started)}" / "server.log",
            grace_s=grace_s,
            env=env,
        )
        started.append(launcher.start(launch))
        return started[-1]

    yield start
    for server in started:
        server.stop()


def eventually(claim: Callable[[], bool], limit_s: float = 30.0) -> bool:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if claim():
            return True
        time.sleep(0.02)
    return claim()


def log_of(server: Server) -> str:
    path = server.launch.log_path
    return path.read_text() if path.exists() else ""


def runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


SLEEP = "import time; print('up', flush=True); time.sleep(600)"
# A server that ignores SIGTERM, with a child in a session of its own that does so too.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(
    [sys.executable, '-c', 'import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)'],
    start_new_session=True)
print('pids', os.getpid(), child.pid, flush=True)
time.sleep(600)
"""


def pids_in_log(server: Server) -> list[int]:
    assert eventually(lambda: "pids" in log_of(server))
    return [int(word) for word in log_of(server).split("pids")[1].split()[:2]]


def test_output_goes_to_the_log_and_the_exit_code_comes_back(start: Callable[..., Server]) -> None:
    server = start("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")
    assert eventually(lambda: server.exit_code() is not None)
    assert server.exit_code() == 7
    assert set(log_of(server).split()) == {"out", "err"}


def test_a_server_that_kills_itself_is_seen_as_128_plus_the_signal(start: Callable[..., Server]) -> None:
    server = start("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert eventually(lambda: server.exit_code() is not None)
    assert server.exit_code() == 137


def test_it_runs_until_it_is_stopped_and_stopping_twice_is_safe(start: Callable[..., Server]) -> None:
    server = start(SLEEP)
    assert eventually(lambda: "up" in log_of(server))
    assert server.exit_code() is None
    server.stop()
    assert server.exit_code() == 143
    server.stop()


def test_a_server_asked_to_end_may_end_gracefully(start: Callable[..., Server]) -> None:
    server = start(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('draining', flush=True), sys.exit(0)))\n"
        "print('up', flush=True); time.sleep(600)"
    )
    assert eventually(lambda: "up" in log_of(server))
    server.stop()
    assert server.exit_code() == 0
    assert "draining" in log_of(server)


def test_the_whole_tree_is_gone_even_children_that_left_the_group_and_ignore_signals(
    start: Callable[..., Server],
) -> None:
    server = start(STUBBORN, grace_s=0.2)
    pids = pids_in_log(server)
    server.stop()
    assert not any(runs(pid) for pid in pids)
    assert server.exit_code() == 137


def test_a_child_left_behind_by_a_dead_server_is_ended(start: Callable[..., Server]) -> None:
    server = start(
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "print('pids', os.getpid(), child.pid, flush=True); os._exit(3)"
    )
    assert eventually(lambda: server.exit_code() is not None)
    assert server.exit_code() == 3
    assert not any(runs(pid) for pid in pids_in_log(server))


def test_the_environment_given_is_added_to_ours(start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INHERITED", "yes")
    server = start("import os; print(os.environ['INHERITED'], os.environ['ADDED'])", ADDED="too")
    assert eventually(lambda: server.exit_code() is not None)
    assert log_of(server).split() == ["yes", "too"]


def test_a_program_that_does_not_exist_is_a_launch_error(launcher: Launcher, tmp_path: Path) -> None:
    launch = Launch(command=("no-such-program",), host="127.0.0.1", port=1, log_path=tmp_path / "log")
    with pytest.raises(LaunchError, match="no-such-program"):
        launcher.start(launch)


def test_a_port_in_use_and_a_log_that_cannot_be_written_are_launch_errors(launcher: Launcher, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = Launch(
            command=(sys.executable, "-c", ""),
            host="127.0.0.1",
            port=taken.getsockname()[1],
            log_path=tmp_path / "log",
        )
        with pytest.raises(LaunchError, match="in use"):
            launcher.start(busy)
    (tmp_path / "file").write_text("")
    nowhere = Launch(
        command=(sys.executable, "-c", ""),
        host="127.0.0.1",
        port=launcher.free_port(),
        log_path=tmp_path / "file" / "log",
    )
    with pytest.raises(LaunchError, match="cannot start"):
        launcher.start(nowhere)


def test_a_free_port_can_be_bound(launcher: Launcher) -> None:
    assert port_is_free("127.0.0.1", launcher.free_port())


KILLED_TUNER = """
import sys
from pathlib import Path
from tuner.servers.local import LocalLauncher
from tuner.servers.protocol import Launch
server = LocalLauncher().start(Launch(
    command=(sys.executable, '-c', {code!r}), host='127.0.0.1', port=LocalLauncher().free_port(), log_path=Path({log!r}), grace_s=0.2))
print(server.pid, flush=True)
import time; time.sleep(600)
"""


def test_a_tuner_killed_by_sigkill_leaves_no_server(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    tuner = subprocess.Popen(
        [sys.executable, "-c", KILLED_TUNER.format(code=STUBBORN, log=str(log))], stdout=subprocess.PIPE, text=True
    )
    try:
        assert tuner.stdout is not None
        guard_pid = int(tuner.stdout.readline())
        assert eventually(lambda: log.exists() and "pids" in log.read_text())
        pids = [int(word) for word in log.read_text().split("pids")[1].split()[:2]]
    finally:
        tuner.send_signal(signal.SIGKILL)
        tuner.communicate()
    assert eventually(lambda: not any(runs(pid) for pid in (guard_pid, *pids)))


def test_a_server_whose_guard_is_killed_dies_with_it(start: Callable[..., Server]) -> None:
    server = start(SLEEP)
    assert eventually(lambda: "up" in log_of(server))
    children = psutil.Process(server.pid).children(recursive=True)  # type: ignore[attr-defined]
    os.kill(server.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    assert children
    assert eventually(lambda: not any(runs(child.pid) for child in children))


def orphan(mark: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={**os.environ, OWNER_VARIABLE: mark},
        start_new_session=True,
    )


def test_only_processes_of_a_tuner_that_is_gone_are_ended_as_orphans() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    space = Path("/proc/self/ns/pid").readlink()
    gone_mark = f"{gone.pid}:{psutil.Process(gone.pid).create_time():.2f}:{space}"
    gone.wait()
    me = psutil.Process()
    lost, kept = orphan(gone_mark), orphan(f"{me.pid}:{me.create_time():.2f}:{space}")
    try:
        # The mark is readable once the child has replaced its image.
        assert eventually(lambda: psutil.Process(lost.pid).environ().get(OWNER_VARIABLE) == gone_mark)
        assert end_orphans() >= 1
        assert eventually(lambda: not runs(lost.pid))
        assert kept.poll() is None
    finally:
        for process in (lost, kept):
            process.kill()
            process.wait()
