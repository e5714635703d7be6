"""Finds and ends processes by a variable of their environment, on the machine where it runs.

Like the guard it needs nothing but Python 3.8: `python3 -I -c SOURCE`, one line of JSON on standard input and one on
standard output. Processes of other users, whose environment may not be read, are left alone.

    {"variable": name}                                          -> {"values": [distinct values]}
    {"variable": name, "end": [values], "wait_s": s}            -> {"ended": n, "left": n}

`wait_s`: how long they may take to end by themselves before they are killed.

A process that gives itself another title may write it over its environment, as SGLang's ranks do (setproctitle). So
what is of a marked process's session counts too: servers are started in sessions of their own.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

POLL_S = 0.05
KILLING_S = 10.0


def marked(variable: str) -> dict[int, str]:
    """The value that each living process was started with, or its session."""
    prefix = os.fsencode(variable) + b"="
    found = {}
    sessions = {}  # type: dict[int, list[int]]
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():  # noqa: PTH112, PTH208
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:  # noqa: PTH123
                state, _, _, session = stat.read().rpartition(b")")[2].split()[:4]
            with open(f"/proc/{name}/environ", "rb") as environment:  # noqa: PTH123
                words = environment.read().split(b"\0")
        except (OSError, ValueError):
            continue
        if state in {b"Z", b"X"}:
            continue
        sessions.setdefault(int(session), []).append(int(name))
        for word in words:
            if word.startswith(prefix):
                found[int(name)] = os.fsdecode(word[len(prefix) :])
    for pids in sessions.values():
        values = {found[pid] for pid in pids if pid in found}
        if len(values) == 1:
            (value,) = values
            found.update(dict.fromkeys(pids, value))
    return found


def end(variable: str, values: list[str], wait_s: float) -> dict[str, Any]:
    def living() -> list[int]:
        return [pid for pid, value in marked(variable).items() if value in values]

    ended = set()  # type: set[int]
    began_s = time.monotonic()
    while True:
        left = living()
        waited_s = time.monotonic() - began_s
        if not left or waited_s > wait_s + KILLING_S:
            return {"ended": len(ended), "left": len(left)}
        ended.update(left)
        if waited_s >= wait_s:
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    continue
        time.sleep(POLL_S)


def main() -> None:
    asked = json.loads(sys.stdin.readline())
    variable = asked["variable"]
    if "end" in asked:
        answer = end(variable, asked["end"], asked["wait_s"])
    else:
        answer = {"values": sorted(set(marked(variable).values()))}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
