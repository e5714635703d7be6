"""`tune check --batch`: one verdict for each line of a JSON-lines file, in the same order, as they come."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

from rich.status import Status

from search_spaces.catalogue import load_gpu
from search_spaces.errors import MalformedError, UserError
from search_spaces.hardware import Cluster, Gpu
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.sglang.flags import FlagError, flags_from_mapping, from_argv
from search_spaces.sglang.versions import NEWEST, EngineVersion
from tuner import asking
from tuner.check_document import document
from tuner.checking import Server, check_flags
from tuner.exit_code import Exit
from tuner.voice import Voice

_SHOWN_EVERY = 20

_MOST_GPUS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """is_answered: whether the line could be used; otherwise `fields` says why not under `error`."""

    fields: dict[str, Any]
    is_answered: bool


def answers(lines: Iterable[str], version: EngineVersion = NEWEST, *, suggest: bool = True) -> Iterator[Answer]:
    """Blank lines are passed over. version: for lines that name none."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        asked: Any = None
        try:
            asked = _object(line)
            yield Answer(fields={"id": asked.get("id"), **_answer(asked, version, suggest=suggest)}, is_answered=True)
        except UserError as error:
            name = asked.get("id") if isinstance(asked, dict) else None
            shown = f"line {number}: {' '.join(str(error).split())}"
            yield Answer(fields={"id": name, "error": shown}, is_answered=False)


def _object(line: str) -> dict[str, Any]:
    try:
        asked = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"not JSON: {error}") from None
    if not isinstance(asked, dict):
        raise MalformedError("not a JSON object")
    return asked


def _answer(asked: Mapping[str, Any], default: EngineVersion, *, suggest: bool) -> dict[str, Any]:
    version = _version(asked.get("engine_version"), default)
    words = _words(asked, version)
    server = Server(
        model=_model(asked.get("model")),
        cluster=_cluster(_gpu(asked.get("gpu")), asked.get("n_gpus"), words, version),
        version=version,
        env=_env(asked.get("env")),
    )
    # Without a number of GPUs nobody has said that these are all there are: what is too large is told by `fits` alone.
    return document(check_flags(words, server, suggest=suggest, memory_decides=asked.get("n_gpus") is not None))


def _version(word: Any, default: EngineVersion) -> EngineVersion:
    if word is None:
        return default
    if not isinstance(word, str):
        raise MalformedError(f"engine_version is a string, e.g. {str(NEWEST)!r} (got {word!r})")
    return _parsed_version(word)


@cache
def _parsed_version(word: str) -> EngineVersion:
    return EngineVersion.parse(word)


def _words(asked: Mapping[str, Any], version: EngineVersion) -> tuple[str, ...]:
    flags, argv = asked.get("flags"), asked.get("argv")
    if (flags is None) == (argv is None):
        raise MalformedError("a line has either flags, an object, or argv, a string")
    if flags is not None:
        if not isinstance(flags, dict):
            raise MalformedError(f"flags is an object, e.g. {{'tp-size': 8}} (got {flags!r})")
        return tuple(flags_from_mapping(flags, version))
    if isinstance(argv, list) and all(isinstance(word, str) for word in argv):
        return tuple(argv)
    if not isinstance(argv, str):
        raise MalformedError(f"argv is a string, e.g. '--tp-size 8' (got {argv!r})")
    try:
        return tuple(shlex.split(argv))
    except ValueError as error:
        raise MalformedError(f"argv cannot be read as shell words: {error}") from None


def _model(word: Any) -> Model:
    if isinstance(word, dict):
        word = word.get("name")
    if not isinstance(word, str) or not word:
        raise MalformedError("model is a name of the catalogue, a hub id or a folder, or an object with that as name")
    return _served(word)


@cache
def _served(word: str) -> Model:
    return asking.served(word).model


def _gpu(word: Any) -> Gpu:
    if not isinstance(word, str) or not word:
        raise MalformedError("gpu is a name of the catalogue, e.g. h200")
    return _found_gpu(word)


@cache
def _found_gpu(word: str) -> Gpu:
    return load_gpu(word)


def _cluster(gpu: Gpu, num_gpus: Any, words: tuple[str, ...], version: EngineVersion) -> Cluster:
    """As many nodes as the launch says, with `num_gpus` GPUs in all; without a number, as many as it needs."""
    if num_gpus is not None and (type(num_gpus) is not int or not 0 <= num_gpus <= _MOST_GPUS):
        raise MalformedError(f"n_gpus is a count up to {_MOST_GPUS} (got {num_gpus!r})")
    try:
        layout = from_argv(words, version).layout
    except FlagError:
        layout = Layout()
    nodes = min(max(layout.nnodes, 1), _MOST_GPUS)
    wanted = num_gpus or min(max(layout.num_gpus, 1), _MOST_GPUS)
    return Cluster(gpu=gpu, gpus_per_node=max(math.ceil(wanted / nodes), 1), num_nodes=nodes)


def _env(env: Any) -> dict[str, str]:
    if env is None:
        return {}
    if not isinstance(env, dict):
        raise MalformedError(f"env is an object of names and values (got {env!r})")
    return {str(name): str(value) for name, value in env.items()}


def write_answers(lines: Iterable[str], version: EngineVersion = NEWEST) -> Exit:
    """Answers `lines` on stdout, each as soon as it is judged; progress for whoever watches stderr."""
    voice = Voice()
    failed = total = 0
    with Status("", console=voice.live_console()) if voice.is_live else nullcontext() as progress:
        for total, answer in enumerate(answers(lines, version), start=1):
            failed += not answer.is_answered
            voice.document(json.dumps(answer.fields, allow_nan=False) + "\n")
            if progress is not None and total % _SHOWN_EVERY == 0:
                progress.update(f"{total} lines judged")
    if failed:
        voice.say(f"tune: {failed} of {total} lines could not be used; each says why under `error`")
    return Exit.USER if failed else Exit.DONE
