"""The command line: its commands, and how they end.

Heavy imports (optuna, mlflow) happen in the commands that need them, so that `--help` is quick.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence

import typer
from typer._click.exceptions import (
    ClickException,
    NoSuchOption,
)  # typer brings its own click, and names it nowhere else

from search_spaces.errors import CannotRunError, UserError
from tuner.commands.check import check
from tuner.commands.measure import measure
from tuner.commands.predict import predict
from tuner.commands.probe import probe
from tuner.commands.search import search
from tuner.commands.simulate import simulate
from tuner.commands.space import space
from tuner.commands.told_errors import told
from tuner.commands.ui import ui
from tuner.commands.validate import validate
from tuner.exit_code import Exit
from tuner.voice import OutputLostError, Voice, discard_what_is_left, is_full, speak_where_letters_fail

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
app.command()(probe)
app.command()(predict)
app.command()(validate)
app.command()(measure)
app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})(simulate)
app.command()(ui)


def run(argv: Sequence[str] | None) -> int:
    """The exit code."""
    speak_where_letters_fail()
    try:
        return _guarded(lambda: app(args=None if argv is None else list(argv), standalone_mode=False))
    except OutputLostError as error:
        Voice().say(f"tune: {error}")
    except OSError as error:
        # `--help` is written past `Voice`.
        if not is_full(error):
            raise
        discard_what_is_left(sys.stdout)
        Voice().say(f"tune: the output could not be written: {error.strerror}")
    return Exit.OUTPUT_LOST


def _guarded(command: Callable[[], object]) -> int:
    try:
        code = command()
    except UserError as error:
        Voice().say(f"tune: {told(error)}")
        return Exit.ILLEGAL if isinstance(error, CannotRunError) else Exit.USER
    except typer.Exit as ended:
        return ended.exit_code
    except (KeyboardInterrupt, typer.Abort):
        Voice().say("tune: interrupted")
        return Exit.INTERRUPTED
    except ClickException as error:
        if "--json" in sys.argv:
            Voice().document(json.dumps({"error": error.format_message()}, indent=2) + "\n")
        hint = "`tune --help` lists the options"
        if isinstance(error, NoSuchOption):
            hint += "; an engine's launch flags come after --"
        Voice().say(f"tune: {error.format_message()} ({hint})")
        return Exit.USER
    return int(code) if isinstance(code, int) else Exit.DONE
