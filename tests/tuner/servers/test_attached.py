"""A server of somebody else's: seen while it is there, missed when it is gone, never stopped."""

from __future__ import annotations

import socket
import time

import pytest

from tuner.server_keys import NO_KEYS, ServerKeys, keys_of
from tuner.servers.attached import AttachedServer


def eventually_lost(server: AttachedServer, limit_s: float = 60.0) -> str:
    deadline = time.monotonic() + limit_s
    while not server.lost() and time.monotonic() < deadline:
        time.sleep(0.02)
    return server.lost()


def test_a_server_that_is_there_is_in_our_hands_and_letting_it_go_stops_nothing() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        server = AttachedServer(f"http://127.0.0.1:{listening.getsockname()[1]}", NO_KEYS)
        server.look()
        assert (server.lost(), server.exit_code()) == ("", None)
        server.stop()
        server.stop()
        socket.create_connection(listening.getsockname(), 5).close()


def test_a_server_that_goes_away_is_lost_without_an_exit_code() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        server = AttachedServer(url, NO_KEYS)
    assert eventually_lost(server) == f"{url} no longer answers: Connection refused"
    assert server.exit_code() is None
    server.stop()


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [("http://box:30000", "box", 30000), ("https://box", "box", 443), ("http://[::1]", "::1", 80)],
)
def test_it_is_known_by_its_address_and_its_keys(url: str, host: str, port: int) -> None:
    keys = ServerKeys(api_key="k-123456", admin_api_key="a-123456")
    server = AttachedServer(url, keys)
    server.stop()
    assert (server.base_url, server.launch.host, server.launch.port) == (url, host, port)
    assert keys_of(server.launch.command) == keys
