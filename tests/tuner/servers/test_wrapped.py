"""Containers as servers: a real small `docker` whose containers are no descendants of who starts them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from search_spaces.verdict import Stage
from tests.waiting import eventually
from tuner.diagnosis import Ended, diagnose
from tuner.outcome import Environment, Outcome, OutOfMemory
from tuner.servers.host import LocalHost
from tuner.servers.local import LocalLauncher
from tuner.servers.orphans import OWNER_VARIABLE
from tuner.servers.protocol import Launch, LaunchError
from tuner.servers.wrapped import ContainerLauncher, ContainerServer, end_container_orphans

SLEEP = "import os, time; print('up', os.getpid(), flush=True); time.sleep(600)"
DEAF = f"import signal; signal.signal(15, signal.SIG_IGN); {SLEEP}"


@pytest.fixture
def start(docker: None, tmp_path: Path) -> Iterator[Callable[..., ContainerServer]]:
    started: list[ContainerServer] = []

    def start(
        code: str, *, options: str = "--network host", image: str = "img", program: str = sys.executable, **env: str
    ) -> ContainerServer:
        launcher = ContainerLauncher(LocalLauncher())
        launch = Launch(
            command=("docker", "run", *options.split(), image, program, "-c", code),
            host="127.0.0.1",
            port=launcher.free_port(),
            log_path=tmp_path / f"{len(started)}" / "server.log",
            grace_s=0.5,
            env=env,
        )
        server = launcher.start(launch)
        assert isinstance(server, ContainerServer)
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop()


def log_of(server: ContainerServer) -> str:
    return server.launch.log_path.read_text()


def inside(server: ContainerServer) -> psutil.Process:
    """The server's process, once it is up."""
    assert eventually(lambda: "up " in log_of(server) and log_of(server).endswith("\n")), log_of(server)
    return psutil.Process(int(log_of(server).split("up ")[1].split()[0]))


def containers() -> list[str]:
    listed = subprocess.run(["docker", "ps", "-aq"], capture_output=True, text=True, check=True)
    return listed.stdout.split()


def client_of(server: ContainerServer) -> psutil.Process:
    """The `docker run` process of a server."""
    wanted = ["docker", "run"]
    tree = psutil.Process(server._keeper.pid).children(recursive=True)  # type: ignore[attr-defined]
    for process in tree:
        with suppress(psutil.Error):
            words = process.cmdline()
            if [Path(word).name for word in words[1:3]] == wanted:
                return process
    pytest.fail("no client runs")


def is_gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def diagnosed(server: ContainerServer) -> Outcome:
    assert eventually(lambda: server.exit_code() is not None)
    code = server.exit_code()
    assert code is not None
    return diagnose(Ended(exit_code=code, log=log_of(server), stage=str(Stage.RESOLVE)))


def test_its_output_is_the_log_its_exit_code_comes_back_and_it_is_removed(
    start: Callable[..., ContainerServer],
) -> None:
    server = start("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")
    assert eventually(lambda: server.exit_code() is not None)
    assert server.exit_code() == 7
    assert set(log_of(server).split()) == {"out", "err"}
    assert containers() == []


@pytest.mark.parametrize("code", [SLEEP, DEAF])
def test_stopping_ends_the_container_which_is_no_descendant_gently_and_by_force(
    start: Callable[..., ContainerServer], code: str
) -> None:
    server = start(code)
    served = inside(server)
    assert server._keeper.pid not in [p.pid for p in served.parents()]  # type: ignore[attr-defined]
    assert containers() == [server.name]
    server.stop()
    assert is_gone(served)
    assert containers() == []
    assert server.exit_code() == (143 if code == SLEEP else 137)
    server.stop()


def test_a_client_that_dies_takes_its_container_with_it(start: Callable[..., ContainerServer]) -> None:
    server = start(SLEEP)
    served = inside(server)
    client_of(server).kill()
    assert eventually(lambda: server.exit_code() is not None)
    assert server.exit_code() == 137
    assert is_gone(served)
    assert containers() == []


def test_a_start_that_still_fetches_its_image_is_stopped_and_leaves_nothing(
    start: Callable[..., ContainerServer],
) -> None:
    server = start(SLEEP, image="slow")
    assert eventually(lambda: "Unable to find image" in log_of(server))
    server.stop()
    assert server.exit_code() is not None
    assert containers() == []


def test_a_name_of_the_users_is_kept_and_may_be_used_again(start: Callable[..., ContainerServer]) -> None:
    for _ in range(2):
        server = start(SLEEP, options="--network host --rm --name mine")
        inside(server)
        assert containers() == ["mine"]
        server.stop()
        assert containers() == []


def test_variables_get_into_the_container_and_their_values_into_no_listing_of_processes(
    start: Callable[..., ContainerServer],
) -> None:
    code = f"import os; print('saw', os.environ['HF_TOKEN'], os.environ['OURS'], flush=True); {SLEEP}"
    server = start(code, options="--network host -e HF_TOKEN=canary-1", OURS="canary-2")
    served = inside(server)
    assert "saw canary-1 canary-2" in log_of(server)
    guard = psutil.Process(server._keeper.pid)  # type: ignore[attr-defined]
    listed = [" ".join(p.cmdline()) for p in (guard, *guard.children(recursive=True), served)]
    assert len(listed) == 4
    assert not any("canary" in words for words in listed)
    assert served.environ()[OWNER_VARIABLE]


def test_what_the_program_itself_refuses_is_the_environment_in_its_own_words(
    start: Callable[..., ContainerServer],
) -> None:
    for server, words in (
        (start(SLEEP, image="broken"), "could not select device driver"),
        (start("", program="no-such-program"), "OCI runtime create failed"),
    ):
        outcome = diagnosed(server)
        assert isinstance(outcome, Environment), outcome
        assert words in outcome.cause
    assert containers() == []


def test_a_container_killed_for_want_of_memory_is_out_of_host_memory(start: Callable[..., ContainerServer]) -> None:
    outcome = diagnosed(start(SLEEP, image="starved"))
    assert isinstance(outcome, OutOfMemory), outcome
    assert outcome.exit_code == 137
    assert "State.OOMKilled" in outcome.cause
    assert containers() == []


def test_no_daemon_and_no_program_are_launch_errors_in_one_line(
    start: Callable[..., ContainerServer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FAKE_DOCKER", str(tmp_path))
    with pytest.raises(LaunchError, match="Cannot connect to the Docker daemon"):
        start(SLEEP)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="'docker'"):
        start(SLEEP)


TUNER = """
import sys, time
from pathlib import Path
from tuner.servers.local import LocalLauncher
from tuner.servers.protocol import Launch
from tuner.servers.wrapped import ContainerLauncher
launcher = ContainerLauncher(LocalLauncher())
server = launcher.start(Launch(
    command=('docker', 'run', '--network', 'host', 'img', sys.executable, '-c', {code!r}),
    host='127.0.0.1', port=launcher.free_port(), log_path=Path({log!r}), grace_s=0.5))
print(server._keeper.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def tuner(docker: None, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int, psutil.Process]]:
    """Another tuner with a container that is up: its process, its guard's number, and what runs in the container."""
    log = tmp_path / "server.log"
    process = subprocess.Popen(
        [sys.executable, "-c", TUNER.format(code=DEAF, log=str(log))], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    guard = int(process.stdout.readline())
    assert eventually(lambda: log.exists() and "up " in log.read_text())
    yield process, guard, psutil.Process(int(log.read_text().split("up ")[1].split()[0]))
    process.kill()
    process.communicate()


def test_a_tuner_killed_by_sigkill_leaves_no_container(
    tuner: tuple[subprocess.Popen[str], int, psutil.Process],
) -> None:
    process, _, served = tuner
    process.kill()
    assert eventually(lambda: is_gone(served))
    assert eventually(lambda: containers() == [])


def test_what_tuner_and_guard_killed_together_leave_is_ended_at_the_next_start_and_only_that(
    tuner: tuple[subprocess.Popen[str], int, psutil.Process], start: Callable[..., ContainerServer]
) -> None:
    process, guard, served = tuner
    mine = inside(start(SLEEP))
    command = ("docker", "run", "img", "x")
    assert end_container_orphans(LocalHost(), command) == 0
    process.send_signal(signal.SIGSTOP)
    os.kill(guard, signal.SIGKILL)
    process.kill()
    process.wait()
    assert not is_gone(served)
    assert end_container_orphans(LocalHost(), command) == 1
    assert is_gone(served)
    assert not is_gone(mine)
    assert end_container_orphans(LocalHost(), ("python3", "-m", "sglang.launch_server")) == 0


def test_a_container_whose_guard_was_killed_is_removed_by_stop(start: Callable[..., ContainerServer]) -> None:
    server = start(DEAF)
    served = inside(server)
    os.kill(server._keeper.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    assert eventually(lambda: server.exit_code() is not None)
    server.stop()
    assert is_gone(served)
    assert containers() == []
