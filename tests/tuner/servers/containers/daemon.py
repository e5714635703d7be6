"""The daemon of the `docker` beside it, for as long as a `with` block lasts."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent


@contextmanager
def docker_daemon() -> Iterator[dict[str, str]]:
    """Gives the variables by which `docker` is found and finds its daemon."""
    with tempfile.TemporaryDirectory(prefix="lt-") as folder:  # a socket's path has at most 107 characters
        env = {"FAKE_DOCKER": folder, "PATH": f"{HERE}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
        with subprocess.Popen(
            [sys.executable, HERE / "docker", "_daemon"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **env},
            start_new_session=True,
        ) as daemon:
            assert daemon.stdout is not None
            assert daemon.stdout.readline() == b"up\n"
            try:
                yield env
            finally:
                daemon.terminate()
                daemon.wait(30)
