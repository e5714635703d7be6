"""Which layout is measured again after the search: the finalists in turn, until noise is told from difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from search_spaces.layout import Layout
from tuner.objective import Aim
from tuner.record import Origin, TrialRecord
from tuner.standing import Standing, finalists, is_tie, standings

DETHRONED = 3
"""A leader that falls back makes room for the next: so many layouts' confirmations may be run in all."""


def next_to_confirm(
    records: Sequence[TrialRecord], objective: Aim, *, rounds: int, may_run: Callable[[Layout], bool]
) -> Layout | None:
    """The finalist that was run least often, the leader first: A B A B, so that what drifts with time befalls both
    alike.

    rounds: how often each finalist is measured again. None once each was, or once two runs of each tell them apart. A
    leader that nobody comes near is measured again once: its order is not in doubt, its value may be.
    """
    again = [record.requested for record in records if record.origin is Origin.CONFIRMATION]
    if len(again) >= DETHRONED * rounds:
        return None
    final = finalists(standings(records, objective), objective)
    if len(final) == 2 and all(len(s.values) > 1 for s in final) and not is_tie(*final):
        return None
    most = 1 + (rounds if len(final) > 1 else min(rounds, 1))

    def runs(standing: Standing) -> int:
        """Also those that gave no value: what fails does so once more, not for ever."""
        failed = [r for r in records if r.value is None and r.requested == standing.requested]
        return len(standing.values) + sum(r.origin is Origin.CONFIRMATION for r in failed)

    open_ = [s for s in final if runs(s) < most and may_run(s.requested)]
    return min(open_, key=runs).requested if open_ else None
