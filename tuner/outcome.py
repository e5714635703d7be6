"""How a trial ended: a closed set of values, each matched exhaustively where it matters.

Measured       the whole ladder was climbed
StoppedEarly   some rungs were measured, then the climb was ended on purpose
Illegal        the engine refuses the layout
OutOfMemory    at a stage, with the direction in which `mem_fraction_static` has to move
Crashed        the engine died, or its requests failed
WrongAnswers   it serves, but computes something else than the reference, or nonsense: no speed counts
Hung           no progress for longer than the stage allows
Environment    nothing was learnt about the layout: port, missing model or package, killed from outside
Interrupted    the tuner itself was stopped

Those in which something failed also say, as far as it is known: `fault`, what it was; `rank`, the first that failed, as
the log names it (`TP3 EP1`); `advice`, what would get past it; `evidence`, the lines that show it, most telling first;
`measurement`, of a load that failed: the rungs below, which are whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from tuner.correctness import Agreement
from tuner.fault import Fault
from tuner.measurement import Measurement


class Direction(StrEnum):
    """What would get past an out-of-memory end."""

    RAISE_FRACTION = "raise mem_fraction_static"
    LOWER_FRACTION = "lower mem_fraction_static"
    SPLIT_FURTHER = "split the weights over more GPUs"
    FEWER_REQUESTS = "run fewer or shorter requests; mem_fraction_static is not the matter"
    MORE_HOST_MEMORY = "more memory on the host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    measurement: Measurement
    kind: Literal["measured"] = "measured"

    @property
    def summary(self) -> str:
        return f"{len(self.measurement.rungs)} rungs measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedEarly:
    measurement: Measurement
    reason: str
    kind: Literal["stopped early"] = "stopped early"

    @property
    def summary(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Illegal:
    """cause: the engine's own words. stage: where it refused."""

    cause: str
    stage: str
    exit_code: int | None
    evidence: tuple[str, ...] = ()
    fault: Fault = Fault.UNKNOWN
    rank: str = ""
    advice: str = ""
    kind: Literal["illegal"] = "illegal"

    @property
    def summary(self) -> str:
        return f"refused at {self.stage}: {self.cause}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """shortfall_bytes: by how much, on the GPU that failed; None where the engine does not say.

    least_fraction: the mem_fraction_static above which the engine says that it would go on; None where it names none.
    """

    cause: str
    stage: str
    direction: Direction
    exit_code: int | None
    shortfall_bytes: int | None = None
    least_fraction: float | None = None
    evidence: tuple[str, ...] = ()
    fault: Fault = Fault.UNKNOWN
    rank: str = ""
    advice: str = ""
    measurement: Measurement | None = None
    kind: Literal["out of memory"] = "out of memory"

    @property
    def summary(self) -> str:
        direction = "" if self.advice else f" ({self.direction})"  # advice says it in other words
        return f"out of memory at {self.stage}{direction}: {self.cause}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashed:
    cause: str
    stage: str
    exit_code: int | None
    evidence: tuple[str, ...] = ()
    fault: Fault = Fault.UNKNOWN
    rank: str = ""
    advice: str = ""
    measurement: Measurement | None = None
    kind: Literal["crashed"] = "crashed"

    @property
    def summary(self) -> str:
        return f"crashed at {self.stage}: {self.cause}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongAnswers:
    """agreement: how far its answers are from the reference's and from themselves."""

    cause: str
    agreement: Agreement
    stage: str = "answers"
    exit_code: int | None = None
    evidence: tuple[str, ...] = ()
    fault: Fault = Fault.WRONG_ANSWERS
    rank: str = ""
    advice: str = ""
    kind: Literal["wrong answers"] = "wrong answers"

    @property
    def summary(self) -> str:
        return f"wrong answers: {self.cause}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hung:
    stage: str
    silent_s: float
    """Wall seconds without any sign of progress."""
    evidence: tuple[str, ...] = ()
    fault: Fault = Fault.UNKNOWN
    rank: str = ""
    advice: str = ""
    measurement: Measurement | None = None
    kind: Literal["hung"] = "hung"

    @property
    def summary(self) -> str:
        return f"hung at {self.stage}: no progress for {self.silent_s:.0f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    cause: str
    stage: str
    exit_code: int | None
    evidence: tuple[str, ...] = ()
    fault: Fault = Fault.UNKNOWN
    rank: str = ""
    advice: str = ""
    measurement: Measurement | None = None
    kind: Literal["environment"] = "environment"

    @property
    def summary(self) -> str:
        return f"environment at {self.stage}: {self.cause}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    cause: str
    kind: Literal["interrupted"] = "interrupted"

    @property
    def summary(self) -> str:
        return self.cause


Outcome = Measured | StoppedEarly | Illegal | OutOfMemory | Crashed | WrongAnswers | Hung | Environment | Interrupted


def measurement_of(outcome: Outcome) -> Measurement | None:
    """Of a climb that nothing failed in."""
    return outcome.measurement if isinstance(outcome, Measured | StoppedEarly) else None


def seen_of(outcome: Outcome) -> Measurement | None:
    """All rungs that were measured, those below the one at which the server failed among them."""
    return None if isinstance(outcome, Illegal | WrongAnswers | Interrupted) else outcome.measurement


def with_rungs(outcome: Outcome, measurement: Measurement) -> Outcome:
    """The end of a load that failed, with what was measured below."""
    if not isinstance(outcome, OutOfMemory | Crashed | Hung | Environment) or not measurement.rungs:
        return outcome
    return replace(outcome, measurement=measurement)


def evidence_of(outcome: Outcome) -> tuple[str, ...]:
    """The log lines that show it, most telling first."""
    return () if isinstance(outcome, Measured | StoppedEarly | Interrupted) else outcome.evidence


def advice_of(outcome: Outcome) -> str:
    """What would get past it; empty where nothing is known to, or nothing failed."""
    return "" if isinstance(outcome, Measured | StoppedEarly | Interrupted) else outcome.advice


def fault_of(outcome: Outcome) -> Fault | None:
    """What failed; None where nothing did."""
    return None if isinstance(outcome, Measured | StoppedEarly | Interrupted) else outcome.fault


def rank_of(outcome: Outcome) -> str:
    """The first rank that failed; empty where it is not known."""
    return "" if isinstance(outcome, Measured | StoppedEarly | Interrupted) else outcome.rank


def teaches_about_layout(outcome: Outcome) -> bool:
    """Whether the end says something about the layout itself, so that it need not be tried again."""
    return not isinstance(outcome, Environment | Interrupted)
