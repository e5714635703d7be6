"""Servers as units of systemd, on this machine or on one that is reached through another host.

A unit is transient (`systemd-run`): no file of it is left. Its journal is the server's log, systemd knows its state
and its end, and its control group ends with it whatever its processes do.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

from tuner.servers import systemd_side
from tuner.servers.host import Answer, Host, HostError

_SOURCE = Path(systemd_side.__file__)
_ASKED_S = 30.0


class NoSystemdError(RuntimeError):
    """No systemd takes units there; says why."""


class SystemdHost:
    """What `command` starts runs there as a unit. `run` asks the host itself."""

    def __init__(self, host: Host, manager: str = "system") -> None:
        """manager: whose units, `system` (root's) or `user`."""
        self._host = host
        self._manager = manager

    @property
    def name(self) -> str:
        return self._host.name

    @property
    def python(self) -> str:
        return self._host.python

    def run(self, words: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Answer:
        return self._host.run(words, stdin=stdin, timeout_s=timeout_s)

    def command(self, words: Sequence[str]) -> list[str]:
        unit = f"{systemd_side.PREFIX}{secrets.token_hex(8)}"
        source = _SOURCE.read_text(encoding="utf-8")
        return self._host.command([self.python, "-I", "-c", source, self._manager, unit, *words])

    def free_port(self) -> int:
        return self._host.free_port()

    def reach(self, port: int) -> tuple[str, int]:
        return self._host.reach(port)

    def unreach(self, port: int) -> None:
        self._host.unreach(port)

    def close(self) -> None:
        self._host.close()


def systemd_on(host: Host) -> SystemdHost:
    """With the system's manager for root, else with the user's own. Raises NoSystemdError with the reason."""
    try:
        is_root = host.run(["id", "-u"], timeout_s=_ASKED_S).stdout.strip() == b"0"
        manager = "system" if is_root else "user"
        tool = ["systemctl"] if is_root else ["systemctl", "--user"]
        state = host.run([*tool, "is-system-running"], timeout_s=_ASKED_S)
        journal = host.run(["journalctl", "--lines=0", *tool[1:]], timeout_s=_ASKED_S)
    except FileNotFoundError as error:
        raise NoSystemdError(f"{error.filename} is not installed") from None
    except (HostError, OSError) as error:
        raise NoSystemdError(str(error)) from None
    said = state.stdout.decode(errors="replace").strip()
    if said not in {"running", "degraded", "starting", "initializing", "maintenance"}:
        why = state.stderr.decode(errors="replace").strip().splitlines()
        raise NoSystemdError(why[0] if why else f"{' '.join(tool)} is-system-running says {said or 'nothing'}")
    if b"insufficient permissions" in journal.stderr:
        raise NoSystemdError("this user may not read the journal, which is the server's log: see systemd-journald(8)")
    return SystemdHost(host, manager)
