"""What every host but this machine does alike: a command's exit code told from its carrier's, and a free port."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable, Sequence

from tuner.servers.host import LOOPBACK, Answer, Host, HostError, last_line

_FREE_PORT = f"import socket; s = socket.socket(); s.bind(({LOOPBACK!r}, 0)); print(s.getsockname()[1])"


def run_marked(words: Sequence[str], carried: Callable[[str], Answer]) -> Answer:
    """Runs `words` by `carried`, which has a shell elsewhere run a script.

    ssh and srun fail with exit codes that a command may have too: a last line that they cannot know tells the
    command's. Raises HostError, with what the carrier said last, where it did not come.
    """
    mark = secrets.token_hex(16)
    answer = carried(f"{shlex.join(words)}; printf '%s %d' {mark} $? >&2")
    stderr, found, code = answer.stderr.rpartition(f"{mark} ".encode())
    number = code.split()[:1]  # the carrier may have more to say
    if not found or not number or not number[0].isdigit():
        raise HostError(last_line(answer.stderr) or f"it ended with {answer.code}")
    return Answer(code=int(number[0]), stdout=answer.stdout, stderr=stderr)


def free_port_of(host: Host) -> int:
    """Raises HostError."""
    answer = host.run([host.python, "-I", "-c", _FREE_PORT])
    if answer.code or not answer.stdout.strip().isdigit():
        raise HostError(f"{host.name}: {last_line(answer.stderr) or f'no {host.python} that works'}")
    return int(answer.stdout)
