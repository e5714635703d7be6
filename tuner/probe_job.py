"""`tune probe`: looks at this machine, has its collectives measured, and tells of both as one document."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from search_spaces.catalogue.cluster_notation import MOST_GPUS
from search_spaces.errors import CannotRunError, MalformedError, UnknownNameError, UserError
from search_spaces.hardware import CollectiveOp
from tuner.cluster_file import UNREAD, document, refuse_to_replace, text_of, write_document
from tuner.exit_code import Exit
from tuner.probe_collectives import Measured, Plan, measure
from tuner.probe_subject import Subject, gpus_here, ranks_on_cpus
from tuner.probe_text import lines_of_curves, said_size
from tuner.voice import Voice

_SMALLEST_BYTES = 2**10
_LARGEST_BYTES = 2**28
_LARGEST_ON_CPUS_BYTES = 2**22
_MOST_BYTES = 2**32
_SIZE = re.compile(r"(?P<count>\d{1,12})\s*(?P<unit>[kmg]?)(?:i?b)?", re.IGNORECASE)
_COUNT = re.compile(r"\d{1,4}", re.ASCII)
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_LONGEST_S = 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """In the user's words, except for the counts."""

    engine_command: str | None = None
    sizes: str | None = None
    max_bytes: str | None = None
    ops: str | None = None
    groups: str | None = None
    timeout_s: float = 600.0
    cpu_ranks: int | None = None
    nodes: int = 1
    save: str | None = None
    may_replace: bool = False


def run(request: ProbeRequest, *, json_output: bool) -> Exit:
    """Raises UserError for words that cannot be used, CannotRunError for a machine with nothing to probe."""
    voice = Voice()
    path = None if request.save is None else Path(request.save).expanduser()
    if path is not None:
        refuse_to_replace(path, may_replace=request.may_replace)
    if not 1 <= request.timeout_s <= _LONGEST_S:
        raise MalformedError(f"--timeout is a number of seconds from 1 to {_LONGEST_S} (got {request.timeout_s:g})")
    ops, python = _ops(request.ops), _python(request.engine_command)
    sizes = _sizes(request)
    subject = gpus_here() if request.cpu_ranks is None else ranks_on_cpus(request.cpu_ranks)
    if subject.num_gpus * request.nodes > MOST_GPUS or request.nodes < 1:
        raise MalformedError(f"--nodes {request.nodes} of {subject.num_gpus} GPUs: a cluster has 1 to {MOST_GPUS} GPUs")
    groups = _groups(request.groups, subject.num_gpus)
    if not json_output:
        voice.result(*subject.lines)
    for note in subject.notes:
        voice.say(f"note: {note}")
    measured = Measured()
    if groups:
        plan = Plan(
            is_on_gpus=subject.is_on_gpus,
            num_ranks=groups,
            ops=ops,
            size_bytes=sizes,
            limit_s=request.timeout_s,
        )
        measured = _measured(python, plan, voice)
    else:
        voice.say("note: one GPU: there is no link to measure")
    notes = (*subject.notes, *_told(measured, subject, request, voice))
    told = _document(subject, measured, notes, request.nodes)
    if json_output:
        voice.document(text_of(told))
    elif measured.curves:
        voice.result(*lines_of_curves(measured.curves, "GPUs" if subject.is_on_gpus else "ranks"))
    if path is not None:
        write_document(told, path, may_replace=request.may_replace)
        once = " once its GPU is filled in" if subject.has_unknown_facts else ""
        voice.say(f"saved: --cluster {request.save} takes it{once}")
    return Exit.NO_TRIAL_SUCCEEDED if measured.failure else Exit.DONE


def _document(subject: Subject, measured: Measured, notes: Sequence[str], num_nodes: int) -> dict[str, Any]:
    """A cluster file, with what only people read under `probed`."""
    found = measured.found
    versions = [
        f"{name} {version}"
        for name, version in (
            ("torch", found.torch if found and measured.curves else ""),
            ("NCCL", found.nccl if found and measured.curves else ""),
        )
        if version
    ]
    fabric = replace(subject.fabric, source=", ".join((subject.fabric.source, *versions)), curves=measured.curves)
    cluster = document(subject.gpu, gpus_per_node=subject.num_gpus, num_nodes=num_nodes, fabric=fabric)
    return {**cluster, UNREAD: {**subject.details, "notes": list(notes)}}


def _measured(python: Sequence[str], plan: Plan, voice: Voice) -> Measured:
    told: set[tuple[str, str, int]] = set()

    def progress(op: str, backend: str, num_ranks: int, _size_bytes: int) -> None:
        if voice.is_live and (op, backend, num_ranks) not in told:
            told.add((op, backend, num_ranks))
            voice.say(f"measuring {op} ({backend}) between {num_ranks}")

    return measure(python, plan, progress)


def _told(measured: Measured, subject: Subject, request: ProbeRequest, voice: Voice) -> list[str]:
    """What has to be known of the measuring, said and given back."""
    notes = []
    if measured.lacks and not subject.is_on_gpus:
        raise CannotRunError(f"nothing was measured: {measured.lacks}; --engine-command names a Python that has torch")
    if measured.lacks:
        notes.append(f"no collective was measured: {measured.lacks}; --engine-command names a Python that has torch")
    if measured.failure:
        left = "no collective was measured" if not measured.curves else "not all was measured"
        notes.append(f"{left}: {measured.failure}")
    notes += [
        f"{each.op} ({each.backend}) between {each.num_ranks} was left out: {each.why}"
        for each in measured.skipped
        if each.size_bytes is None
    ]
    if request.nodes > 1:
        notes.append(f"one of {request.nodes} nodes was measured: what lies between nodes was not")
    for note in notes:
        voice.say(f"note: {note}")
    return notes


def _ops(words: str | None) -> tuple[CollectiveOp, ...]:
    if words is None:
        return tuple(CollectiveOp)
    names = [word.strip() for word in words.split(",")]
    for name in names:
        if name not in set(CollectiveOp):
            raise UnknownNameError("collective in --ops", name, [str(op) for op in CollectiveOp])
    return tuple(op for op in CollectiveOp if op in names)


def _sizes(request: ProbeRequest) -> tuple[int, ...]:
    if request.sizes is not None:
        if request.max_bytes is not None:
            raise UserError("--sizes names every size: no --max-bytes beside it")
        return tuple(sorted({_size(word, "--sizes") for word in request.sizes.split(",")}))
    default = _LARGEST_BYTES if request.cpu_ranks is None else _LARGEST_ON_CPUS_BYTES
    top = default if request.max_bytes is None else _size(request.max_bytes, "--max-bytes")
    if top < _SMALLEST_BYTES:
        raise MalformedError(f"--max-bytes is at least {_SMALLEST_BYTES}, the smallest size (got {top})")
    return tuple(_SMALLEST_BYTES << i for i in range((top // _SMALLEST_BYTES).bit_length()))


def _size(word: str, option: str) -> int:
    match = _SIZE.fullmatch(word.strip())
    size = int(match["count"]) * _UNITS[match["unit"].lower()] if match else 0
    if not 64 <= size <= _MOST_BYTES:
        raise MalformedError(
            f"{option} takes bytes from 64 to {said_size(_MOST_BYTES)}, such as 65536, 64KiB or 1MiB (got {word!r})"
        )
    return size


def _groups(words: str | None, num_gpus: int) -> tuple[int, ...]:
    if words is None:
        return tuple(2**i for i in range(1, num_gpus.bit_length()) if 2**i <= num_gpus)
    found = set()
    for word in words.split(","):
        if not _COUNT.fullmatch(word.strip()) or not 2 <= int(word) <= num_gpus:
            raise MalformedError(
                f"--groups takes counts from 2 to the {num_gpus} that are there, as 2,4 (got {words!r})"
            )
        found.add(int(word))
    return tuple(sorted(found))


def _python(engine_command: str | None) -> tuple[str, ...]:
    """The words that start the Python with torch: the engine's, where a command of it is named, else this one."""
    if engine_command is None:
        return (sys.executable,)
    try:
        words = shlex.split(engine_command)
    except ValueError as error:
        raise MalformedError(f"--engine-command cannot be read: {error} (got {engine_command!r})") from None
    if "-m" in words[1:]:
        return tuple(words[: words.index("-m")])
    if words and re.fullmatch(r"python[\d.]*", Path(words[-1]).name):
        return tuple(words)
    raise MalformedError(
        "--engine-command names a Python, or an engine that is started as `python -m sglang.launch_server` "
        f"(got {engine_command!r})"
    )
