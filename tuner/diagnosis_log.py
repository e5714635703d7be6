"""What a server's log says of its end: the exception that was the cause, whose it is, and the lines that show it."""

from __future__ import annotations

import re
from dataclasses import dataclass

SCHEDULER_EXCEPTION = "Scheduler hit an exception"
_TRACEBACK = "Traceback (most recent call last)"
_EXCEPTION_LINE = re.compile(r"^(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*)?(?:Error|Exception|Exit)\b(?::.*)?$")
"""Of a traceback whose head is cut off; else an exception is what stands behind its frames, whatever its name."""
_RECORD = re.compile(r"^\[\d{4}-\d\d-\d\d|^Subprocess |sigquit", re.IGNORECASE)
"""A new log record or a new actor's words, which do not belong to the exception before it."""
_TORCH_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
_RANK = re.compile(r"^\[\d[\d:.,T -]*? ((?:[A-Z]{2,4}\d+ ?)+)\]")
"""`[2026-11-01 10:00:08 DP0 TP3 EP1] ...`: the ranks stand behind the time (utils/common.py, configure_logger)."""
_CONSEQUENCE = re.compile(
    r"Connection (?:closed|reset) by (?:remote )?peer|Broken pipe|remote process exited|[Ss]ocket closed|EOFError"
    r"|scheduler died during initialization"
)
"""What a process says whose neighbour or child is gone."""
_LONGEST_LINE = 4000
_MOST_RANKS = 256
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """lines: from the mark on to the next record. raised: from the last of its tracebacks on, which is what was raised
    in the end. rank: whose, as the log names it, e.g. `TP3 EP1`; empty where it does not. cause: the exception's own
    words. evidence: its message and the innermost frames.
    """

    lines: tuple[str, ...] = ()
    raised: tuple[str, ...] = ()
    rank: str = ""
    cause: str = ""
    evidence: tuple[str, ...] = ()


NO_FAILURE = Failure()


def plain(log: str) -> str:
    """Without colours, with what progress bars overwrite on lines of its own, and no line longer than 4000 characters:
    patterns may take time in proportion to the square of a line's length.
    """
    lines = _TORCH_PREFIX.sub("", _ESCAPES.sub("", log).replace("\r", "\n")).split("\n")
    return "\n".join(line[:_LONGEST_LINE] for line in lines)


def first_failure(log: str) -> Failure:
    """Of the first scheduler that failed by itself; without one the last exception, which ended the main process.

    What only says that another process is gone comes last. NO_FAILURE where there is none.
    """
    lines = log.splitlines()
    marks = [i for i, line in enumerate(lines) if SCHEDULER_EXCEPTION in line][:_MOST_RANKS]
    if not marks:
        marks = [i for i, line in enumerate(lines) if _TRACEBACK in line][: -_MOST_RANKS - 1 : -1]
    found = [_failure(_block(lines, start)) for start in marks]
    own = (each for each in found if each.cause and not is_consequence(each))
    return next(own, found[0] if found else NO_FAILURE)


def is_consequence(failure: Failure) -> bool:
    """Whether it only says that another process is gone."""
    return _CONSEQUENCE.search(failure.cause) is not None


def last_lines(log: str, count: int = 5) -> tuple[str, ...]:
    return tuple(line for line in log.splitlines() if line.strip())[-count:]


def _block(lines: list[str], start: int) -> list[str]:
    head, mark, rest = lines[start].partition(f"{SCHEDULER_EXCEPTION}: ")
    first = [f"{head}{mark}", rest] if mark and rest and not rest.startswith(_TRACEBACK) else [lines[start]]
    stop = start + 1
    while stop < len(lines) and not _RECORD.search(lines[stop]):
        stop += 1
    return [*first, *lines[start + 1 : stop]]


def _failure(block: list[str]) -> Failure:
    found = _RANK.match(block[0])
    rank = found[1].strip() if found else ""
    begin, last = _raised(block)
    if last is None:
        return Failure(lines=tuple(block), raised=tuple(block), rank=rank, evidence=tuple(block[-3:]))
    frames = [line.strip() for line in block[begin:last] if line.strip().startswith("File ")]
    message = [line for line in block[last:] if line.strip()]
    return Failure(
        lines=tuple(block),
        raised=tuple(block[begin:]),
        rank=rank,
        cause=" ".join(line.strip() for line in message[:4]),
        evidence=(*message[:8], *frames[-2:]),
    )


def _raised(block: list[str]) -> tuple[int, int | None]:
    """Where the last traceback begins, and where its exception stands; chained ones follow one another."""
    begin, last = 0, None
    is_inside = False
    for i, line in enumerate(block):
        if _TRACEBACK in line:
            begin, last, is_inside = i, None, True
        elif is_inside and line.strip() and not line[0].isspace():
            last, is_inside = i, False
    if last is None and len(block) > 1 and block[0].endswith(f"{SCHEDULER_EXCEPTION}: "):
        return 0, 1
    if last is None:
        last = next((i for i in range(len(block) - 1, 0, -1) if _EXCEPTION_LINE.match(block[i])), None)
    return begin, last
