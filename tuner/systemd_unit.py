"""Reads a systemd unit for the commands that it starts (systemd.service(5), systemd.syntax(7))."""

from __future__ import annotations

import re
import shlex

from search_spaces.errors import MalformedError
from tuner.shell_script import Command, mark, unknown_in

_SECTION = re.compile(r"^\s*\[Service\]\s*$", re.MULTILINE)
_SPECIFIER = re.compile(r"%([%A-Za-z])")
_NEXT_COMMAND = re.compile(r"\s;(?=\s|$)")
_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")


def is_unit(text: str) -> bool:
    return _SECTION.search(text) is not None


def commands(text: str) -> tuple[Command, ...]:
    """What ExecStart= starts, with what Environment= sets. Raises MalformedError for quotes that do not close."""
    env: dict[str, str] = {}
    files: list[str] = []
    started: list[str] = []
    section = ""
    for line in _lines(text):
        if line.startswith("["):
            section = line
            continue
        key, _, value = (part.strip() for part in line.partition("="))
        if section != "[Service]":
            continue
        if key == "Environment":
            env |= dict(_assignment(_specified(word)) for word in _words(value))
        elif key == "EnvironmentFile":
            files = [*files, value.removeprefix("-")] if value else []
        elif key == "ExecStart":
            commands_of_line = (part.strip().lstrip("-@:+!") for part in _NEXT_COMMAND.split(value))
            started = [*started, *filter(None, commands_of_line)] if value else []
    notes = tuple(f"EnvironmentFile={file} is not read here, and what it sets wins over Environment=" for file in files)
    known = {name: value for name, value in env.items() if unknown_in(value) is None}
    return tuple(Command(words=tuple(_expanded(_words(command), env)), env=known, notes=notes) for command in started)


def _lines(text: str) -> list[str]:
    """Logical lines: a backslash at the end joins the next one; comments and blank lines may stand in between."""
    lines, begun = [], ""
    for raw in text.replace("\r\n", "\n").split("\n"):
        line = raw.strip()
        if line.startswith(("#", ";")):
            continue
        if line.endswith("\\"):
            begun += line[:-1] + " "
            continue
        if begun or line:
            lines.append((begun + line).strip())
        begun = ""
    return [*lines, begun.strip()] if begun.strip() else lines


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise MalformedError(f"the unit's line cannot be read: {error} (got {text!r})") from None


def _assignment(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    return name, value


def _specified(word: str) -> str:
    """`%i` and the like are known when the unit starts; `%%` is a percent sign."""
    return _SPECIFIER.sub(
        lambda found: "%" if found[1] == "%" else mark(found[0], "is known when the unit starts"), word
    )


def _expanded(words: list[str], env: dict[str, str]) -> list[str]:
    """`$NAME` as a word of its own falls apart at its spaces, `${NAME}` does not."""
    found: list[str] = []
    for word in map(_specified, words):
        whole = re.fullmatch(r"\$(\w+)", word)
        if whole and whole[1] in env:
            found += env[whole[1]].split()
        else:
            found.append(_VARIABLE.sub(lambda m: env.get(m[1] or m[2], mark(m[0])), word))
    return found
