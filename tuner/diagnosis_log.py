"""What a server's log says of its end: the exception that was the cause, whose it is, and the lines that show it."""

from __future__ import annotations

import re
from dataclasses import dataclass

SCHEDULER_EXCEPTION = "Scheduler hit an exception"
_TRACEBACK = "Traceback (most recent call last)"
_EXCEPTION_LINE = re.compile(r"^(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*)?(?:Error|Exception|Exit)\b(?::.*)?$")
_RANK = re.compile(r"^\[\d[\d:.,T -]*? ((?:[A-Z]{2,4}\d+ ?)+)\]")
"""`[2026-11-01 10:00:08 DP0 TP3 EP1] ...`: the ranks stand behind the time (utils/common.py, configure_logger)."""
_CONSEQUENCE = re.compile(
    r"Connection (?:closed|reset) by (?:remote )?peer|Broken pipe|remote process exited|[Ss]ocket closed|EOFError"
)
"""What a rank says whose neighbour is gone."""
_LONGEST_LINE = 4000
_MOST_RANKS = 256
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """lines: from the mark on to the next record. rank: whose, as the log names it, e.g. `TP3 EP1`; empty where it does
    not. cause: the exception's own words. evidence: its message and the innermost frames.
    """

    lines: tuple[str, ...] = ()
    rank: str = ""
    cause: str = ""
    evidence: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


NO_FAILURE = Failure()


def plain(log: str) -> str:
    """Without colours, with what progress bars overwrite on lines of its own, and no line longer than 4000 characters:
    patterns may take time in proportion to the square of a line's length.
    """
    lines = _ESCAPES.sub("", log).replace("\r", "\n").split("\n")
    return "\n".join(line[:_LONGEST_LINE] for line in lines)


def first_failure(log: str) -> Failure:
    """Of the first scheduler that failed by itself, else the first traceback; NO_FAILURE where there is none."""
    lines = log.splitlines()
    marks = [i for i, line in enumerate(lines) if SCHEDULER_EXCEPTION in line]
    if not marks:
        marks = [i for i, line in enumerate(lines) if _TRACEBACK in line][:1]
    found = [_failure(_block(lines, start)) for start in marks[:_MOST_RANKS]]
    return next((each for each in found if not _CONSEQUENCE.search(each.cause)), found[0] if found else NO_FAILURE)


def last_lines(log: str, count: int = 5) -> tuple[str, ...]:
    return tuple(line for line in log.splitlines() if line.strip())[-count:]


def _block(lines: list[str], start: int) -> list[str]:
    head, mark, rest = lines[start].partition(f"{SCHEDULER_EXCEPTION}: ")
    first = [f"{head}{mark}", rest] if mark and rest and not rest.startswith(_TRACEBACK) else [lines[start]]
    if len(first) == 2:
        end = start
    else:
        after = range(start + 1, len(lines))
        end = next((i for i in after if _EXCEPTION_LINE.match(lines[i])), len(lines) - 1)
    # Chained exceptions go on: the last one of the block is what was raised in the end.
    stop = end + 1
    while stop < len(lines) and (not lines[stop].strip() or not _starts_a_record(lines[stop])):
        stop += 1
    return [*first, *lines[start + 1 : stop]]


def _starts_a_record(line: str) -> bool:
    """A new log record or a new actor's words, which do not belong to the exception before it."""
    return line.startswith("[") or "sigquit" in line.lower()


def _failure(block: list[str]) -> Failure:
    found = _RANK.match(block[0])
    rank = found[1].strip() if found else ""
    marks = [i for i, line in enumerate(block) if _EXCEPTION_LINE.match(line)]
    if not marks:
        return Failure(lines=tuple(block), rank=rank, evidence=tuple(block[-3:]))
    last = marks[-1]
    frames = [line.strip() for line in block[:last] if line.strip().startswith("File ")]
    message = [line for line in block[last:] if line.strip()]
    cause = " ".join(line.strip() for line in message[:4])
    return Failure(lines=tuple(block), rank=rank, cause=cause, evidence=(*message[:8], *frames[-2:]))
