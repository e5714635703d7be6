"""Speaks to the user. Data on stdout, everything for people on stderr; what is simulated says so on every line."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TextIO

from rich.console import Console, RenderableType
from rich.text import Text

SIMULATED_MARK = "[simulated] "
_WIDTH_OFF_TERMINAL = 150


class Voice:
    """mark: put before every line, for instance because the figures are simulated."""

    def __init__(self, *, mark: str = "", out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.mark = mark
        # A stream that was closed before the start is None.
        self._out = out or sys.stdout or io.StringIO()
        self._err = err or sys.stderr or io.StringIO()

    @property
    def is_live(self) -> bool:
        """Whether someone watches: progress is drawn only then."""
        return self._err.isatty()

    def say(self, *what: RenderableType) -> None:
        """For people, on stderr."""
        self._write(self._err, what)

    def result(self, *what: RenderableType) -> None:
        """What was asked for, on stdout. Raises OutputLostError."""
        _needed(self._write(self._out, what))

    @property
    def width(self) -> int:
        """Columns that a line of `result` may take after its mark."""
        width = Console(file=self._out).width if self._out.isatty() else _WIDTH_OFF_TERMINAL
        return max(width - len(self.mark), 40)

    @property
    def is_coloured(self) -> bool:
        """Whether `result` may use colours: somebody watches, and has not asked for none (NO_COLOR)."""
        target = Console(file=self._out)
        return self._out.isatty() and not target.no_color and target.color_system is not None

    @property
    def is_plain(self) -> bool:
        """Whether `result` is to draw with ASCII alone: the stream holds no other letters, or the locale has none."""
        locale = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_CTYPE", "LANG"))), "")
        if locale in {"C", "POSIX"}:
            return True
        try:
            "█│▁".encode(self._out.encoding or "utf-8")
        except (LookupError, UnicodeEncodeError):
            return True
        return False

    def live_console(self) -> Console:
        return Console(file=self._err, highlight=False)

    def document(self, text: str) -> None:
        """A document for machines, on stdout. Raises OutputLostError."""
        _needed(_put(self._out, text))

    def _write(self, stream: TextIO, what: tuple[RenderableType, ...]) -> OSError | None:
        target = Console(file=stream)
        width = (target.width if stream.isatty() else _WIDTH_OFF_TERMINAL) - len(self.mark)
        buffer = io.StringIO()
        console = Console(
            file=buffer,
            width=max(width, 40),
            force_terminal=stream.isatty() and not target.no_color,
            color_system="auto" if stream.isatty() else None,
            no_color=target.no_color,
            highlight=False,
            soft_wrap=False,
        )
        for each in what:
            # Plain words are never folded: a command that is cut in lines can't be pasted.
            console.print(each, soft_wrap=isinstance(each, (str, Text)), markup=not isinstance(each, str))
        lines = buffer.getvalue().rstrip("\n").split("\n")
        return _put(stream, "".join(f"{self.mark}{line.rstrip()}\n" for line in lines))


def _needed(lost: OSError | None) -> None:
    if lost is not None:
        raise OutputLostError(f"the output could not be written: {lost.strerror}") from lost


class OutputLostError(Exception):
    """What was asked for could not be written although someone waits for it: a full disk."""


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def _put(stream: TextIO, text: str) -> OSError | None:
    """Nobody listening is no reason to stop working: a study goes on when its terminal or pipe is gone.

    Gives the error where there is no room for what was written.
    """
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError) as error:
        discard_what_is_left(stream)
        if isinstance(error, OSError) and is_full(error):
            return error
    return None


def is_full(error: OSError) -> bool:
    return error.errno in _FULL


def discard_what_is_left(stream: TextIO) -> None:
    """What is left in the buffer of a stream that cannot be written would be complained about at exit."""
    if stream in {sys.stdout, sys.stderr}:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def speak_where_letters_fail() -> None:
    """A terminal that cannot show a character gets a question mark, not the end of the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
