"""What tests of several ways to start a server share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.tuner.servers.containers.daemon import docker_daemon


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A `docker` in the PATH, with a daemon of its own."""
    with docker_daemon() as env:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        yield
