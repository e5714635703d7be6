"""What the engine would make of a layout: accepted, silently changed, or refused and where."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from search_spaces.layout import Layout


class Stage(StrEnum):
    """How far a launch gets before a rule stops it, in the engine's own order."""

    PARSE = "argument parsing"
    RESOLVE = "argument resolution"
    CHECK = "argument check"
    PUBLISH = "topology check"
    INIT = "scheduler start"
    MODEL = "model construction"
    WEIGHTS = "weight load"
    KV_POOL = "KV pool sizing"
    GRAPHS = "CUDA graph capture"
    FORWARD = "first forward"
    UNDETECTED = "not detected by the engine"

    @property
    def after_illegal(self) -> str:
        """In a sentence after `illegal`, or after a rule's name."""
        return f", {self}" if self is Stage.UNDETECTED else f" at {self}"


class Status(StrEnum):
    LEGAL = "legal"
    ADJUSTED = "adjusted"
    ILLEGAL = "illegal"


class Evidence(StrEnum):
    """How a rule is known."""

    EXECUTED = "executed"
    """The engine's own code raised it, run without a GPU under the facts of one."""
    READ = "read"
    """Read in the engine's code, at a stage that needs a GPU."""
    UNCERTAIN = "uncertain"
    """Depends on a package, driver or kernel build that was not seen."""
    PREDICTED = "predicted"
    """Calculated by the memory model; the engine finds out on the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One rule that a layout breaks.

    `message` states the rule and shows the values. `source` is where the engine says so (path:line under
    `sglang/srt/` of the version judged). `exception` and `engine_text` are what the engine itself raises
    and prints; both empty where the engine does not notice.
    """

    rule: str
    stage: Stage
    message: str
    source: str
    exception: str = ""
    engine_text: str = ""
    evidence: Evidence = Evidence.EXECUTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustment:
    """A value that the engine changes without being asked."""

    name: str
    before: str
    after: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    requested: Layout
    effective: Layout
    """The layout after every silent change; where it is illegal, as far as the engine gets."""
    violations: tuple[Violation, ...] = ()
    adjustments: tuple[Adjustment, ...] = ()
    suggestions: tuple[Layout, ...] = ()
    """Nearest legal layouts, nearest first; only given with violations."""

    @property
    def status(self) -> Status:
        if self.violations:
            return Status.ILLEGAL
        return Status.ADJUSTED if self.adjustments else Status.LEGAL

    @property
    def is_legal(self) -> bool:
        return not self.violations
