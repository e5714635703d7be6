"""A machine whose process 1 is systemd: booted by systemd-nspawn from this machine's own /usr, and nothing else of it
but what a test names. It shares the network, so that a server there answers here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.services.needs import needed, not_here
from tuner.servers.host import LOOPBACK, Answer, answer_of, unused_port

PROJECT = Path(__file__).resolve().parents[2]
_BOOT_LIMIT_S = 90.0
_TARGET = """\
[Unit]
Description=What the tests wait for
Requires=sysinit.target dbus.socket systemd-journald.service
After=sysinit.target dbus.socket systemd-journald.service
"""
# Units that fail there, and those that would tidy up what is shared with it.
_MASKED = (
    "systemd-journald-audit.socket",
    "systemd-firstboot.service",
    "systemd-tmpfiles-setup.service",
    "systemd-tmpfiles-setup-dev.service",
    "systemd-tmpfiles-clean.timer",
)
# systemd-nspawn moves mounts under /run/systemd, which has to be a file system of its own for that.
_OWN_MOUNTS = 'mount --make-rprivate / && mount -t tmpfs tmpfs /run && exec "$@"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """As a host of servers. pid: of its process 1, as this machine counts."""

    pid: int

    name = ""
    """As this machine: its loopback address is ours."""
    python = sys.executable

    def command(self, words: Sequence[str]) -> list[str]:
        clean = ["env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"]
        return ["nsenter", "-t", str(self.pid), "-a", *clean, *words]

    def run(self, words: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Answer:
        return answer_of(self.command(words), stdin, timeout_s)

    def free_port(self) -> int:
        return unused_port()

    def reach(self, port: int) -> tuple[str, int]:
        return LOOPBACK, port

    def unreach(self, port: int) -> None:
        pass

    def close(self) -> None:
        pass

    def told(self, *words: str) -> str:
        answer = self.run(words)
        assert answer.code == 0, (words, answer)
        return answer.stdout.decode()


@contextmanager
def booted_machine(folder: Path, *shared: Path) -> Iterator[Machine]:
    """folder: for the test's own use, and `shared`: seen there under the same paths, to be written to."""
    programs = needed("systemd-nspawn", "nsenter", "unshare")
    target = folder / "tests.target"
    target.write_text(_TARGET)
    words = [
        *(programs["unshare"], "-m", "sh", "-c", _OWN_MOUNTS, "sh"),
        programs["systemd-nspawn"],
        *("-q", "-D", "/", "--volatile=yes", "--register=no", "--keep-unit", "--console=pipe"),
        f"--machine=tune-{os.getpid()}",
        f"--bind-ro={target}:/etc/systemd/system/tests.target",
        *(f"--bind-ro={path}" for path in _what_this_python_needs()),
        *(f"--bind={path}" for path in shared),
        *("-b", "systemd.unit=tests.target", *(f"systemd.mask={unit}" for unit in _MASKED)),
    ]
    with (folder / "boot.log").open("wb") as log:
        spawned = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        yield _booted(spawned, folder / "boot.log")
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(spawned.pid).children(recursive=True):
                process.send_signal(signal.SIGKILL)  # process 1 takes no other signal for an end
        spawned.kill()
        spawned.wait()


def _booted(spawned: subprocess.Popen[bytes], log: Path) -> Machine:
    deadline = time.monotonic() + _BOOT_LIMIT_S
    machine = None
    while True:
        said = log.read_text(errors="replace")[-2000:]
        if spawned.poll() is not None:
            not_here(f"systemd-nspawn does not boot here: {said}")
        assert time.monotonic() < deadline, said
        first = [p.pid for p in psutil.Process(spawned.pid).children(recursive=True) if _is_first(p)]
        if first:
            machine = Machine(pid=first[0])
            if machine.run(["systemctl", "is-active", "-q", "tests.target"]).code == 0:
                return machine
        time.sleep(0.1)


def _is_first(process: psutil.Process) -> bool:
    try:
        return Path(process.exe()).name == "systemd"
    except (psutil.Error, OSError):
        return False


def _what_this_python_needs() -> list[Path]:
    """Folders outside of /usr in which this Python, what is installed for it, and the project lie."""
    wanted = [Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parents[1], PROJECT]
    outside = [path for path in dict.fromkeys(wanted) if not path.is_relative_to("/usr")]
    return [path for path in outside if not any(path != other and path.is_relative_to(other) for other in outside)]
