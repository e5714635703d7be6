"""What happens during a study, as it happens, for whoever shows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from search_spaces.layout import Layout
from tuner.measurement import Rung
from tuner.record import Origin, TrialRecord
from tuner.standing import Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted:
    number: int
    layout: Layout
    origin: Origin
    predicted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReached:
    number: int
    stage: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStarted:
    """stage_s: seconds that each stage of the start took."""

    number: int
    stage_s: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsDone:
    number: int
    concurrency: int
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RungMeasured:
    number: int
    rung: Rung


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnded:
    record: TrialRecord
    best: Standing | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something a person should know, in one line."""

    text: str


Event = TrialStarted | StageReached | ServerStarted | RequestsDone | RungMeasured | TrialEnded | Notice
Listener = Callable[[Event], None]
