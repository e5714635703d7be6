"""What a tuner that no longer lives has left running, on any host: found by a mark in its environment, and ended."""

from __future__ import annotations

import hashlib
import json
import socket
from pathlib import Path
from typing import Any

import psutil

from tuner.servers import marked
from tuner.servers.host import Host, HostError

OWNER_VARIABLE = "LAYOUT_TUNE_OWNER"
"""In the environment of every process started for a server: its tuner, as `pid:start time:pid namespace:machine`."""
SERVER_VARIABLE = "LAYOUT_TUNE_SERVER"
"""In the environment of a server and of all that it starts: a word of this start alone."""

_START_TIME_SLACK_S = 2.0
_NAMESPACE_LINK = Path("/proc/self/ns/pid")
_MACHINE_ID = Path("/etc/machine-id")
_SOURCE = Path(marked.__file__).read_text()


def owner_mark() -> str:
    """Of this tuner."""
    me = psutil.Process()
    return f"{me.pid}:{me.create_time():.2f}:{_pid_namespace()}:{_machine()}"


def end_orphans(host: Host) -> int:
    """Ends what a tuner that no longer lives has left running on `host`. Returns how many processes that were.

    Only processes that carry the mark of a tuner of this machine are looked at, and only those whose tuner is gone: a
    second tuner at work keeps its servers. Raises HostError.
    """
    gone = [mark for mark in _asked(host, variable=OWNER_VARIABLE)["values"] if not may_live(mark)]
    if not gone:
        return 0
    return int(_asked(host, variable=OWNER_VARIABLE, end=gone, wait_s=0.0)["ended"])


def end_server(host: Host, word: str, wait_s: float) -> int:
    """Waits until nothing is left of the server with that `SERVER_VARIABLE`, and ends by force what is after `wait_s`.

    Returns how many processes there were. Raises HostError.
    """
    return int(_asked(host, variable=SERVER_VARIABLE, end=[word], wait_s=wait_s)["ended"])


def may_live(mark: str) -> bool:
    """Whether the tuner of that mark may be at work: so also where that cannot be seen from here."""
    pid, _, rest = mark.partition(":")
    started, _, rest = rest.partition(":")
    namespace, _, machine = rest.partition(":")
    if (namespace, machine) != (_pid_namespace(), _machine()):
        return True  # another machine's or container's: its process numbers mean nothing here
    try:
        # Start times are derived from the boot time, which a clock correction may move a little.
        return abs(psutil.Process(int(pid)).create_time() - float(started)) < _START_TIME_SLACK_S
    except (psutil.Error, ValueError):
        return False


def _asked(host: Host, **question: object) -> Any:
    wait_s = float(str(question.get("wait_s", 0.0)))
    answer = host.run(
        [host.python, "-I", "-c", _SOURCE], stdin=(json.dumps(question) + "\n").encode(), timeout_s=wait_s + 60.0
    )
    if answer.code:
        said = answer.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise HostError(f"{host.name or 'this machine'}: {said}")
    return json.loads(answer.stdout)


def _pid_namespace() -> str:
    """Its number, from a link such as `pid:[4026531836]`."""
    return "".join(filter(str.isdigit, str(_NAMESPACE_LINK.readlink()))) if _NAMESPACE_LINK.is_symlink() else ""


def _machine() -> str:
    """Equal for processes of one machine, and for no others: copies of a machine have other names, if not other ids."""
    identity = _MACHINE_ID.read_text() if _MACHINE_ID.exists() else ""
    return hashlib.sha256(f"{identity} {socket.gethostname()}".encode()).hexdigest()[:12]
