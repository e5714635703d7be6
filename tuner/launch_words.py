"""What a user pastes to be checked: flags, a launch command, a script, a systemd unit, or a notation.

Everything becomes one or more `Asked`: launch flags as words, with the model, the environment and the names that
came with them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import shorten

from search_spaces.errors import MalformedError
from search_spaces.layout import Layout
from search_spaces.notation import Notation, names_in, read_notation
from search_spaces.sglang.options import options_of
from search_spaces.sglang.versions import NEWEST
from tuner import shell_script, systemd_unit
from tuner.shell_script import Command, shown, unknown_in

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_MODULES = ("sglang.launch_server", "sglang/launch_server.py", "launch_server.py")
MODEL_OPTIONS = ("--model-path", "--model")
_OF_ONE_NODE = ("--node-rank", "--dist-init-addr", "--host", "--port")
_LARGEST_FILE_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """flags: launch flags, as the engine would get them. model: what they name to be served; empty where nothing.
    env: the server's environment, as far as it was given. origin: the file it was read from, if any.
    notation: where no flags but a notation was given. claims: layouts that the file or a name in it claims.
    """

    flags: tuple[str, ...] = ()
    model: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    origin: str = ""
    notation: Notation | None = None
    claims: tuple[Notation, ...] = ()


def read_words(words: Sequence[str]) -> tuple[Asked, ...]:
    """The launches that `words` ask about, in order; at least one.

    `-` is text on stdin. Raises MalformedError where nothing can be made of them.
    """
    if not words or not any(word.strip() for word in words):
        raise MalformedError(
            "nothing to check: give launch flags, a whole launch command, a script, a unit file, - for stdin, or a "
            "notation such as TP8 EP8, after --"
        )
    if list(words) == ["-"]:
        return _from_text(sys.stdin.read(), origin="", what="the text on stdin")
    if len(words) == 1 and (path := _file(words[0])) is not None:
        return _from_text(_content(path), origin=path.name, what=str(path))
    if len(words) == 1 and re.search(r"\s", words[0].strip()):
        return _from_text(words[0], origin="", what=repr(shorten(words[0], 80)))
    found = list(_launches(Command(words=tuple(words), env={})))
    return tuple(found) if found else (_plain(words),)


def _file(word: str) -> Path | None:
    try:
        path = Path(word).expanduser()
        if path.is_file():
            return path
    except (OSError, RuntimeError, ValueError):
        return None
    if re.fullmatch(r"(?:[./~]\S*|[^\s-]\S*\.(?:sh|bash|service|txt|slurm|sbatch))", word):
        raise MalformedError(f"{word}: no such file")
    return None


def _content(path: Path) -> str:
    try:
        if path.stat().st_size > _LARGEST_FILE_BYTES:
            raise MalformedError(f"{path} is too large for a script ({path.stat().st_size} bytes)")
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise MalformedError(f"{path} cannot be read: {error.strerror}") from None


def _from_text(text: str, *, origin: str, what: str) -> tuple[Asked, ...]:
    if not text.strip():
        raise MalformedError(f"{what} is empty")
    claims = _claims(f"{Path(origin).stem}\n{text}")
    if systemd_unit.is_unit(text):
        ran = systemd_unit.commands(text)
    else:
        try:
            notation = read_notation(text)
        except MalformedError:
            ran = shell_script.commands(text)
        else:
            return (Asked(notation=notation, origin=origin),)
    found = [launch for command in ran for launch in _launches(command)]
    if not found and len(ran) == 1:
        found = [_plain(ran[0].words, env=ran[0].env)]
    if not found:
        raise MalformedError(
            f"{what} starts no SGLang server: looked for sglang.launch_server, `sglang serve`, or bare launch flags"
        )
    return tuple(replace(each, origin=origin, claims=claims) for each in _distinct(found))


def _launches(command: Command) -> Iterator[Asked]:
    """The servers that one command starts: itself, in a container, or in a shell of its own (`bash -c '...'`)."""
    words = command.words
    for place, word in enumerate(words):
        if word.endswith(_MODULES):
            yield _launch(words[:place], words[place + 1 :], command.env)
            return
        if Path(word).name == "sglang" and words[place + 1 : place + 2] == ("serve",):
            yield _launch(words[:place], words[place + 2 :], command.env)
            return
        if re.search(r"\s", word) and any(name in word for name in (*_MODULES, "sglang serve")):
            for inner in shell_script.commands(word):
                yield from _launches(Command(words=inner.words, env={**command.env, **inner.env}))
            return
    if words and Path(words[0]).name in {"docker", "podman", "nerdctl", "sudo"}:
        begin = next((i for i, word in enumerate(words) if word.partition("=")[0] in MODEL_OPTIONS), None)
        if begin is not None:
            yield _launch(words[:begin], words[begin:], command.env)


def _launch(before: Sequence[str], flags: Sequence[str], env: Mapping[str, str]) -> Asked:
    given = dict(env)
    for word in before:
        if assignment := _ASSIGNMENT.fullmatch(re.sub(r"^(?:-e|--env=)(?=\w+=)", "", word)):
            given[assignment[1]] = assignment[2]
    words = tuple(flags)
    served = ""
    if words and not words[0].startswith("-"):
        served, words = words[0], words[1:]
    asked = _asked(words, given, served)
    return replace(asked, claims=_claims(" ".join((*before, *flags))))


def _claims(text: str) -> tuple[Notation, ...]:
    return tuple({claim.text.lower(): claim for claim in names_in(text)}.values())


def _plain(words: Sequence[str], env: Mapping[str, str] | None = None) -> Asked:
    """Bare flags, with or without leading assignments, or a notation."""
    given = dict(env or {})
    rest = list(words)
    while rest and (assignment := _ASSIGNMENT.fullmatch(rest[0])) and not rest[0].startswith("-"):
        if re.fullmatch(r"(?i)(tp|pp|dp|ep)=\d+,?", rest[0]):
            break
        given[assignment[1]] = assignment[2]
        rest = rest[1:]
    if rest and rest[0].startswith("-"):
        return _asked(tuple(rest), given, "")
    return Asked(notation=read_notation(" ".join(rest)), env=given)


def _asked(words: tuple[str, ...], env: Mapping[str, str], served: str) -> Asked:
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in MODEL_OPTIONS:
            served = value if equals else (words[place + 1] if place + 1 < len(words) else "")
    return Asked(flags=_known(words), model=shown(served), env=env)


def _known(words: Sequence[str]) -> tuple[str, ...]:
    """`words` without the options whose values only the running script knows: host, port, rank, names.

    Raises MalformedError where such a value may hold flags, or decides something.
    """
    kept: list[str] = []
    for word in words:
        variable = unknown_in(word)
        if variable is None:
            kept.append(word)
            continue
        alone = not word.startswith("--")
        option = kept.pop() if alone and kept and _awaits_value(kept[-1]) else "" if alone else word.partition("=")[0]
        if not option:
            raise MalformedError(
                f"{variable} is not set to anything literal here, and may hold flags: write what it stands for"
            )
        if _decides(option):
            raise MalformedError(
                f"{option} is {shown(word)}, and {variable} is not set to anything literal here: write its value"
            )
    return tuple(kept)


def _awaits_value(word: str) -> bool:
    return word.startswith("--") and "=" not in word


def _decides(option: str) -> bool:
    """Whether an option's value has a say in the verdict: a layout's own, in full or begun."""
    known = options_of(NEWEST)
    dests = {named.dest for name, named in known.items() if name == option or name.startswith(option)}
    return not dests.isdisjoint(vars(Layout()))


def _distinct(found: Sequence[Asked]) -> list[Asked]:
    """One of each launch: the same one on several nodes is asked about once."""
    distinct: dict[tuple[str, ...], Asked] = {}
    for each in found:
        distinct.setdefault(_without_node(each.flags), each)
    return list(distinct.values())


def _without_node(flags: Sequence[str]) -> tuple[str, ...]:
    kept: list[str] = []
    skip = False
    for word in flags:
        name, equals, _ = word.partition("=")
        if skip:
            skip = False
        elif name in _OF_ONE_NODE:
            skip = not equals
        else:
            kept.append(word)
    return tuple(kept)
