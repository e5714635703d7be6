"""From how a server ended to one outcome: exit code, log, stage and the kernel's log read together.

A scheduler's exception makes the parent kill itself, so that "Received sigquit" and exit code 137 say nothing by
themselves: the exception that came first is the cause (`diagnosis_log`), and rules that are data say what it means
(`diagnosis_rules`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from search_spaces.verdict import Stage
from tuner import advice
from tuner.diagnosis_container import of_container
from tuner.diagnosis_log import SCHEDULER_EXCEPTION, Failure, first_failure, last_lines, plain
from tuner.diagnosis_rule import Kind, Rule
from tuner.diagnosis_rules import KERNEL_LOG_RULES, rule_of
from tuner.fault import Fault
from tuner.outcome import Crashed, Direction, Environment, Hung, Illegal, Outcome, OutOfMemory

EXIT_ARGPARSE = 2
# A server does not end by itself: in order it does so only when it is told to.
_FROM_OUTSIDE = {0: "in order, as on SIGTERM", 137: "SIGKILL", 143: "SIGTERM"}
_BY_SIGNAL = {132: "SIGILL", 134: "SIGABRT", 135: "SIGBUS", 136: "SIGFPE", 139: "SIGSEGV"}

# Exceptions by which SGLang refuses a configuration before it touches a GPU's memory in earnest.
_REFUSALS = re.compile(
    r"^(?:\w+\.)*(?:(?:AssertionError|ValueError|ZeroDivisionError|NotImplementedError|TypeError|OverflowError"
    r"|ValidationError)\b"
    r"|RuntimeError: .*(?:must be divisible|is not equal to|is not compatible))"
)
_REFUSING_STAGES = frozenset({str(Stage.RESOLVE), str(Stage.INIT), str(Stage.WEIGHTS)})
# What the engine checks only when it sizes the KV cache or captures graphs: there a wrong type is no refusal any more.
_LATE_REFUSALS = re.compile(r"^(?:\w+\.)*(?:AssertionError|ValueError|NotImplementedError|ValidationError)\b")
_CAPTURE_FAILED = re.compile(r"^Exception: Capture (?:cuda|CUDA) graph failed")
_LATE_STAGES = frozenset({str(Stage.KV_POOL), str(Stage.GRAPHS)})
_ENGINE_ERRORS = re.compile(
    r"^(?:\w+\.)*(?:KeyError|AttributeError|IndexError|TypeError|NameError|UnboundLocalError|AssertionError|ValueError"
    r"|NotImplementedError|ValidationError)\b"
)
"""By which a program ends that did not foresee something."""
# Without an exception, what stands further up the log than this is no cause of its end.
_LAST_WORDS = 40
_LAST_OF_ALL_RANKS = 16
_ALSO_IN_WARNINGS = frozenset({Fault.PACKAGE, Fault.PERMISSION, Fault.MODEL, Fault.NETWORK, Fault.DISK})
"""What last lines say of a server that died of something else: warnings. So not where it left no exception."""
_BY_ITSELF = frozenset({1, 2, 126, 127})
"""Exit codes of programs that end by themselves, the shell's for what it cannot start among them."""
_ASKED_BY_A_CHILD = re.compile(r"Received sigquit from a child|SIGQUIT received|Triggering SIGQUIT")
_WATCHDOG_LIMIT = re.compile(r"watchdog_timeout=(\d+)")
WATCHDOG_DEFAULT_S = 300.0
_USAGE_ERROR = re.compile(r"^.*: error: (.*)$", re.MULTILINE)
_COMPILING = re.compile(
    r"DeepGEMM JIT|JIT (?:Pre-)?[Cc]ompil|[Cc]ompiling|torch\.compile|Autotun|autotun|inductor|ninja: |nvcc",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """exit_code: 128 + n for a signal n. log: the server's output, at least its last part. stage: what it was last seen
    busy with. kernel_log: what the kernel of its host said since it was started, where that may be read.
    """

    exit_code: int
    log: str
    stage: str
    kernel_log: str = ""


def diagnose(ended: Ended) -> Outcome:
    """The outcome of a server that ended by itself."""
    log = plain(ended.log)
    if ended.exit_code == EXIT_ARGPARSE and (usage := _USAGE_ERROR.search(log)):
        return Illegal(
            cause=usage[1].strip(),
            stage=Stage.PARSE,
            exit_code=ended.exit_code,
            evidence=(usage[0].strip(),),
            fault=Fault.REFUSED,
            advice=advice.RULES_AT_FAULT,
        )
    if (of_its_container := of_container(log, exit_code=ended.exit_code, stage=ended.stage)) is not None:
        return of_its_container
    failure = first_failure(log)
    rule, line = _of_kernel(ended.kernel_log)
    if rule is not None and (rule.fault is Fault.DRIVER or not failure.cause):
        return _outcome_of(rule, line, (line, *failure.evidence), ended, failure)
    outcome = _of_log(ended, log, failure)
    return outcome if rule is None else _with_evidence(outcome, line)


def _of_log(ended: Ended, log: str, failure: Failure) -> Outcome:
    # An exception of the main process ends it with 1, and a dying child asks it to end: what ends so without
    # either was ended from outside, whatever else stands in its log.
    code = ended.exit_code
    if code in _FROM_OUTSIDE and not holds_an_exception(log) and not _ASKED_BY_A_CHILD.search(log):
        return Environment(
            cause=f"ended from outside ({_FROM_OUTSIDE[code]}), without an exception of its own",
            stage=ended.stage,
            exit_code=code,
            evidence=last_lines(log),
            fault=Fault.FROM_OUTSIDE,
        )
    signal = _BY_SIGNAL.get(code)
    warns = not failure.cause and code not in _BY_ITSELF
    for searched in _searched(log, failure):
        if (rule := rule_of(searched, without=_ALSO_IN_WARNINGS if warns else frozenset())) is not None:
            line = _line_of(rule, searched)
            return _outcome_of(rule, failure.cause or line, failure.evidence or (line,), ended, failure)
    if failure.cause and _refuses(ended.stage, failure):
        return Illegal(
            cause=failure.cause,
            stage=Stage.MODEL if ended.stage == Stage.WEIGHTS else ended.stage,
            exit_code=code,
            evidence=failure.evidence,
            fault=Fault.REFUSED,
            rank=failure.rank,
            advice=advice.RULES_AT_FAULT,
        )
    is_exception = _ENGINE_ERRORS.match(failure.cause) is not None
    return Crashed(
        cause=failure.cause or f"exit code {code}{f' ({signal})' if signal else ''} without an exception in the log",
        stage=ended.stage,
        exit_code=code,
        evidence=failure.evidence or last_lines(log),
        fault=Fault.ENGINE_ERROR
        if is_exception
        else Fault.NATIVE_CRASH
        if signal and not failure.cause
        else Fault.UNKNOWN,
        rank=failure.rank,
        advice=advice.ENGINE_AT_FAULT if is_exception else "",
    )


def _refuses(stage: str, failure: Failure) -> bool:
    """Whether an exception of this kind says, at this stage, that the engine does not take the configuration."""
    if stage in _REFUSING_STAGES:
        return _REFUSALS.match(failure.cause) is not None
    if stage not in _LATE_STAGES:
        return False
    # The engine wraps what fails in capture: model_executor/runner/decode_cuda_graph_runner.py:603.
    causes = failure.lines if _CAPTURE_FAILED.match(failure.cause) else (failure.cause,)
    return any(_LATE_REFUSALS.match(cause) for cause in causes)


def _searched(log: str, failure: Failure) -> list[str]:
    """What was raised in the end comes before what it was raised for."""
    if not failure.lines:
        return ["\n".join(last_lines(log, _LAST_WORDS))]
    return ["\n".join(failure.raised), "\n".join(failure.lines)]


def _line_of(rule: Rule, searched: str) -> str:
    return next((line.strip() for line in searched.splitlines() if rule.pattern.search(line)), searched.strip()[:200])


def silent(*, stage: str, silent_s: float, log: str) -> Hung:
    """The outcome of a server that still runs, but from which nothing came for `silent_s`."""
    words = plain(log)
    is_compiling = _COMPILING.search("\n".join(last_lines(words, _LAST_OF_ALL_RANKS))) is not None
    fault = Fault.COMPILING if is_compiling else Fault.COLLECTIVE if stage == Stage.INIT else Fault.SILENT
    return Hung(
        stage=stage,
        silent_s=silent_s,
        evidence=last_lines(words),
        fault=fault,
        advice=advice.of_silence(fault, stage),
    )


def holds_an_exception(log: str) -> bool:
    """Whether a scheduler of this server has failed, though its processes may not all be gone yet."""
    return SCHEDULER_EXCEPTION in log


def _of_kernel(kernel_log: str) -> tuple[Rule | None, str]:
    """The first rule that a line of the kernel's log meets, and that line."""
    for rule in KERNEL_LOG_RULES:
        for line in kernel_log.splitlines():
            if rule.pattern.search(line):
                return rule, line.strip()
    return None, ""


def _with_evidence(outcome: Outcome, line: str) -> Outcome:
    if isinstance(outcome, Crashed | OutOfMemory):
        return replace(outcome, evidence=(*outcome.evidence, line))
    return outcome


def _outcome_of(rule: Rule, cause: str, evidence: tuple[str, ...], ended: Ended, failure: Failure) -> Outcome:
    where, code, rank = str(rule.stage or ended.stage), ended.exit_code, failure.rank
    match rule.kind:
        case Kind.OUT_OF_MEMORY:
            direction, least = rule.direction or _direction(where), _least_fraction(cause)
            return OutOfMemory(
                cause=cause,
                stage=where,
                direction=direction,
                exit_code=code,
                shortfall_bytes=_shortfall_bytes(cause),
                least_fraction=least,
                evidence=evidence,
                fault=rule.fault,
                rank=rank,
                advice=advice.of_memory(direction, rule.fault, where, least),
            )
        case Kind.CRASHED:
            return Crashed(
                cause=cause,
                stage=where,
                exit_code=code,
                evidence=evidence,
                fault=rule.fault,
                rank=rank,
                advice=rule.advice,
            )
        case Kind.HUNG:
            limit = _WATCHDOG_LIMIT.search(cause)
            return Hung(
                stage=where,
                silent_s=float(limit[1]) if limit else WATCHDOG_DEFAULT_S,
                evidence=evidence,
                fault=rule.fault,
                rank=rank,
                advice=rule.advice,
            )
        case Kind.ENVIRONMENT:
            return Environment(
                cause=cause,
                stage=where,
                exit_code=code,
                evidence=evidence,
                fault=rule.fault,
                rank=rank,
                advice=rule.advice,
            )


def _direction(stage: str) -> Direction:
    """While weights load, no fraction helps; later, what lies outside the static fraction ran out."""
    before_the_pool = {str(Stage.RESOLVE), str(Stage.INIT), str(Stage.WEIGHTS)}
    return Direction.SPLIT_FURTHER if stage in before_the_pool else Direction.LOWER_FRACTION


_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SIZE = r"(\d{1,12}(?:\.\d{1,6})?) (bytes|KiB|MiB|GiB)"
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
        free = _bytes([part for part in found.groups() if part is not None])
    elif found := _HELD.search(cause):
        free = _bytes(found.groups()[:2]) - _bytes(found.groups()[2:])
    else:
        return None
    # A vendor that tells only what it has allocated, not what is cached, may seem to have room.
    return max(round(_bytes(wanted.groups()) - free), 1)


def _bytes(number_and_unit: Sequence[str]) -> float:
    number, unit = number_and_unit
    return float(number) * _UNITS[unit]


def _least_fraction(cause: str) -> float | None:
    found = _LEAST_FRACTION.search(cause)
    return float(found[1]) if found else None
