"""One trial as it is kept: what was asked, predicted, done and seen."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydantic import TypeAdapter

from cost_models.prediction import Prediction
from search_spaces.layout import Layout
from tuner.outcome import Outcome, StoppedEarly, teaches_about_layout


class Origin(StrEnum):
    """Why a layout was tried."""

    BASELINE = "baseline"
    USER = "user"
    SAMPLER = "sampler"
    RETRY = "retry"
    """Again, because an earlier try taught nothing about the layout."""
    ADVISED = "advised"
    """With the memory fraction that the engine named when it refused another one."""
    REPEATED = "repeated"
    """Again, because what ended an earlier start may pass."""
    CONFIRMATION = "confirmation"
    """Again, because one run is noise and the layout is among the best."""
    REUSED = "reused"
    """Not run: a measurement of another study on the same store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """number: in order of asking, within the study. value: of the study's objective, SI; None without one.

    duration_s: wall seconds that the trial held the GPUs. command: the launch command, as words.
    run_id: the MLflow run. reused_from: the study and trial it was measured in, if not here.
    """

    number: int
    requested: Layout
    effective: Layout
    origin: Origin
    outcome: Outcome
    value: float | None
    prediction: Prediction
    command: tuple[str, ...]
    duration_s: float
    run_id: str = ""
    reused_from: str = ""

    @property
    def is_conclusive(self) -> bool:
        """Whether the trial answered for its layout, so that it need not be run again."""
        cut_short = isinstance(self.outcome, StoppedEarly) and self.value is None
        return teaches_about_layout(self.outcome) and not cut_short


_ADAPTER: TypeAdapter[TrialRecord] = TypeAdapter(TrialRecord)


def to_json(record: TrialRecord) -> str:
    return _ADAPTER.dump_json(record).decode()


def from_json(text: str) -> TrialRecord:
    """Raises pydantic.ValidationError on a record of another shape."""
    return _ADAPTER.validate_json(text)
