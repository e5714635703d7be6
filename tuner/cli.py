"""The console command: what a signal does, from the first moment on."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from tuner.exit_code import Exit

_ASKED_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    """Every way of asking the tuner to end takes the road of Ctrl-C; asking again does not stop the tidying up."""
    for asked in _ASKED_TO_END:
        signal.signal(asked, signal.SIG_IGN)
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """The console command. Always ends by SystemExit, with the codes of `Exit`."""
    for asked in _ASKED_TO_END:
        # A script that starts the tuner in the background has SIGINT ignored for it, and means nothing by it;
        # `nohup` has SIGHUP ignored, and means it.
        if asked is not signal.SIGHUP or signal.getsignal(asked) is not signal.SIG_IGN:
            signal.signal(asked, _interrupt)
    sys.exit(_run(argv))


def _run(argv: Sequence[str] | None) -> int:
    try:
        # It takes a moment to import, in which Ctrl-C is as good as later.
        from tuner.app import run  # noqa: PLC0415

        return run(argv)
    except KeyboardInterrupt:
        return _interrupted()
    except RuntimeError as error:
        # What happens while a class is being made reaches Python 3.11 so.
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        return _interrupted()


def _interrupted() -> int:
    if sys.stderr is not None:
        sys.stderr.write("tune: interrupted\n")
    return Exit.INTERRUPTED


if __name__ == "__main__":
    main()
