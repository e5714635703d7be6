"""A real sshd on loopback, with keys, port and folder of its own."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.services.needs import needed

_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sshd:
    """options: words for ssh by which it reaches this server and nothing of the user's own configuration counts."""

    pid: int
    port: int
    folder: Path
    destination: str = "root@127.0.0.1"

    @property
    def options(self) -> list[str]:
        return ["-F", str(self.folder / "client_config")]

    def sessions(self) -> list[psutil.Process]:
        """The processes that serve connections."""
        return psutil.Process(self.pid).children(recursive=True)

    def daemons(self) -> list[psutil.Process]:
        """Those of them that are of sshd itself, and no command of a client."""
        found = []
        for process in self.sessions():
            with suppress(psutil.NoSuchProcess):
                if process.name() in {"sshd", "sshd-session"}:
                    found.append(process)
        return found

    def program(self, folder: Path) -> Path:
        """A folder with an `ssh` in it that uses `options`, to stand first in a PATH."""
        folder.mkdir(parents=True, exist_ok=True)
        ssh = folder / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec {needed("ssh")["ssh"]} -F {self.folder}/client_config "$@"\n')
        ssh.chmod(0o755)
        return folder


@contextmanager
def running_sshd(folder: Path) -> Iterator[Sshd]:
    """Skips where it cannot be."""
    programs = needed("sshd", "ssh", "ssh-keygen")
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    for key in ("host", "id"):
        subprocess.run([programs["ssh-keygen"], "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/id.pub\n"
        f"PidFile {folder}/pid\nUsePAM no\nStrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nMaxStartups 100\n"
        "PermitRootLogin prohibit-password\nMaxSessions 50\n"
    )
    (folder / "client_config").write_text(
        f"Host *\n  Port {port}\n  IdentityFile {folder}/id\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known\n  StrictHostKeyChecking accept-new\n  ServerAliveInterval 2\n"
    )
    with subprocess.Popen([programs["sshd"], "-D", "-f", folder / "config", "-E", folder / "log"]) as sshd:
        try:
            deadline = time.monotonic() + _LIMIT_S
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except ConnectionRefusedError:
                    assert time.monotonic() < deadline
                    assert sshd.poll() is None, (folder / "log").read_text()
            yield Sshd(pid=sshd.pid, port=port, folder=folder)
        finally:
            for session in psutil.Process(sshd.pid).children():
                session.send_signal(signal.SIGCONT)
                session.terminate()
            sshd.terminate()
