"""Asks an installed SGLang what it makes of launches: its own parser, resolution, checks and topology.

The questions go to a process of the Python in which SGLang is installed (`installed_engine_side.py`), which
imports it once and answers a launch in about a tenth of a second. Nothing is served, no weights are read.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any

from search_spaces.errors import UserError
from search_spaces.layout import Layout
from search_spaces.verdict import Stage
from tuner.engine import DEFAULT_PROGRAM

IMPORT_LIMIT_S = 300.0
ANSWER_LIMIT_S = 150.0
_STAGES = {
    "parse": Stage.PARSE,
    "resolve": Stage.RESOLVE,
    "check": Stage.CHECK,
    "publish": Stage.PUBLISH,
    "init": Stage.INIT,
    "model": Stage.MODEL,
}
_MEANT = frozenset({*(f.name for f in fields(Layout)), "attn_tp_size", "moe_tp_size"})
_LAST_WORDS_BYTES = 4000


class EngineSilentError(UserError):
    """The installed engine cannot be asked, or stopped answering; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """argv: a launch's flags with `--model-path`. env: of the server."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """version: of the installed SGLang. kind: whose rules it applies: `cuda sm_90`, `rocm`, `cpu`.

    gpu: its name as the driver has it; empty without one. memory_mib: of one GPU, as SGLang takes it; 0 without.
    """

    version: str
    kind: str
    gpu: str = ""
    memory_mib: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """asked: the stages it was taken through. stage: the one that refused it; None where all passed.

    exception, error, at: what the engine raised, and the innermost line of its own (path:line under sglang/srt).
    resolved: the layout's fields as the engine resolved them; empty where it was refused before.
    found: whatever else was found out, such as every rank's place.
    """

    asked: tuple[Stage, ...]
    stage: Stage | None
    exception: str = ""
    error: str = ""
    at: str = ""
    resolved: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    found: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_legal(self) -> bool:
        return self.stage is None


class InstalledEngine:
    """A running process that answers for an installed engine; from `installed_engine`."""

    def __init__(self, process: subprocess.Popen[bytes], stderr: IO[bytes]) -> None:
        self._process = process
        self._stderr = stderr
        self._unread = b""
        hello = self._line(IMPORT_LIMIT_S, "to import SGLang")
        if "missing" in hello:
            raise EngineSilentError(f"SGLang cannot be imported there: {hello['missing']}")
        self._asked = tuple(dict.fromkeys(_STAGES[name] for name in hello["stages"]))
        self.platform = Platform(
            version=hello["version"], kind=hello["platform"], gpu=hello["gpu"], memory_mib=hello["memory_mib"]
        )

    def ask(self, questions: Iterable[Question]) -> Iterator[Answer]:
        """One answer for each question, in order. Raises EngineSilentError."""
        for question in questions:
            yield self._answer(question)

    def _answer(self, question: Question) -> Answer:
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps({"argv": question.argv, "env": dict(question.env)}).encode() + b"\n")
            stdin.flush()
        except OSError:
            raise self._silent("was gone when it was asked") from None
        said = self._line(ANSWER_LIMIT_S, "to answer")
        if "died" in said:
            raise EngineSilentError(f"SGLang ended while it judged `{' '.join(question.argv)}`: {said['died']}")
        stage = said.pop("stage")
        return Answer(
            asked=self._asked,
            stage=None if stage is None else _STAGES[stage],
            resolved={name: _frozen(value) for name, value in said.pop("resolved").items() if name in _MEANT},
            warnings=tuple(said.pop("warnings")),
            **{name: said.pop(name) for name in ("exception", "error", "at")},
            found=said,
        )

    def _line(self, limit_s: float, purpose: str) -> dict[str, Any]:
        stdout = self._process.stdout
        assert stdout is not None
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._unread:
            if not select.select([stdout], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise self._silent(f"took longer than {limit_s:g} s {purpose}")
            part = os.read(stdout.fileno(), 1 << 20)
            if not part:
                raise self._silent("ended without an answer")
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            said: dict[str, Any] = json.loads(line)
        except ValueError:
            raise self._silent(f"answered with something else: {line[:200]!r}") from None
        return said

    def _silent(self, what: str) -> EngineSilentError:
        self._stderr.seek(0)
        words = self._stderr.read()[-_LAST_WORDS_BYTES:].decode(errors="replace").strip().splitlines()
        return EngineSilentError(f"the installed engine {what}{': ' + words[-1] if words else ''}")


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@contextmanager
def installed_engine(program: Sequence[str] = DEFAULT_PROGRAM) -> Iterator[InstalledEngine]:
    """The SGLang that `program`, a `python -m sglang.launch_server`, would start. Raises EngineSilentError."""
    if "-m" not in program:
        raise EngineSilentError(
            "only an engine that is started as `python -m sglang.launch_server` can be asked "
            f"(got `{' '.join(program)}`)"
        )
    # As a word, not a file: the Python may be in a container or on another machine.
    source = files("tuner").joinpath("installed_engine_side.py").read_text(encoding="utf-8")
    with asked_process([*program[: program.index("-m")], "-c", source]) as engine:
        yield engine


@contextmanager
def asked_process(command: Sequence[str], env: Mapping[str, str] | None = None) -> Iterator[InstalledEngine]:
    """A process that speaks the protocol of `installed_engine_side`. env: laid over this one's."""
    with TemporaryFile() as stderr:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        except OSError as error:
            raise EngineSilentError(f"the installed engine's Python cannot be started: {error}") from None
        try:
            yield InstalledEngine(process, stderr)
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Its forks are in a session of their own with it, and end with it."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(1)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()


@contextmanager
def folder_of(files_of_model: Mapping[str, Mapping[str, Any]]) -> Iterator[Path]:
    """A model's folder with nothing but what engines read its shape from, for as long as the block lasts.

    files_of_model: JSON files by name, as `catalogue.model_files` gives them.
    """
    with TemporaryDirectory(prefix="layout-tune-") as folder:
        for name, content in files_of_model.items():
            Path(folder, name).write_text(json.dumps(content), encoding="utf-8")
        yield Path(folder)
