"""What a study came to."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.memory_types import DoesNotFit
from search_spaces.space import Space
from tuner.record import TrialRecord
from tuner.request import Request
from tuner.standing import Standing, runner_up


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """standings: measured layouts, best first. does_not_fit: ruled out by the memory model, with the reason.

    stopped_because: why the search ended. interrupted: a person or a signal ended it.
    """

    request: Request
    space: Space
    records: tuple[TrialRecord, ...]
    standings: tuple[Standing, ...]
    does_not_fit: tuple[DoesNotFit, ...]
    stopped_because: str
    interrupted: bool
    tracking_uri: str
    experiment_id: str
    run_id: str
    run_url: str

    @property
    def winner(self) -> Standing | None:
        return self.standings[0] if self.standings else None

    @property
    def runner_up(self) -> Standing | None:
        return runner_up(self.standings) if self.standings else None

    @property
    def current(self) -> Standing | None:
        """Of the user's own layout."""
        wish = self.request.baseline
        return next((s for s in self.standings if wish in {r.requested for r in s.records}), None)

    @property
    def baseline(self) -> Standing | None:
        wanted = self.space.baseline.effective
        return next((s for s in self.standings if s.effective == wanted), None)
