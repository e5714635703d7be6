"""What a user pastes to be checked: flags, a launch command, a script, a systemd unit, or a notation.

Everything becomes one or more `Asked`: launch flags as words, with the model, the environment and the names that
came with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import shorten

from search_spaces.errors import MalformedError
from search_spaces.layout import Layout
from search_spaces.notation import Notation, names_in, read_notation
from search_spaces.sglang.flag_errors import is_flag
from search_spaces.sglang.flags import from_argv
from search_spaces.sglang.versions import EngineVersion
from tuner import containers, other_programs, shell_script, systemd_unit
from tuner.containers import Container
from tuner.script_files import script_of, unfenced
from tuner.shell_script import Command, shown, unknown_in
from tuner.standard_input import text_on_stdin
from tuner.unknown_values import known_words, with_marks
from tuner.visible_gpus import Visible, visible_in

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_MODULES = ("sglang.launch_server", "sglang/launch_server.py", "launch_server.py")
MODEL_OPTIONS = ("--model-path", "--model")
_OF_ONE_NODE = ("--node-rank", "--dist-init-addr", "--host", "--port")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """flags: launch flags, as the engine would get them. model: what they name to be served; empty where nothing.
    env: the server's environment, as far as it was given. origin: the file it was read from, if any.
    notation: where no flags but a notation was given; behind: flags that stand behind it, which are read once it is
    known by which release (`under`). claims: layouts that the file or a name in it claims. container: what the server
    is started in. notes: what is left out of account, in words.
    """

    flags: tuple[str, ...] = ()
    model: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    origin: str = ""
    notation: Notation | None = None
    behind: tuple[str, ...] = ()
    claims: tuple[Notation, ...] = ()
    container: Container = field(default_factory=Container)
    notes: tuple[str, ...] = ()

    def under(self, version: EngineVersion) -> Asked:
        """With the layout's flags behind a notation, as `version` reads them, in the notation.

        Raises MalformedError and FlagError.
        """
        if self.notation is None or not self.behind:
            return self
        return replace(self, notation=_with_flags(self.notation, self.behind, version))

    @property
    def visible_gpus(self) -> Visible | None:
        """How many GPUs of a node the server is let to see; None where nothing is said."""
        if (visible := visible_in(self.env)) is not None or self.container.num_gpus is None:
            return visible
        return Visible(num_gpus=self.container.num_gpus, said="--gpus of the container")


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
        return _from_text(text_on_stdin(), origin="", what="the text on stdin")
    if (script := script_of(words)) is not None:
        return _from_text(
            script.text,
            origin=script.path.name,
            what=str(script.path),
            arguments=script.arguments,
            environment=script.environment,
        )
    if len(words) == 1 and re.search(r"\s", words[0].strip()):
        return _from_text(words[0], origin="", what=repr(shorten(words[0], 80)))
    return launches_of(with_marks(words))


def launches_of(words: Sequence[str]) -> tuple[Asked, ...]:
    """The launches of one command, bare flags, or a notation; no file is looked at.

    Raises MalformedError.
    """
    if found := list(_launches(Command(words=tuple(words), env={}))):
        return tuple(found)
    if said := other_programs.said_of(words):
        raise MalformedError(said)
    if other_programs.only_names_it(words):
        raise MalformedError(f"{words[0]} starts no SGLang server: give the launch itself")
    return (_plain(words),)


def _from_text(
    text: str,
    *,
    origin: str,
    what: str,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> tuple[Asked, ...]:
    text = unfenced(text)
    if not text.strip():
        raise MalformedError(f"{what} is empty")
    claims = _claims(f"{Path(origin).stem}\n{text}")
    if systemd_unit.is_unit(text):
        ran = systemd_unit.commands(text)
    else:
        try:
            notation = read_notation(text)
        except MalformedError:
            ran = shell_script.commands(text, arguments, environment)
        else:
            return (Asked(notation=notation, origin=origin),)
    found = _found(ran)
    if not found and (said := next(filter(None, (other_programs.said_of(each.words) for each in ran)), "")):
        raise MalformedError(said)
    if not found and len(ran) == 1 and not other_programs.only_names_it(ran[0].words):
        found = [_plain(ran[0].words, env=ran[0].env)]
    if not found:
        raise MalformedError(
            f"{what} starts no SGLang server: looked for sglang.launch_server, `sglang serve`, or bare launch flags"
        )
    return tuple(replace(each, origin=origin, claims=claims) for each in _distinct(found))


def _found(ran: Sequence[Command]) -> list[Asked]:
    """The servers that `ran` starts, each with a note of the flags that stand behind it as a command of their own."""
    found: list[Asked] = []
    for command in ran:
        if found and command.words and command.words[0].startswith("--"):
            note = f"{command.words[0]} stands on a line that does not continue the launch, and is no part of it"
            found[-1] = replace(found[-1], notes=(*found[-1].notes, note))
        found += _launches(command)
    return found


def _launches(command: Command) -> Iterator[Asked]:
    """The servers that one command starts: itself, in a container, or in a shell of its own (`bash -c '...'`)."""
    words = command.words
    if other_programs.only_names_it(words):
        return
    for place, word in enumerate(words):
        if word.endswith(_MODULES) and not re.search(r"\s", word):
            yield _launch(command, place, place + 1)
            return
        if Path(word).name == "sglang" and words[place + 1 : place + 2] == ("serve",):
            yield _launch(command, place, place + 2)
            return
        if re.search(r"\s", word) and any(name in word for name in (*_MODULES, "sglang serve")):
            for inner in shell_script.commands(word):
                for found in _launches(replace(inner, env={**command.env, **inner.env})):
                    yield _inside(words[:place], found)
            return
    if words and Path(words[0]).name in {*containers.PROGRAMS, "sudo"}:
        begin = next((i for i, word in enumerate(words) if word.partition("=")[0] in MODEL_OPTIONS), None)
        if begin is not None and not other_programs.said_of(words[:begin]):
            yield _launch(command, begin, begin)


def _inside(before: Sequence[str], found: Asked) -> Asked:
    """A server that a shell of its own starts, with what the words before that shell say."""
    container = found.container if found.container != Container() else containers.container_of(before)
    return replace(found, container=container, env={**_environment(before), **found.env})


def _environment(before: Sequence[str]) -> dict[str, str]:
    """`A=1`, `env A=1` and `docker run -e A=1`."""
    stripped = (re.sub(r"^(?:-e|--env=)(?=\w+=)", "", word) for word in before)
    return {found[1]: found[2] for word in stripped if (found := _ASSIGNMENT.fullmatch(word))}


def _launch(command: Command, end_of_before: int, begin_of_flags: int) -> Asked:
    before, flags = command.words[:end_of_before], command.words[begin_of_flags:]
    words = tuple(flags)
    served = ""
    if words and not words[0].startswith("-") and not _may_hold_flags(words[0], before=command.words[:begin_of_flags]):
        served, words = words[0], words[1:]
    asked = _asked(words, {**command.env, **_environment(before)}, served)
    return replace(
        asked,
        claims=_claims(" ".join((*before, *flags))),
        container=containers.container_of(before),
        notes=command.notes,
    )


def _may_hold_flags(word: str, *, before: Sequence[str]) -> bool:
    """Whether an unknown first word is more than the model, which only `sglang serve` takes by its place."""
    return unknown_in(word) is not None and (before[-1:] != ("serve",) or "[@]" in word or "[*]" in word)


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
    if rest and is_flag(rest[0]):
        return _asked(tuple(rest), given, "")
    begin = next((i for i, word in enumerate(rest) if word.startswith("--")), len(rest))
    notation = replace(read_notation(" ".join(rest[:begin])), text=" ".join(rest))
    return Asked(notation=notation, behind=tuple(rest[begin:]), env=given)


def _with_flags(notation: Notation, behind: Sequence[str], version: EngineVersion) -> Notation:
    """A notation with flags of the layout behind it: `TP8 EP8 --mem-fraction-static 0.9`."""
    layout = from_argv(behind, version).layout
    more = {name: value for name, value in vars(layout).items() if value != getattr(Layout(), name)}
    for name, value in more.items():
        if notation.flags.get(name, value) != value:
            raise MalformedError(f"{name} is written twice: {notation.flags[name]} and {value}")
    return replace(notation, flags={**notation.flags, **more})


def _asked(words: tuple[str, ...], env: Mapping[str, str], served: str) -> Asked:
    return Asked(flags=known_words(words), model=shown(model_of(words) or served), env=env)


def model_of(words: Sequence[str]) -> str:
    """What flags name to be served, the last one where they do so twice; empty where nothing."""
    served = ""
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in MODEL_OPTIONS:
            served = value if equals else (words[place + 1] if place + 1 < len(words) else "")
    return served


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
