"""What a rule of diagnosis says: a text, where it comes from, and what an end with it means."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from search_spaces.verdict import Stage
from tuner.fault import Fault
from tuner.outcome import Direction


class Kind(StrEnum):
    OUT_OF_MEMORY = "out of memory"
    CRASHED = "crashed"
    HUNG = "hung"
    ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """pattern: searched in the block of the first exception, or in the last lines of the log where there is none.

    stage: where it happened, when the text itself says so. direction: for out of memory; None where it follows from the
    stage. advice: what to do; of what runs out of memory it follows from the direction. frames: searched in the block
    too; where both are found.
    """

    kind: Kind
    fault: Fault
    pattern: re.Pattern[str]
    source: str
    stage: Stage | None = None
    direction: Direction | None = None
    advice: str = ""
    frames: re.Pattern[str] | None = None

    def is_met_by(self, text: str) -> bool:
        return self.pattern.search(text) is not None and (self.frames is None or self.frames.search(text) is not None)


def oom(
    fault: Fault,
    pattern: str,
    source: str,
    stage: Stage | None = None,
    direction: Direction | None = None,
    frames: str = "",
) -> Rule:
    return Rule(
        kind=Kind.OUT_OF_MEMORY,
        fault=fault,
        pattern=re.compile(pattern),
        source=source,
        stage=stage,
        direction=direction,
        frames=re.compile(frames) if frames else None,
    )


def crash(fault: Fault, pattern: str, source: str, advice: str = "") -> Rule:
    return Rule(kind=Kind.CRASHED, fault=fault, pattern=re.compile(pattern), source=source, advice=advice)


def hang(fault: Fault, pattern: str, source: str, advice: str) -> Rule:
    return Rule(kind=Kind.HUNG, fault=fault, pattern=re.compile(pattern), source=source, advice=advice)


def environment(fault: Fault, pattern: str, source: str, advice: str = "") -> Rule:
    return Rule(kind=Kind.ENVIRONMENT, fault=fault, pattern=re.compile(pattern), source=source, advice=advice)
