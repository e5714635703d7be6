"""The command line: its commands, how they end, and what a signal does.

Heavy imports (optuna, mlflow) happen in the commands that need them, so that `--help` is quick.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

import typer
from typer._click.exceptions import (
    ClickException,
    NoSuchOption,
)  # typer brings its own click, and names it nowhere else

from search_spaces.errors import CannotRunError, UserError
from tuner.commands.check import check
from tuner.commands.search import search
from tuner.commands.simulate import simulate
from tuner.commands.space import space
from tuner.commands.ui import ui
from tuner.exit_code import Exit
from tuner.voice import Voice, speak_where_letters_fail

app = typer.Typer(
    add_completion=False,
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Finds the fastest legal way to lay a Mixture-of-Experts model out on GPUs under SGLang.",
    epilog="Without a command, `tune --objective ...` searches with live trials.",
)
app.callback(invoke_without_command=True)(search)
app.command()(check)
app.command()(space)
app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})(simulate)
app.command()(ui)

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
    speak_where_letters_fail()
    sys.exit(_guarded(lambda: app(args=None if argv is None else list(argv), standalone_mode=False)))


def _guarded(command: Callable[[], object]) -> int:
    try:
        code = command()
    except UserError as error:
        Voice().say(f"tune: {' '.join(str(error).split())}")
        return Exit.ILLEGAL if isinstance(error, CannotRunError) else Exit.USER
    except typer.Exit as ended:
        return ended.exit_code
    except (KeyboardInterrupt, typer.Abort):
        Voice().say("tune: interrupted")
        return Exit.INTERRUPTED
    except ClickException as error:
        hint = "`tune --help` lists the options"
        if isinstance(error, NoSuchOption):
            hint += "; an engine's launch flags come after --"
        Voice().say(f"tune: {error.format_message()} ({hint})")
        return Exit.USER
    return int(code) if isinstance(code, int) else Exit.DONE


if __name__ == "__main__":
    main()
