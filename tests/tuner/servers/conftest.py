"""What tests of several ways to start a server share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.tuner.servers.containers.daemon import docker_daemon
from tests.tuner.servers.contract_place import Place
from tests.tuner.servers.implementations import IMPLEMENTATIONS, every_implementation


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A `docker` in the PATH, with a daemon of its own."""
    with docker_daemon() as env:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        yield


@pytest.fixture(params=every_implementation(starts=True))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """By each way that starts its servers."""
    with _place(request, tmp_path) as place:
        yield place


@pytest.fixture(params=every_implementation(starts=False))
def attached_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """By each way to servers that somebody else has started."""
    with _place(request, tmp_path) as place:
        yield place


@pytest.fixture(params=every_implementation())
def any_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with _place(request, tmp_path) as place:
        yield place


@contextmanager
def _place(request: pytest.FixtureRequest, folder: Path) -> Iterator[Place]:
    implementation = IMPLEMENTATIONS[request.param]
    if reason := (implementation.lacks or {}).get(request.node.originalname, ""):
        pytest.skip(reason)
    place = Place(
        launcher=implementation.launcher(request),
        implementation=implementation,
        source=implementation.source(request),
        folder=folder,
    )
    try:
        yield place
    finally:
        place.close()
