"""Secrets in launch commands and environments, and the one way they are kept out of whatever is written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from search_spaces.sglang.options import options_of
from search_spaces.sglang.versions import NEWEST

MASK = "***"
LEAST_CHARS = 6
"""Shorter values are words of the language: masking them would garble everything else."""

_FLAG = re.compile(r"--(?:[a-z0-9]+[-_])*(?:api[-_]key|password|passphrase|secret|token|secret[-_]key|access[-_]key)")
"""SGLang 0.5.23: --api-key, --admin-api-key, --ssl-keyfile-password; the rest for what is put in front of it."""
_VARIABLE = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|API_?KEY|ACCESS_KEY|SECRET_KEY|CREDENTIALS?)(?:$|_)",
    re.IGNORECASE,
)
_ASSIGNMENT = re.compile(r"((?:-e|--env=)?)([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_IN_TEXT = re.compile(
    r"(?P<name>--[A-Za-z0-9_-]+(?==|[ \t])|(?<![\w-])[A-Za-z_]\w*(?==))(?P<between>=|[ \t]+(?!-))"
    r"(?P<value>\"[^\"]*\"|'[^']*'|[^\s;&|]+)"
)
"""A flag or an assignment with its value, within a word that is a command line of its own (`bash -c '...'`)."""
_SHORTEST_BEGINNING = 4


@dataclass(frozen=True, slots=True)
class _Shown:
    """A word as it may be shown, with the secrets in it: `name` of flag or variable, and value."""

    word: str
    secrets: tuple[tuple[str, str], ...] = ()


def masked_words(words: Sequence[str]) -> tuple[str, ...]:
    """`words` of a command with `***` for the values of secret flags and of secret variables set among them, also
    within a word that is a shell's command line.
    """
    return tuple(shown.word for shown in _shown(words))


def secrets_in(words: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Each secret of a command, as the flag or variable that names it and its value, in order."""
    return tuple(secret for shown in _shown(words) for secret in shown.secrets)


def secret_values(words: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """The values that `masked_words` hides, and those of variables whose names say that they are secret, longest
    first: one may hold another.
    """
    values = {value for name, value in env.items() if is_secret_variable(name)}
    values |= {value for _, value in secrets_in(words)}
    return tuple(sorted((v for v in values if len(v) >= LEAST_CHARS), key=lambda v: (-len(v), v)))


def masked(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text


def is_secret_variable(name: str) -> bool:
    return _VARIABLE.search(name) is not None


def is_secret_flag(flag: str) -> bool:
    """Whether a secret follows `flag`; argparse takes the beginning of an option for the whole of it."""
    if _FLAG.fullmatch(flag):
        return True
    if not flag.startswith("--") or len(flag) < _SHORTEST_BEGINNING:
        return False
    known = options_of(NEWEST)
    begun = [] if flag in known else [name for name in known if name.startswith(flag)]
    return bool(begun) and all(_FLAG.fullmatch(name) for name in begun)


def _shown(words: Sequence[str]) -> Iterator[_Shown]:
    flag_before = ""
    for word in words:
        if flag_before:
            yield _Shown(MASK, ((flag_before, word),))
            flag_before = ""
            continue
        flag_before = word if is_secret_flag(word) else ""
        yield _Shown(word) if flag_before else _alone(word)


def _alone(word: str) -> _Shown:
    """A word that is no value of a secret flag."""
    flag, equals, value = word.partition("=")
    if equals and is_secret_flag(flag):
        return _Shown(f"{flag}={MASK}", ((flag, value),))
    assignment = _ASSIGNMENT.fullmatch(word)
    if assignment is not None and is_secret_variable(assignment[2]):
        inside = _command_line(word).secrets if re.search(r"\s", word) else ()
        return _Shown(f"{assignment[1]}{assignment[2]}={MASK}", ((assignment[2], assignment[3]), *inside))
    return _command_line(word) if re.search(r"\s", word) else _Shown(word)


def _command_line(word: str) -> _Shown:
    """A word that may be a shell's command line."""
    secrets: list[tuple[str, str]] = []

    def hidden(found: re.Match[str]) -> str:
        name, between = found["name"], found["between"]
        is_flag = name.startswith("--")
        if not (is_secret_flag(name) if is_flag else is_secret_variable(name)):
            return found[0]
        value = found["value"]
        secrets.append((name, value[1:-1] if value[0] in "'\"" and value[-1] == value[0] else value))
        return f"{name}{between}{MASK}"

    return _Shown(_IN_TEXT.sub(hidden, word), tuple(secrets))
