"""A server of somebody else's: seen while it is there, missed when it is gone, never stopped."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.waiting import eventually
from tuner.server_keys import NO_KEYS, ServerKeys, keys_of
from tuner.servers.attached import AttachedServer, attach


@dataclass(slots=True, kw_only=True)
class Served:
    """What answers, and how: 200 is with `info`. idle_s: a connection that says nothing for so long is closed."""

    url: str = ""
    status: int = 200
    idle_s: float | None = None
    info: dict[str, Any] = field(default_factory=lambda: {"tp_size": 8, "model_path": "m", "random_seed": 1})
    asked: int = 0


@contextmanager
def serving(served: Served) -> Iterator[Served]:
    class Handler(BaseHTTPRequestHandler):
        timeout = served.idle_s

        def do_GET(self) -> None:
            served.asked += 1
            body = json.dumps(served.info).encode()
            self.send_response(served.status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()


def test_a_server_that_takes_connections_and_says_nothing_is_there() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        server = AttachedServer(f"http://127.0.0.1:{listening.getsockname()[1]}", NO_KEYS, {})
        server.look()
        assert (server.lost(), server.exit_code()) == ("", None)
        server.stop()


def test_a_server_that_goes_away_is_lost_without_an_exit_code() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        server = AttachedServer(url, NO_KEYS, {})
    assert eventually(server.lost)
    assert server.lost() == f"{url} no longer answers: Connection refused"
    assert server.exit_code() is None
    server.stop()


def test_a_connection_that_was_idle_for_too_long_is_no_end() -> None:
    with serving(Served(idle_s=0.05)) as served:
        server = attach(served.url)
        assert eventually(lambda: served.asked >= 3 or server.lost())
        assert server.lost() == ""
        server.stop()


@pytest.mark.parametrize(
    "other",
    [
        Served(info={"tp_size": 8, "model_path": "m", "random_seed": 2}),
        Served(info={"tp_size": 4, "model_path": "m", "random_seed": 1}),
        Served(status=404),
        Served(status=401),
    ],
    ids=["started again", "another layout", "another program", "another key"],
)
def test_another_server_in_its_place_is_not_taken_for_it(other: Served) -> None:
    with serving(Served(idle_s=0.05)) as served:
        server = attach(served.url)
        served.info, served.status = other.info, other.status
        assert eventually(server.lost)
        assert server.lost() == f"another server answers at {served.url} now"
        server.stop()


def test_trouble_of_its_own_is_for_the_load_to_tell() -> None:
    with serving(Served()) as served:
        server = attach(served.url)
        served.status = 503
        server.look()
        assert server.lost() == ""
        server.stop()


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [("http://box:30000", "box", 30000), ("https://box", "box", 443), ("http://[::1]", "::1", 80)],
)
def test_it_is_known_by_its_address_and_its_keys(url: str, host: str, port: int) -> None:
    keys = ServerKeys(api_key="k-123456", admin_api_key="a-123456")
    server = AttachedServer(url, keys, {})
    server.stop()
    assert (server.base_url, server.launch.host, server.launch.port) == (url, host, port)
    assert keys_of(server.launch.command) == keys
