"""`--host`: other machines on which the servers of a study run, and what has to be named for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from search_spaces.errors import MalformedError, UserError
from tuner.servers.host import Host, HostError, last_line
from tuner.servers.ssh_host import SshHost, destination_shown

_OLDEST_PYTHON = (3, 8)
_ASK_PYTHON = "import sys; print(*sys.version_info[:2])"


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What was named on the command line of the engine and its GPUs."""

    cluster: str | None
    engine_command: str | None
    engine_version: str | None


def check_named(option: str, named: Named, *, is_simulated: bool) -> None:
    """option: which has servers run elsewhere. Raises UserError where something would have to be found out there."""
    options = {
        "--cluster": named.cluster,
        "--engine-command": named.engine_command,
        "--engine-version": named.engine_version,
    }
    missing = [option for option, word in options.items() if word is None]
    if missing and not is_simulated:
        raise UserError(
            f"{option}: nothing is detected on another machine, so {' and '.join(missing)} "
            f"{'has' if len(missing) == 1 else 'have'} to be named too (--engine simulated needs none of them)"
        )


def hosts_lines(hosts: Sequence[str]) -> list[str]:
    """What a person should know of where the servers run."""
    if not hosts:
        return []
    several = f"; a layout's first node, {hosts[0]}, answers" if len(hosts) > 1 else ""
    return [f"servers run on {', '.join(hosts)}{several}; every time includes the way there"]


def ssh_host(destination: str) -> SshHost:
    try:
        return SshHost(destination)
    except ValueError:
        raise MalformedError(
            "--host is [user@]host, or ssh://[user@]host:port with a port from 1 to 65535, and holds no password "
            f"(got {destination_shown(destination)[:120]!r})"
        ) from None


def check_python(host: Host, option: str) -> None:
    """Raises UserError where `host` cannot be reached or has none that guards servers."""
    try:
        answer = host.run([host.python, "-I", "-c", _ASK_PYTHON])
    except (HostError, OSError) as error:
        raise UserError(f"{option}: {error}") from None
    said = re.fullmatch(r"(\d+) (\d+)", answer.stdout.decode(errors="replace").strip())
    oldest = ".".join(map(str, _OLDEST_PYTHON))
    if said is None:
        why = last_line(answer.stderr) or f"it ended with {answer.code}"
        raise UserError(f"{option}: {host.name} needs {host.python} ({oldest} or newer), to guard the servers: {why}")
    if (int(said[1]), int(said[2])) < _OLDEST_PYTHON:
        found = f"{said[1]}.{said[2]}"
        raise UserError(f"{option}: {host.name} has Python {found}, and {oldest} is the oldest that will do")
