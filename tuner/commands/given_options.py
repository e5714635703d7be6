"""Options that were given and would be heeded by nobody."""

from __future__ import annotations

import typer

from search_spaces.errors import MalformedError

_COMMAND_LINE = "COMMANDLINE"
"""click.core.ParameterSource: not a default, nor an environment variable, which stands there for other calls too."""


def is_for_another_command(context: typer.Context) -> bool:
    """Whether the search is not what was asked for, but one of the commands beside it.

    Raises MalformedError where options of the search stand before that command, or are given without an objective.
    """
    given = _given(context)
    command = context.invoked_subcommand
    if command is not None and given:
        raise MalformedError(
            f"{' and '.join(given)} before `{command}` {'is' if len(given) == 1 else 'are'} of the search: options of "
            f"`tune {command}` come after its name"
        )
    if command is None and given and "--objective" not in given:
        raise MalformedError(
            f"--objective is needed beside {' and '.join(given)}: peak_throughput, c1_latency or goodput"
        )
    return command is not None


def _given(context: typer.Context) -> list[str]:
    """As they are written at their longest, in the order of the help."""
    found = []
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if source is not None and source.name == _COMMAND_LINE:
            found.append(max(option.opts, key=len))
    return found
