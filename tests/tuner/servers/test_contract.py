"""What every way of starting a server keeps to, run for each of them (`implementations.py`)."""

from __future__ import annotations

import gc
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from tests.processes import words_of
from tests.tuner.servers.contract_place import DEATH_SEEN_S, Place, ended, log_of, said
from tests.waiting import eventually
from tuner.server_control import is_ready
from tuner.servers.protocol import Launch, LaunchError

HOSTILE = ["a b", "'", '"', "$(touch /x)", "`id`", "-oProxyCommand=id", "line\nline", "*", "\\", "!x", "", "é", "--"]
NOT_UTF8 = os.fsdecode(b"\xff\xfe")
SLEEP = "import time; print('up', flush=True); time.sleep(600)"


def test_both_outputs_go_to_the_log_and_the_exit_code_comes_back(place: Place) -> None:
    server = place.start("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")
    assert ended(server) == 7
    assert set(log_of(server).split()) == {"out", "err"}


@pytest.mark.parametrize("code", [0, 1, 127, 255])
def test_no_exit_code_is_taken_for_the_way_s_own(place: Place, code: int) -> None:
    assert ended(place.start(f"import sys; sys.exit({code})")) == code


def test_a_server_that_kills_itself_is_seen_as_128_plus_the_signal(place: Place) -> None:
    assert ended(place.start("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")) == 137


def test_a_death_is_known_within_a_second(place: Place) -> None:
    took_s = []
    for _ in range(3):  # a busy machine may hold one up, but not every time
        server = place.start(SLEEP)
        assert said(server, "up")
        assert server.exit_code() is None
        began_s = time.monotonic()
        for process in place.alive():
            process.kill()
        assert ended(server) == 137
        took_s.append(time.monotonic() - began_s)
    assert min(took_s) < DEATH_SEEN_S, took_s


def test_it_runs_until_it_is_stopped_and_stopping_twice_is_safe(place: Place) -> None:
    server = place.start(SLEEP)
    assert said(server, "up")
    assert server.exit_code() is None
    assert server.lost() == ""
    server.stop()
    assert (server.exit_code(), server.lost()) == (143, "")
    server.stop()
    assert server.exit_code() == 143


def test_a_server_that_is_still_starting_can_be_stopped(place: Place) -> None:
    server = place.start("import time; time.sleep(600)")
    server.stop()
    assert server.exit_code() == 143
    assert not place.alive()


# Interrupted between its making and its first name, a pipe is closed by the garbage collector.
lets_go = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")


@lets_go
def test_a_server_that_nobody_holds_any_more_is_not_kept_by_its_heartbeat(place: Place) -> None:
    place.launcher.start(place.launch(SLEEP, grace_s=0.2))  # as where an interrupt comes before it has a name
    assert eventually(lambda: not place.alive())
    gc.collect()  # here, where its warnings are expected


@lets_go
def test_a_start_that_is_interrupted_leaves_nothing(place: Place) -> None:
    starting = False

    def interrupt(*_: object) -> None:
        if starting:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for delay_s in (0.002, 0.05, 0.2, 0.5):
            launch = place.launch(SLEEP, grace_s=0.2)
            signal.setitimer(signal.ITIMER_REAL, delay_s)
            with suppress(KeyboardInterrupt):
                starting = True
                place.started.append(place.launcher.start(launch))
            starting = False
            for server in place.started:
                server.stop()
            place.started.clear()
            assert eventually(lambda: not place.alive())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.collect()


def test_a_server_asked_to_end_may_end_gracefully(place: Place) -> None:
    server = place.start(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('draining', flush=True), sys.exit(0)))\n"
        "print('up', flush=True); time.sleep(600)",
        grace_s=60.0,
    )
    assert said(server, "up")
    server.stop()
    assert server.exit_code() == 0
    assert "draining" in log_of(server)


# A server that ignores SIGTERM, with a child in a session of its own that does so too.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
deaf = 'import signal, time; signal.signal(15, signal.SIG_IGN); print("deaf", flush=True); time.sleep(600)'
subprocess.Popen([sys.executable, '-c', deaf, sys.argv[1]], start_new_session=True)
print('up', flush=True); time.sleep(600)
"""


def test_the_whole_tree_is_gone_even_children_that_left_the_group_and_ignore_signals(place: Place) -> None:
    server = place.start(STUBBORN, grace_s=0.2)
    assert said(server, "up")
    assert said(server, "deaf")
    assert len(place.alive()) == 2
    server.stop()
    assert not place.alive()
    assert server.exit_code() == 137


# Forks twice into a session of its own, as daemons do, so that its parent is none of the server's.
DAEMON = """
import os, sys, time
def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(sys.executable, [sys.executable, '-c', 'import time; print("daemon", flush=True); time.sleep(600)', sys.argv[1]])
        os._exit(0)
    os.wait()
daemon()
print('up', flush=True)
"""


def test_daemons_are_ended_with_the_server(place: Place) -> None:
    server = place.start(f"{DAEMON}time.sleep(600)", grace_s=0.2)
    assert said(server, "daemon")
    assert len(place.alive()) == 2
    server.stop()
    assert not place.alive()


def test_what_a_dead_server_left_behind_is_ended(place: Place) -> None:
    server = place.start(f"{DAEMON}os._exit(3)")
    assert ended(server) == 3
    assert not place.alive()


def test_a_server_that_was_stopped_by_a_signal_is_ended_without_the_whole_grace(place: Place) -> None:
    server = place.start(SLEEP, grace_s=600.0)
    assert said(server, "up")
    for process in place.alive():
        process.suspend()
    server.stop()
    assert server.exit_code() == 143


SHOW = """
import json, os, sys
held = {k: v for k, v in os.environb.items() if k.startswith(b'SHOWN_')}
print(json.dumps([[os.fsencode(a).hex() for a in sys.argv[2:]], {k.decode(): v.hex() for k, v in held.items()}]))
"""


def test_words_and_environment_arrive_as_they_are(place: Place) -> None:
    words = [*HOSTILE, NOT_UTF8]
    env = {f"SHOWN_{i}": word for i, word in enumerate(words)}
    server = place.start(SHOW, *words, **env)
    assert ended(server) == 0
    argv, held = json.loads(log_of(server))
    assert [os.fsdecode(bytes.fromhex(word)) for word in argv] == words
    assert {name: os.fsdecode(bytes.fromhex(value)) for name, value in held.items()} == env


def test_its_signals_and_input_are_those_of_a_plain_start(place: Place) -> None:
    server = place.start(
        "import signal, sys\n"
        "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, sys.stdin.read() == '',"
        " signal.getsignal(signal.SIGHUP) == signal.SIG_DFL)"
    )
    assert ended(server) == 0
    assert log_of(server).split() == ["True", "True", "True"]


def test_no_secret_of_environment_or_flags_stands_in_a_listing_but_in_the_server_s_own(place: Place) -> None:
    canary = f"canary-{secrets.token_hex(8)}"
    server = place.start(SLEEP, "--api-key", canary, HF_TOKEN=canary)
    assert said(server, "up")
    showing = [p for p in psutil.process_iter() if any(canary in word for word in words_of(p))]
    assert showing
    assert all(words_of(p)[1:2] == ["-c"] and SLEEP in words_of(p) for p in showing), [words_of(p) for p in showing]


def test_the_log_can_be_followed_while_it_runs(place: Place) -> None:
    go = place.folder / "go"
    server = place.start(
        f"import pathlib, time\nprint('one', flush=True)\n"
        f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\nprint('two', flush=True); time.sleep(600)"
    )
    assert said(server, "one")
    assert "two" not in log_of(server)
    go.touch()
    assert said(server, "two")


def test_a_flood_of_output_arrives_whole_and_the_server_ends(place: Place) -> None:
    server = place.start("import sys\nfor i in range(50): sys.stdout.write(f'{i:03}' + 'x' * 999_996 + '\\n')")
    assert ended(server) == 0
    log = server.launch.log_path.read_bytes()
    assert len(log) == 50_000_000
    assert [int(line[:3]) for line in log.split()] == list(range(50))


def test_a_program_that_does_not_exist_or_may_not_be_run_is_a_launch_error(place: Place) -> None:
    plain = place.folder / "plain"
    plain.write_text("no program")
    for program in ("/no-such-program", str(plain)):
        launch = Launch(command=(program, place.token), host="127.0.0.1", port=1, log_path=place.folder / "log")
        with pytest.raises(LaunchError, match=f"cannot start '{program}': .*it may not be run"):
            place.launcher.start(launch)


def test_a_port_in_use_is_a_launch_error(place: Place) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = Launch(
            command=(sys.executable, "-c", "", place.token),
            host="127.0.0.1",
            port=taken.getsockname()[1],
            log_path=place.folder / "log",
        )
        with pytest.raises(LaunchError, match=f"port {busy.port} is in use"):
            place.launcher.start(busy)


def test_a_log_that_cannot_be_written_is_a_launch_error(place: Place) -> None:
    (place.folder / "file").write_text("")
    nowhere = Launch(
        command=(sys.executable, "-c", "", place.token),
        host="127.0.0.1",
        port=place.launcher.free_port(),
        log_path=place.folder / "file" / "log",
    )
    with pytest.raises(LaunchError, match="cannot start"):
        place.launcher.start(nowhere)


def test_a_free_port_can_be_bound(place: Place) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", place.launcher.free_port()))


KILLED_TUNER = """
import sys, time
from pathlib import Path
from tuner.servers.protocol import Launch
{source}
launch = Launch(command={command!r}, host='127.0.0.1', port=launcher.free_port(), log_path=Path({log!r}), grace_s=0.2)
server = launcher.start(launch)
print('started', flush=True)
time.sleep(600)
"""


def test_a_tuner_killed_by_sigkill_leaves_nothing(place: Place) -> None:
    launch = place.launch(STUBBORN)
    source = KILLED_TUNER.format(source=place.source, command=launch.command, log=str(launch.log_path))
    tuner = subprocess.Popen(
        [sys.executable, "-c", source, "the tuner"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert tuner.stdout is not None
        assert tuner.stdout.readline() == "started\n"
        assert eventually(lambda: len(place.alive()) == 2)
        helpers = [p for p in psutil.Process(tuner.pid).children(recursive=True) if p.is_running()]
        assert helpers
    finally:
        tuner.send_signal(signal.SIGKILL)
        tuner.communicate()
    assert eventually(lambda: not place.alive())
    assert eventually(lambda: not [p for p in helpers if p.is_running() and p.status() != psutil.STATUS_ZOMBIE])


def test_a_simulated_server_that_was_stopped_no_longer_answers(place: Place) -> None:
    server = place.simulated()
    assert eventually(lambda: is_ready(server.base_url) or server.exit_code() is not None), log_of(server)
    server.stop()
    assert not is_ready(server.base_url)
    assert not place.serving()
