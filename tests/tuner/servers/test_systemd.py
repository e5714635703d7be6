"""Servers as units of a real systemd, on a machine of its own kind."""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.services.machine import PROJECT, Machine
from tests.waiting import eventually
from tuner.diagnosis import Ended, diagnose
from tuner.fault import Fault
from tuner.outcome import Direction, OutOfMemory
from tuner.servers.guarded import GuardedLauncher, GuardedServer
from tuner.servers.host import LocalHost
from tuner.servers.protocol import Launch
from tuner.servers.systemd import NoSystemdError, SystemdHost, systemd_on
from tuner.servers.systemd_side import PREFIX, START, properties

ANALYZE = shutil.which("systemd-analyze")
SHOWN = "layout-tune-*"


def quoted(word: str) -> str:
    """As systemd writes words of ExecStart= (systemd.service(5), systemd.syntax(7))."""
    return json.dumps(word).replace("%", "%%").replace("$", "$$")


def verified(unit: Path) -> str:
    assert ANALYZE is not None
    done = subprocess.run([ANALYZE, "verify", "--man=no", unit], capture_output=True, text=True, check=False)
    return done.stderr + (f"exit code {done.returncode}" if done.returncode else "")


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
def test_systemd_finds_nothing_wrong_with_a_unit_of_ours(tmp_path: Path) -> None:
    lines = [f"{name}={value}" for name, value in properties("/run/layout-tune-0", "/tmp").items()]
    words = ["/bin/sh", "-I", "-c", START, "/run/layout-tune-0"]
    unit = tmp_path / "layout-tune-0.service"
    unit.write_text("\n".join(["[Service]", *lines, f"ExecStart={' '.join(map(quoted, words))}", ""]))
    assert verified(unit) == ""
    # And it would say so: what it only ignores is told on stderr too.
    unit.write_text(unit.read_text().replace("KillMode=mixed", "KillMode=sometimes"))
    assert "Failed to parse kill mode" in verified(unit)


def test_without_a_systemd_the_reason_is_told(tmp_path: Path) -> None:
    class Without(LocalHost):
        def run(self, words, *, stdin=b"", timeout_s=60.0):  # type: ignore[no-untyped-def]
            if words[0] == "systemctl":
                raise FileNotFoundError(2, "No such file or directory", "systemctl")
            return LocalHost.run(self, words, stdin=stdin, timeout_s=timeout_s)

    with pytest.raises(NoSystemdError, match="systemctl is not installed"):
        systemd_on(Without())


def test_a_unit_that_was_killed_for_want_of_memory_is_out_of_memory() -> None:
    """`Result=oom-kill` of systemd.service(5): the control group of the unit, which the kernel's log need not name."""
    said = "[10:00] loading\nlayout-tune: layout-tune-0.service: the kernel killed a process of it for want of memory "
    outcome = diagnose(Ended(exit_code=137, log=f"{said}(Result=oom-kill)\n", stage="weight load"))
    assert isinstance(outcome, OutOfMemory)
    assert (outcome.fault, outcome.direction) == (Fault.HOST_MEMORY, Direction.MORE_HOST_MEMORY)


@pytest.fixture
def host(machine: Machine) -> SystemdHost:
    return systemd_on(machine)


@pytest.fixture
def start(host: SystemdHost, tmp_path: Path) -> Iterator[Callable[..., GuardedServer]]:
    started = []

    def start(code: str, **env: str) -> GuardedServer:
        launcher = GuardedLauncher(host)
        command = (sys.executable, "-c", code)
        log = tmp_path / f"{len(started)}" / "server.log"
        launch = Launch(command=command, host="127.0.0.1", port=launcher.free_port(), log_path=log, env=env)
        started.append(launcher.start(launch))
        return started[-1]

    yield start
    for server in started:
        server.stop()


SLEEP = "import time; print('up', flush=True); time.sleep(600)"


def up(server: GuardedServer) -> bool:
    return eventually(lambda: "up" in server.launch.log_path.read_text())


def units(machine: Machine) -> list[str]:
    told = machine.told("systemctl", "list-units", "--all", "--plain", "--no-legend", SHOWN)
    return [line.split()[0] for line in told.splitlines()]


@pytest.mark.services
def test_a_server_is_a_unit_whose_state_systemd_knows(start: Callable[..., GuardedServer], machine: Machine) -> None:
    server = start(SLEEP)
    assert up(server)
    (unit,) = units(machine)
    assert machine.told("systemctl", "is-active", unit).strip() == "active"
    assert "up" in machine.told("journalctl", "--unit", unit, "--output", "cat").split()
    server.stop()
    assert server.exit_code() == 143
    assert units(machine) == []
    assert PREFIX not in machine.told("ls", "/run")


@pytest.mark.services
def test_systemd_finds_nothing_wrong_with_the_unit_that_it_has_made(
    start: Callable[..., GuardedServer], machine: Machine
) -> None:
    assert up(start(SLEEP))
    (unit,) = units(machine)
    (path,) = machine.told("systemctl", "show", "--property=FragmentPath", "--value", unit).split()
    answer = machine.run(["systemd-analyze", "verify", "--man=no", path])
    assert (answer.code, answer.stdout, answer.stderr) == (0, b"", b"")


@pytest.mark.services
def test_no_secret_stands_in_what_systemd_shows_or_in_a_file(
    start: Callable[..., GuardedServer], machine: Machine
) -> None:
    canary = f"canary-{secrets.token_hex(8)}"
    assert up(start(SLEEP, HF_TOKEN=canary))
    (unit,) = units(machine)
    assert canary not in machine.told("systemctl", "show", unit)
    assert canary not in machine.told("systemctl", "cat", unit)
    assert machine.told("find", "/run", "-path", f"/run/{PREFIX}*", "-type", "f") == ""


@pytest.mark.services
def test_a_unit_that_systemd_stops_is_seen_as_ended_from_outside(
    start: Callable[..., GuardedServer], machine: Machine
) -> None:
    server = start(SLEEP)
    assert up(server)
    machine.told("systemctl", "stop", *units(machine))
    assert eventually(lambda: server.exit_code() is not None)
    assert server.exit_code() == 143


@pytest.mark.services
def test_a_guard_that_is_killed_takes_its_whole_unit_along(
    start: Callable[..., GuardedServer], machine: Machine
) -> None:
    server = start(SLEEP)
    assert up(server)
    (unit,) = units(machine)
    machine.told("systemctl", "kill", "--kill-who=main", "--signal=KILL", unit)
    assert eventually(lambda: server.exit_code() is not None)
    assert server.exit_code() == 137
    assert units(machine) == []


@pytest.mark.services
def test_where_the_starter_is_killed_the_unit_ends_and_the_next_start_tidies_up(
    start: Callable[..., GuardedServer], machine: Machine
) -> None:
    server = start(SLEEP)
    assert up(server)
    (unit,) = units(machine)
    for process in psutil.process_iter():  # not by its place in a tree: nsenter stands between
        with suppress(psutil.Error):
            words = process.cmdline()
            if unit.removesuffix(".service") in words and "nsenter" not in words[:1]:
                process.send_signal(signal.SIGKILL)
    assert eventually(lambda: server.exit_code() is not None)
    active = ["systemctl", "list-units", "--plain", "--no-legend", "--state=active", unit]
    assert eventually(lambda: machine.told(*active) == "")
    assert up(start(SLEEP))
    assert units(machine) != [unit]
    assert unit not in units(machine)
    assert machine.told("ls", "/run").count(PREFIX) == 1


@pytest.mark.services
def test_tune_measures_units_where_systemd_runs(machine: Machine, tmp_path: Path) -> None:
    words = ["--objective", "c1_latency", "--systemd", "--trials", "1", "--confirmations", "0", "--engine", "simulated"]
    words += ["--concurrency", "1", "--output-tokens", "16"]
    script = 'cd "$0" && exec "$@"'
    command = ["sh", "-c", script, str(tmp_path), sys.executable, "-m", "tuner", *words]
    answer = machine.run(["env", f"PYTHONPATH={PROJECT}", *command], timeout_s=300.0)
    assert answer.code == 0, answer
    assert b"winner" in answer.stdout
    assert units(machine) == []
    (log,) = tmp_path.glob("mlruns/work/*/*/server.log")
    assert "fired up" in log.read_text()


def test_tune_says_why_there_are_no_units(tmp_path: Path) -> None:
    if Path("/run/systemd/system").is_dir():
        pytest.skip("systemd runs on this machine")
    words = ["--objective", "c1_latency", "--systemd", "--engine", "simulated"]
    done = subprocess.run(
        [sys.executable, "-m", "tuner", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "--systemd: nothing on this machine starts units: " in done.stderr
