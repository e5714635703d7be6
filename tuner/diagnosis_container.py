"""Ends that only a container's keeper and program, or systemd, can tell of (`tuner.servers.container_keeper`,
`tuner.servers.systemd_side`).
"""

from __future__ import annotations

import re

from tuner import advice
from tuner.diagnosis_log import last_lines
from tuner.fault import Fault
from tuner.outcome import Direction, Environment, Outcome, OutOfMemory

_NOT_STARTED = re.compile(r"^layout-tune: the container was not started \(", re.MULTILINE)
_KILLED = re.compile(r"^layout-tune: .*\((?:State\.OOMKilled|Result=oom-kill)\)$", re.MULTILINE)
_HINT = re.compile(r"^(?:(?:Run|See) '\w+ .*--help'.*|\s*)$")


def of_container(log: str, *, exit_code: int, stage: str) -> Outcome | None:
    """None where the container was started and neither it nor a unit was killed for want of memory."""
    if (killed := _KILLED.search(log)) is not None:
        direction = Direction.MORE_HOST_MEMORY
        return OutOfMemory(
            cause=killed[0],
            stage=stage,
            direction=direction,
            exit_code=exit_code,
            evidence=(killed[0],),
            fault=Fault.HOST_MEMORY,
            advice=advice.of_memory(direction, Fault.HOST_MEMORY, stage, None),
        )
    if (refused := _NOT_STARTED.search(log)) is not None:
        words = [line.strip() for line in log[: refused.start()].splitlines() if not _HINT.match(line)]
        return Environment(
            cause=words[-1] if words else log[refused.start() :].splitlines()[0],
            stage=stage,
            exit_code=exit_code,
            evidence=last_lines(log),
            fault=Fault.CONTAINER,
            advice="the container's program started nothing: its own words say what it lacks",
        )
    return None
