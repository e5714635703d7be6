"""What a line of `--batch` asks: one JSON object, read into a launch on a server and judged."""

from __future__ import annotations

import difflib
import json
import math
import reprlib
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from search_spaces.catalogue import load_gpu
from search_spaces.errors import MalformedError, UserError
from search_spaces.hardware import Cluster, Gpu
from search_spaces.layout import MOST_GPUS, Layout
from search_spaces.model import Model
from search_spaces.sglang.flag_errors import is_flag
from search_spaces.sglang.flags import FlagError, flags_from_mapping, from_argv
from search_spaces.sglang.versions import NEWEST, EngineVersion
from tuner import asking
from tuner.checking import Checked, Server, check_flags, check_layout
from tuner.cluster_words import cluster_of
from tuner.launch_words import Asked, launches_of, model_of
from tuner.other_programs import said_of

KEYS = ("id", "model", "gpu", "n_gpus", "cluster", "flags", "argv", "env", "engine_version")
_AS_GOOD_AS_WRITTEN = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """is_answered: whether the line could be used; otherwise `fields` says why not under `error`."""

    fields: dict[str, Any]
    is_answered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedLine:
    """notes: what of the launch is left out of account."""

    checked: Checked
    notes: tuple[str, ...] = ()


def numbered(lines: Iterable[str | bytes]) -> Iterator[tuple[int, str | bytes]]:
    """From 1; blank lines are passed over."""
    return ((number, line) for number, line in enumerate(lines, start=1) if line.strip())


def unanswered(number: int, asked: Any, error: UserError) -> Answer:
    """asked: the line's object, as far as it could be read."""
    name = asked.get("id") if isinstance(asked, dict) else None
    return Answer(
        fields={"id": name, "error": f"line {number}: {' '.join(str(error).split())}"},
        is_answered=False,
    )


def object_of(line: str | bytes) -> dict[str, Any]:
    """Raises MalformedError. A mark of the byte order may stand in front."""
    try:
        text = line.decode("utf-8-sig") if isinstance(line, bytes) else line
    except UnicodeDecodeError as error:
        raise MalformedError(f"not UTF-8: {error.reason} at byte {error.start}") from None
    try:
        asked = json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"not JSON: {error}") from None
    if not isinstance(asked, dict):
        raise MalformedError("not a JSON object")
    return asked


def refuse_misspelled(asked: Mapping[str, Any], keys: Sequence[str] = KEYS) -> None:
    """A line may carry keys of its own; one that is nearly a known key is a mistake."""
    for key in asked:
        if key in keys:
            continue
        if near := difflib.get_close_matches(key.lower(), keys, n=1, cutoff=_AS_GOOD_AS_WRITTEN):
            raise MalformedError(f"unknown key {key!r}; did you mean {near[0]}? Known: {', '.join(keys)}")


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def _finite(word: str) -> float:
    if not math.isfinite(number := float(word)):
        raise ValueError(f"{word} is beyond what a float holds")
    return number


def judged_line(
    asked: Mapping[str, Any],
    default: EngineVersion,
    *,
    suggest: bool = True,
    model_named: Callable[[Any], Model] | None = None,
    gpu_named: Callable[[str], Gpu] | None = None,
) -> JudgedLine:
    """default: for a line that names no version. model_named, gpu_named: how the line's `model` and `gpu` are read,
    where they may be more than names of the catalogue.

    Raises UserError.
    """
    version = _version(asked.get("engine_version"), default)
    launch = launch_of_line(asked, version)
    if asked.get("engine_version") is None:
        version = launch.container.version or version
    given = replace(launch, env={**launch.env, **environment_of_line(asked)})
    layout = _layout(launch, version)
    cluster = _cluster(asked, layout, gpu_named or _found_gpu)
    visible = given.visible_gpus
    named = launch.model if asked.get("model") is None and launch.model else asked.get("model")
    server = Server(
        model=(model_named or model_of_line)(named),
        cluster=cluster if visible is None else visible.of(cluster),
        version=version,
        env=given.env,
    )
    # Without a number of GPUs nobody has said that these are all there are: what is too large is told by `fits` alone.
    decides = asked.get("n_gpus") is not None or asked.get("cluster") is not None
    if launch.notation is not None:
        on_nodes = launch.notation.literal_on(server.cluster)
        others = from_argv(launch.behind, version).others
        checked = check_layout(on_nodes, server, others=others, suggest=suggest, memory_decides=decides)
    else:
        checked = check_flags(launch.flags, server, suggest=suggest, memory_decides=decides)
    return JudgedLine(checked=checked, notes=tuple(_notes(launch, server.model)))


def _notes(launch: Asked, model: Model) -> list[str]:
    """What of the launch is left out of account: also another model that it names itself."""
    named = launch.model or model_of(launch.flags)
    try:
        other = asking.served_elsewhere(named).model.name if named else model.name
    except UserError:
        other = model.name
    said = f"the launch names {named}; it is judged for {model.name}, as the line's model says"
    return [*([said] if other != model.name else []), *launch.notes]


def _layout(launch: Asked, version: EngineVersion) -> Layout:
    if launch.notation is not None:
        return launch.notation.literal
    try:
        return from_argv(launch.flags, version).layout
    except FlagError:
        return Layout()


def _version(word: Any, default: EngineVersion) -> EngineVersion:
    if word is None:
        return default
    if not isinstance(word, str):
        raise MalformedError(f"engine_version is a string, e.g. {str(NEWEST)!r} (got {word!r})")
    return _parsed_version(word)


@cache
def _parsed_version(word: str) -> EngineVersion:
    return EngineVersion.parse(word)


def launch_of_line(asked: Mapping[str, Any], version: EngineVersion) -> Asked:
    """By `flags` or `argv`. Raises MalformedError."""
    flags, argv = asked.get("flags"), asked.get("argv")
    if (flags is None) == (argv is None):
        raise MalformedError("a line has either flags, an object, or argv, a string")
    if flags is None:
        return _one_launch(_shell_words(argv), version)
    if not isinstance(flags, dict):
        raise MalformedError(f"flags is an object, e.g. {{'tp-size': 8}} (got {flags!r})")
    return Asked(flags=flags_from_mapping(flags, version))


def _shell_words(argv: Any) -> tuple[str, ...]:
    if isinstance(argv, list) and all(isinstance(word, str) for word in argv):
        return tuple(argv)
    if not isinstance(argv, str):
        raise MalformedError(f"argv is a string, e.g. '--tp-size 8' (got {argv!r})")
    try:
        return tuple(shlex.split(argv))
    except ValueError as error:
        raise MalformedError(f"argv cannot be read as shell words: {error}") from None


def _one_launch(words: tuple[str, ...], version: EngineVersion) -> Asked:
    """Bare flags are judged as they are, whatever they hold; else it is a launch command or a notation."""
    if not words or is_flag(words[0]):
        return Asked(flags=words)
    try:
        launches = [each.under(version) for each in launches_of(words)]
    except MalformedError:
        if said_of(words) or not any(map(is_flag, words)):
            raise
        return Asked(flags=words)
    if len(launches) > 1:
        raise MalformedError(f"argv starts {len(launches)} servers: one a line")
    return launches[0]


def name_of_model(word: Any) -> str:
    if isinstance(word, dict):
        word = word.get("name")
    if not isinstance(word, str) or not word:
        raise MalformedError("model is a name of the catalogue, a hub id or a folder, or an object with that as name")
    return word


def model_of_line(word: Any) -> Model:
    return _served(name_of_model(word))


@cache
def _served(word: str) -> Model:
    return asking.served(word).model


def _name_of_gpu(word: Any) -> str:
    if not isinstance(word, str) or not word:
        raise MalformedError("a line says gpu, a name of the catalogue (h200), or cluster (8xh200)")
    return word


@cache
def _cluster_named(word: str) -> Cluster:
    return cluster_of(word)


@cache
def _found_gpu(word: str) -> Gpu:
    return load_gpu(word)


def _cluster(asked: Mapping[str, Any], layout: Layout, gpu_named: Callable[[str], Gpu]) -> Cluster:
    """As many nodes as the launch says, with n_gpus GPUs in all; without a number, as many as it needs."""
    word, num_gpus = asked.get("cluster"), asked.get("n_gpus")
    if word is not None:
        if asked.get("gpu") is not None or num_gpus is not None:
            raise MalformedError("a line has either gpu and n_gpus, or cluster, e.g. 8xh200")
        if not isinstance(word, str):
            raise MalformedError(f"cluster is a string, e.g. 8xh200 (got {word!r})")
        return _cluster_named(word)
    gpu = gpu_named(_name_of_gpu(asked.get("gpu")))
    # A launch with a size of 0 asks for no GPU, and whoever counts for it says so.
    if num_gpus is not None and not num_gpus == layout.num_gpus == 0:
        if type(num_gpus) is not int or not 1 <= num_gpus <= MOST_GPUS:
            raise MalformedError(f"n_gpus is a count from 1 to {MOST_GPUS} (got {reprlib.repr(num_gpus)})")
        # Equal nodes: GPUs that are left over help none of them.
        nodes = min(max(layout.nnodes, 1), num_gpus)
        return Cluster(gpu=gpu, gpus_per_node=num_gpus // nodes, num_nodes=nodes)
    needed = layout.needed_nodes()
    return Cluster(gpu=gpu, gpus_per_node=needed["gpus_per_node"], num_nodes=needed["num_nodes"])


def environment_of_line(asked: Mapping[str, Any]) -> dict[str, str]:
    """`env` of a line: names and values of the server's environment. Raises MalformedError."""
    env = asked.get("env")
    if env is None:
        return {}
    if not isinstance(env, dict):
        raise MalformedError(f"env is an object of names and values (got {env!r})")
    return {str(name): str(value) for name, value in env.items()}
