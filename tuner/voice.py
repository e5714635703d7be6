"""Speaks to the user. Data on stdout, everything for people on stderr; what is simulated says so on every line."""

from __future__ import annotations

import io
import sys
from typing import TextIO

from rich.console import Console, RenderableType

SIMULATED_MARK = "[simulated] "
_WIDTH_OFF_TERMINAL = 150


class Voice:
    """mark: put before every line, for instance because the figures are simulated."""

    def __init__(self, *, mark: str = "", out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.mark = mark
        self._out = out or sys.stdout
        self._err = err or sys.stderr

    @property
    def is_live(self) -> bool:
        """Whether someone watches: progress is drawn only then."""
        return self._err.isatty()

    def say(self, *what: RenderableType) -> None:
        """For people, on stderr."""
        self._write(self._err, what)

    def result(self, *what: RenderableType) -> None:
        """What was asked for, on stdout."""
        self._write(self._out, what)

    def live_console(self) -> Console:
        return Console(file=self._err, highlight=False)

    def _write(self, stream: TextIO, what: tuple[RenderableType, ...]) -> None:
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
            console.print(each, soft_wrap=isinstance(each, str), markup=not isinstance(each, str))
        lines = buffer.getvalue().rstrip("\n").split("\n")
        stream.write("".join(f"{self.mark}{line.rstrip()}\n" for line in lines))
        stream.flush()
