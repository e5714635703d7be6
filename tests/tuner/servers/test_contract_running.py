"""What every way keeps to once a server runs, and what those keep to besides that only attach (`implementations.py`)."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from tests.tuner.servers.contract_place import DEATH_SEEN_S, Place, is_over, killed_once_attached, log_of
from tests.waiting import eventually
from tuner.server_control import is_ready, server_info
from tuner.servers.host import unused_port
from tuner.servers.protocol import Launch, LaunchError, Server


def answered(server: Server) -> bool:
    """As ready, in the end, and not over."""
    return eventually(lambda: is_ready(server.base_url) or is_over(server)) and not is_over(server)


def test_a_simulated_server_is_seen_ready_answers_and_its_death_is_known_within_a_second(any_place: Place) -> None:
    took_s: list[float] = []
    while len(took_s) < 3 and not (took_s and took_s[-1] < DEATH_SEEN_S):  # a busy machine may hold one up
        server = any_place.simulated()
        assert answered(server), log_of(server)
        assert server_info(server.base_url)["tp_size"] == 8
        assert (server.exit_code(), server.lost()) == (None, "")
        began_s = time.monotonic()
        for process in any_place.serving():
            process.kill()
        assert eventually(partial(is_over, server))
        took_s.append(time.monotonic() - began_s)
        assert server.exit_code() == (137 if any_place.implementation.starts else None)
    assert took_s[-1] < DEATH_SEEN_S, took_s


def test_a_server_of_somebody_else_runs_on_when_it_is_let_go_however_often(attached_place: Place) -> None:
    server = attached_place.simulated()
    server.stop()
    server.stop()
    assert is_ready(server.base_url)
    assert len(attached_place.serving()) == 1
    assert (server.exit_code(), server.lost()) == (None, "")


def test_a_server_of_somebody_else_outlives_a_tuner_killed_by_sigkill(attached_place: Place) -> None:
    server = attached_place.simulated()
    killed_once_attached(attached_place.source, server.launch.port)
    assert is_ready(server.base_url)
    assert server_info(server.base_url)["tp_size"] == 8
    assert (server.exit_code(), server.lost()) == (None, "")


@contextmanager
def another_program() -> Iterator[int]:
    """The port of a web server that is no SGLang."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def launch_at(place: Place, port: int) -> Launch:
    return Launch(command=(), host="127.0.0.1", port=port, log_path=place.folder / "log")


def test_an_address_at_which_nothing_answers_is_a_launch_error(attached_place: Place) -> None:
    with pytest.raises(LaunchError, match=r"nothing answers at http://127\.0\.0\.1:\d+: Connection refused"):
        attached_place.launcher.start(launch_at(attached_place, unused_port()))


def test_an_address_at_which_something_else_answers_is_a_launch_error(attached_place: Place) -> None:
    with another_program() as port, pytest.raises(LaunchError, match=f":{port} is no SGLang server: 404"):
        attached_place.launcher.start(launch_at(attached_place, port))
