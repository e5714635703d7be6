"""Reads a systemd unit for the commands that it starts (systemd.service(5), systemd.syntax(7))."""

from __future__ import annotations

import re
import shlex

from search_spaces.errors import MalformedError
from tuner.shell_script import Command, mark

_SECTION = re.compile(r"^\s*\[Service\]\s*$", re.MULTILINE)
_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")


def is_unit(text: str) -> bool:
    return _SECTION.search(text) is not None


def commands(text: str) -> tuple[Command, ...]:
    """What ExecStart= starts, with what Environment= sets. Raises MalformedError for quotes that do not close."""
    env: dict[str, str] = {}
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
            env |= dict(_assignment(word) for word in _words(value))
        elif key == "ExecStart":
            started = [*started, value.lstrip("-@:+!")] if value else []
    return tuple(Command(words=tuple(_expanded(_words(command), env)), env=env) for command in started)


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


def _expanded(words: list[str], env: dict[str, str]) -> list[str]:
    """`$NAME` as a word of its own falls apart at its spaces, `${NAME}` does not."""
    found: list[str] = []
    for word in words:
        whole = re.fullmatch(r"\$(\w+)", word)
        if whole and whole[1] in env:
            found += env[whole[1]].split()
        else:
            found.append(_VARIABLE.sub(lambda m: env.get(m[1] or m[2], mark(m[0])), word))
    return found
