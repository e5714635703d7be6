"""Has collectives measured by a Python that has torch: one process a GPU (`probe_side.py`)."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.resources import files
from tempfile import TemporaryFile
from typing import IO, Any

from search_spaces.hardware import CollectiveOp, MeasuredCurve

_LAST_WORDS_BYTES = 4000
_GRACE_S = 5.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """num_ranks: of each group, rising. limit_s: for everything together.

    is_on_gpus: else ranks on this host's CPUs. with_custom: SGLang's own all-reduce too.
    """

    is_on_gpus: bool
    num_ranks: tuple[int, ...]
    ops: tuple[CollectiveOp, ...]
    size_bytes: tuple[int, ...]
    limit_s: float
    with_custom: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFound:
    """What the Python says that measures. num_gpus: as many as its torch can use with NCCL."""

    torch: str
    num_gpus: int = 0
    nccl: str = ""
    sglang: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """size_bytes: None where nothing of it was measured."""

    op: str
    backend: str
    num_ranks: int
    why: str
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """failure: what ended it early, in words; curves hold what was measured until then.

    lacks: what is missing there that measuring needs, such as torch.
    """

    found: TorchFound | None = None
    curves: tuple[MeasuredCurve, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    failure: str = ""
    lacks: str = ""


Progress = Callable[[str, str, int, int], None]
"""op, backend, num_ranks, size_bytes of a point that was just measured."""


@dataclass(slots=True)
class _Findings:
    """What has come in so far."""

    found: TorchFound | None = None
    points: dict[tuple[CollectiveOp, str, int], dict[int, float]] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    lacks: str = ""
    last_words: str = "nothing had been measured by then"

    def measured(self, failure: str) -> Measured:
        return Measured(
            found=self.found,
            curves=tuple(
                MeasuredCurve(
                    op=op,
                    backend=backend,
                    num_ranks=num_ranks,
                    size_bytes=tuple(sorted(by_size)),
                    seconds=tuple(by_size[size] for size in sorted(by_size)),
                )
                for (op, backend, num_ranks), by_size in self.points.items()
            ),
            skipped=tuple(self.skipped),
            failure=failure,
            lacks=self.lacks,
        )


def measure(python: Sequence[str], plan: Plan, progress: Progress) -> Measured:
    """python: the words that start it. However this ends, nothing that it started is left."""
    findings = _Findings()
    # As a word, not a file: the Python may be in a container.
    source = files("tuner").joinpath("probe_side.py").read_text(encoding="utf-8")
    with TemporaryFile() as stderr:
        try:
            with _side([*python, "-c", source], stderr) as process:
                _send(process, plan)
                failure = _take_in(process, findings, plan, progress)
        except OSError as error:
            return findings.measured(f"{' '.join(python)} cannot be started: {error.strerror}")
        return findings.measured(_with_last_words(failure, stderr))


@contextmanager
def _side(command: Sequence[str], stderr: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Closing its standard input asks it to end with all its ranks, also in a container; what is here is killed."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={"PYTHONUNBUFFERED": "1", **os.environ},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        try:
            _wait_unreaped(process.pid)
        finally:
            # Not reaped yet, so that its group cannot be anyone else's.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, 9)
            process.wait()


def _wait_unreaped(pid: int) -> None:
    deadline = time.monotonic() + _GRACE_S
    while time.monotonic() < deadline:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
            return
        time.sleep(_POLL_S)


def _send(process: subprocess.Popen[bytes], plan: Plan) -> None:
    assert process.stdin is not None
    words = {
        "device": "cuda" if plan.is_on_gpus else "cpu",
        "groups": plan.num_ranks,
        "ops": [str(op) for op in plan.ops],
        "sizes": plan.size_bytes,
        "limit_s": plan.limit_s,
        "custom": plan.is_on_gpus and plan.with_custom and CollectiveOp.ALL_REDUCE in plan.ops,
    }
    with suppress(BrokenPipeError):  # it has ended already; what it said is read next
        process.stdin.write(json.dumps(words).encode() + b"\n")
        process.stdin.flush()


def _take_in(process: subprocess.Popen[bytes], findings: _Findings, plan: Plan, progress: Progress) -> str:
    """Why it ended early; empty where it is done."""
    stdout = process.stdout
    assert stdout is not None
    deadline = time.monotonic() + plan.limit_s
    unread = b""
    while True:
        if not select.select([stdout], [], [], max(deadline - time.monotonic(), 0))[0]:
            return f"it took longer than {plan.limit_s:g} s (--timeout); {findings.last_words}"
        part = os.read(stdout.fileno(), 1 << 16)
        *lines, unread = (unread + part).split(b"\n")
        for line in lines:
            try:
                said = json.loads(line)
                end = _take(said, findings, plan, progress)
            except (ValueError, KeyError, TypeError, AttributeError):
                return f"it answered with something else: {line[:200].decode(errors='replace')}"
            if end is not None:
                return end
        if not part:
            return "it ended without a word"


def _take(said: dict[str, Any], findings: _Findings, plan: Plan, progress: Progress) -> str | None:
    """None: more is to come; else why nothing is, as `_take_in` gives it."""
    if "hello" in said:
        return _take_hello(said["hello"], findings, plan)
    if "point" in said:
        point = said["point"]
        op, backend, num_ranks, size = (point[name] for name in ("op", "backend", "num_ranks", "size_bytes"))
        if not point["seconds"] > 0:
            return f"{op} of {size} bytes took a time of {point['seconds']} s"
        findings.points.setdefault((CollectiveOp(op), backend, num_ranks), {})[size] = float(f"{point['seconds']:.6g}")
        findings.last_words = f"the last that was measured is {op} ({backend}) between {num_ranks}, {size} bytes"
        progress(op, backend, num_ranks, size)
    elif "skipped" in said:
        findings.skipped.append(Skipped(**said["skipped"]))
    elif "failed" in said:
        return f"rank {said['failed']['rank']}: {said['failed']['error']}"
    elif "missing" in said:
        findings.lacks = str(said["missing"])
    return "" if said.get("done") or findings.lacks else None


def _take_hello(hello: dict[str, Any], findings: _Findings, plan: Plan) -> str | None:
    found = TorchFound(**{name: hello[name] for name in ("torch", "num_gpus", "nccl", "sglang")})
    findings.found = found
    most = max(plan.num_ranks)
    if plan.is_on_gpus and not found.num_gpus:
        findings.lacks = f"torch {found.torch} there finds no GPU, or no NCCL"
        return ""
    if plan.is_on_gpus and found.num_gpus < most:
        return f"torch {found.torch} there sees {found.num_gpus} GPUs, where {most} are to be measured"
    return None


def _with_last_words(failure: str, stderr: IO[bytes]) -> str:
    if failure != "it ended without a word":
        return failure
    stderr.seek(0)
    words = stderr.read()[-_LAST_WORDS_BYTES:].decode(errors="replace").strip().splitlines()
    return f"it ended with: {words[-1]}" if words else failure
