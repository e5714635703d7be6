"""From how a server ended to one outcome: exit code, log and stage read together.

The rules are data. Each quotes a text that the engine, torch, NCCL or the system prints (paths are under
`sglang/srt/` of 0.5.23 unless they name another project), and says what such an end means. They are tried
in order against the exception that came first, because that is the cause: a scheduler's exception makes the
parent kill itself, so "Received sigquit" and exit code 137 say nothing by themselves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from search_spaces.verdict import Stage
from tuner.outcome import Crashed, Direction, Environment, Hung, Illegal, Outcome, OutOfMemory

EXIT_ARGPARSE = 2
# A server does not end by itself: in order it does so only when it is told to.
_FROM_OUTSIDE = {0: "in order, as on SIGTERM", 137: "SIGKILL", 143: "SIGTERM"}


class Kind(StrEnum):
    OUT_OF_MEMORY = "out of memory"
    CRASHED = "crashed"
    HUNG = "hung"
    ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """pattern: searched in the block of the first exception, or in the whole log where there is none.

    stage: where it happened, when the text itself says so. direction: for out of memory; None where it
    follows from the stage.
    """

    kind: Kind
    pattern: re.Pattern[str]
    source: str
    stage: Stage | None = None
    direction: Direction | None = None


def _rule(
    kind: Kind, pattern: str, source: str, stage: Stage | None = None, direction: Direction | None = None
) -> Rule:
    return Rule(kind=kind, pattern=re.compile(pattern), source=source, stage=stage, direction=direction)


RULES: tuple[Rule, ...] = (
    _rule(
        Kind.OUT_OF_MEMORY,
        r"Loaded weights leave no GPU memory for the KV cache",
        "mem_cache/kv_cache_configurator.py:3043",
        Stage.KV_POOL,
        Direction.RAISE_FRACTION,
    ),
    _rule(
        Kind.OUT_OF_MEMORY,
        r"Not enough memory\. Please try to increase --mem-fraction-static",
        "pool_configurator.py:94",
        Stage.KV_POOL,
        Direction.RAISE_FRACTION,
    ),
    _rule(
        Kind.OUT_OF_MEMORY,
        r"max_running_request is zero|Memory pool size is too small",
        "managers/tp_worker.py:420",
        Stage.KV_POOL,
        Direction.RAISE_FRACTION,
    ),
    _rule(
        Kind.OUT_OF_MEMORY,
        r"ybrid \(mamba/linear-attention\) state cache|The DSV4 SWA pool cap .* leaves no room",
        "mem_cache/kv_cache_configurator.py:3154, :3394; model_executor/pool_configurator.py:1680",
        Stage.KV_POOL,
        Direction.RAISE_FRACTION,
    ),
    # The KV pool is there and full: what is asked of it is too much.
    _rule(
        Kind.OUT_OF_MEMORY,
        r"(?:Prefill|Decode) out of memory\. Try to lower your batch size",
        "mem_cache/allocation.py:239, :613",
        direction=Direction.FEWER_REQUESTS,
    ),
    _rule(
        Kind.OUT_OF_MEMORY,
        r"No space left for only one request",
        "managers/schedule_batch.py of 0.5.6",
        direction=Direction.FEWER_REQUESTS,
    ),
    _rule(
        Kind.OUT_OF_MEMORY,
        r"Capture (?:cuda|CUDA) graph failed: (?:(?:CUDA|HIP|NPU) out of memory|.*OutOfMemoryError)",
        "model_executor/runner/decode_cuda_graph_runner.py:603",
        Stage.GRAPHS,
        Direction.LOWER_FRACTION,
    ),
    _rule(
        Kind.OUT_OF_MEMORY,
        r"(?:CUDA|HIP|NPU|XPU|MUSA) out of memory|OutOfMemoryError|DefaultCPUAllocator: (?:can't|not enough)"
        r"|allocation failed with OOM on device",
        "torch: c10/cuda/CUDACachingAllocator.cpp, c10/core/CPUAllocator.cpp, and their vendors' likes",
    ),
    _rule(Kind.CRASHED, r"illegal memory access|cudaErrorIllegalAddress", "CUDA runtime, error 700"),
    _rule(Kind.HUNG, r"watchdog timeout", "managers/scheduler.py, forward watchdog"),
    _rule(Kind.ENVIRONMENT, r"[Aa]ddress already in use|\[Errno 98\]", "asyncio, uvicorn, zmq"),
    _rule(
        Kind.ENVIRONMENT,
        r"memory capacity is unbalanced\. Some GPUs may be occupied",
        "distributed/bootstrap.py:441",
    ),
    _rule(
        Kind.ENVIRONMENT,
        r"does not appear to have a file named|Repo id must be|is not a local folder and is not a valid model"
        r"|OSError: .*(?:config\.json|couldn't connect)|Cannot find any model weights",
        "transformers: utils/hub.py; model_loader/loader.py",
    ),
    _rule(
        Kind.ENVIRONMENT,
        r"ModuleNotFoundError|ImportError|is not installed\. Please install|is not available\. Please install",
        "the interpreter; layers/moe/token_dispatcher/deepep.py:382",
    ),
    _rule(Kind.ENVIRONMENT, r"No space left on device|\[Errno 28\]", "the file system"),
    _rule(
        Kind.ENVIRONMENT,
        r"No CUDA GPUs are available|Found no NVIDIA driver|CUDA driver version is insufficient",
        "torch: cuda/__init__.py; CUDA runtime",
    ),
    _rule(Kind.ENVIRONMENT, r"client socket has (?:timed out|failed)", "torch: distributed TCPStore"),
    _rule(
        Kind.ENVIRONMENT,
        r"trust_remote_code=True|Model architectures \[.*\] are not supported",
        "transformers: dynamic_module_utils.py; models/registry.py",
    ),
    _rule(Kind.CRASHED, r"NCCL (?:error|failure)|ncclUnhandledCudaError|ncclSystemError", "NCCL"),
    _rule(Kind.CRASHED, r"CUDA error: ", "CUDA runtime"),
    # Seen only where no scheduler left an exception of its own: then nothing says why it died.
    _rule(
        Kind.CRASHED,
        r"scheduler died during initialization|Subprocess \S+ .*crashed with exit code",
        "entrypoints/engine.py; utils/watchdog.py",
    ),
)

# Exceptions by which SGLang refuses a configuration before it touches a GPU's memory in earnest.
_REFUSALS = re.compile(
    r"^(?:\w+\.)*(?:(?:AssertionError|ValueError|ZeroDivisionError|NotImplementedError|TypeError|OverflowError)\b"
    r"|RuntimeError: .*(?:must be divisible|is not equal to|is not compatible))"
)
_REFUSING_STAGES = frozenset({str(Stage.RESOLVE), str(Stage.INIT), str(Stage.WEIGHTS)})
_EXCEPTION_LINE = re.compile(r"^(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*)?(?:Error|Exception|Exit)\b(?::.*)?$")
# Without an exception, what stands further up the log than this is no cause of its end.
_LAST_WORDS = 40
_ASKED_BY_A_CHILD = re.compile(r"Received sigquit from a child|SIGQUIT received|Triggering SIGQUIT")
_SCHEDULER_EXCEPTION = "Scheduler hit an exception"
_TRACEBACK = "Traceback (most recent call last)"
_WATCHDOG_LIMIT = re.compile(r"watchdog_timeout=(\d+)")
WATCHDOG_DEFAULT_S = 300.0
_USAGE_ERROR = re.compile(r"^.*: error: (.*)$", re.MULTILINE)


def diagnose(*, exit_code: int, log: str, stage: str) -> Outcome:
    """The outcome of a server that ended by itself.

    stage: what it was last seen busy with. log: its output, at least the last part.
    """
    if exit_code == EXIT_ARGPARSE and (usage := _USAGE_ERROR.search(log)):
        return Illegal(cause=usage[1].strip(), stage=Stage.PARSE, exit_code=exit_code, evidence=(usage[0].strip(),))
    # An exception of the main process ends it with 1, and a dying child asks it to end: what ends so without
    # either was ended from outside, whatever else stands in its log.
    if exit_code in _FROM_OUTSIDE and not holds_an_exception(log) and not _ASKED_BY_A_CHILD.search(log):
        return Environment(
            cause=f"ended from outside ({_FROM_OUTSIDE[exit_code]}), without an exception of its own",
            stage=stage,
            exit_code=exit_code,
            evidence=_last_lines(log),
        )
    block = _first_exception(log)
    cause, evidence = _cause(block)
    for rule in RULES:
        if found := rule.pattern.search("\n".join(block) if block else "\n".join(_last_lines(log, _LAST_WORDS))):
            return _outcome_of(rule, cause or found[0], evidence or (found[0],), exit_code, stage)
    if cause and stage in _REFUSING_STAGES and _REFUSALS.match(cause):
        where = Stage.MODEL if stage == Stage.WEIGHTS else stage
        return Illegal(cause=cause, stage=where, exit_code=exit_code, evidence=evidence)
    return Crashed(
        cause=cause or f"exit code {exit_code} without an exception in the log",
        stage=stage,
        exit_code=exit_code,
        evidence=evidence or _last_lines(log),
    )


def _outcome_of(rule: Rule, cause: str, evidence: tuple[str, ...], exit_code: int, stage: str) -> Outcome:
    where = str(rule.stage or stage)
    match rule.kind:
        case Kind.OUT_OF_MEMORY:
            return OutOfMemory(
                cause=cause,
                stage=where,
                direction=rule.direction or _direction(where),
                exit_code=exit_code,
                shortfall_bytes=_shortfall_bytes(cause),
                least_fraction=_least_fraction(cause),
                evidence=evidence,
            )
        case Kind.CRASHED:
            return Crashed(cause=cause, stage=where, exit_code=exit_code, evidence=evidence)
        case Kind.HUNG:
            limit = _WATCHDOG_LIMIT.search(cause)
            return Hung(stage=where, silent_s=float(limit[1]) if limit else WATCHDOG_DEFAULT_S, evidence=evidence)
        case Kind.ENVIRONMENT:
            return Environment(cause=cause, stage=where, exit_code=exit_code, evidence=evidence)


def _direction(stage: str) -> Direction:
    """While weights load, no fraction helps; later, what lies outside the static fraction ran out."""
    before_the_pool = {str(Stage.RESOLVE), str(Stage.INIT), str(Stage.WEIGHTS)}
    return Direction.SPLIT_FURTHER if stage in before_the_pool else Direction.LOWER_FRACTION


_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SIZE = r"([\d.]+) (bytes|KiB|MiB|GiB)"
_WANTED = re.compile(rf"Tried to allocate {_SIZE}")
_FREE = re.compile(rf"of which {_SIZE} is free|[;,] {_SIZE} free")
_HELD = re.compile(rf"{_SIZE} total capacity[;,] {_SIZE} already allocated")
_IN_BYTES = re.compile(r"trying to allocate (\d+) bytes \(free: (\d+)")
_LEAST_FRACTION = re.compile(r"Raise --mem-fraction-static above (0\.\d+)")


def _shortfall_bytes(cause: str) -> int | None:
    """What the allocator says it wanted, less what it says was free; None where it does not say."""
    if found := _IN_BYTES.search(cause):
        return max(int(found[1]) - int(found[2]), 1)
    wanted = _WANTED.search(cause)
    if wanted is None:
        return None
    if found := _FREE.search(cause):
        number, unit = (part for part in found.groups() if part is not None)
        free = float(number) * _UNITS[unit]
    elif found := _HELD.search(cause):
        free = float(found[1]) * _UNITS[found[2]] - float(found[3]) * _UNITS[found[4]]
    else:
        return None
    missing = float(wanted[1]) * _UNITS[wanted[2]] - free
    # A vendor that tells only what it has allocated, not what is cached, may seem to have room.
    return max(round(missing), 1)


def _least_fraction(cause: str) -> float | None:
    found = _LEAST_FRACTION.search(cause)
    return float(found[1]) if found else None


def _first_exception(log: str) -> list[str]:
    """The lines of the first scheduler exception, else of the first traceback; empty where there is none."""
    lines = log.splitlines()
    for mark in (_SCHEDULER_EXCEPTION, _TRACEBACK):
        start = next((i for i, line in enumerate(lines) if mark in line), None)
        if start is None:
            continue
        end = next((i for i in range(start + 1, len(lines)) if _EXCEPTION_LINE.match(lines[i])), None)
        if end is None:
            return lines[start:]
        # Chained exceptions go on: the last one of the block is what was raised in the end.
        stop = end + 1
        while stop < len(lines) and (not lines[stop].strip() or not _starts_a_record(lines[stop])):
            stop += 1
        return lines[start:stop]
    return []


def _starts_a_record(line: str) -> bool:
    """A new log record or a new actor's words, which do not belong to the exception before it."""
    return line.startswith("[") or "sigquit" in line.lower() or "SIGQUIT" in line


def _cause(block: list[str]) -> tuple[str, tuple[str, ...]]:
    """The exception's own words and the lines that show where it came from."""
    marks = [i for i, line in enumerate(block) if _EXCEPTION_LINE.match(line)]
    if not marks:
        return "", tuple(block[-3:])
    last = marks[-1]
    frames = [line.strip() for line in block[:last] if line.strip().startswith("File ")]
    message = [line for line in block[last:] if line.strip()]
    cause = " ".join(line.strip() for line in message[:4])
    return cause, (*message[:8], *frames[-2:])


def holds_an_exception(log: str) -> bool:
    """Whether a scheduler of this server has failed, though its processes may not all be gone yet."""
    return _SCHEDULER_EXCEPTION in log


def _last_lines(log: str, count: int = 5) -> tuple[str, ...]:
    return tuple(line for line in log.splitlines() if line.strip())[-count:]
