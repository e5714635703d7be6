"""What an end asks to be tried next: the memory fraction that the engine itself names, or the same start once more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from search_spaces.layout import Layout
from tuner.fault import Fault
from tuner.outcome import Crashed, Direction, Hung, Outcome, OutOfMemory
from tuner.record import Origin, TrialRecord
from tuner.sifting import Fitting

_MAY_PASS = frozenset({Fault.COMPILING, Fault.EXCHANGE, Fault.WATCHDOG})
"""Ranks that wait for others while kernels compile: the kernel cache is warmer at the next start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """layout: what to try next. told: why, in one line."""

    layout: Layout
    origin: Origin
    told: str


def lessons(records: Sequence[TrialRecord], fitting: Mapping[Layout, Fitting]) -> list[Lesson]:
    """Of all trials so far, without what was done about them already."""
    found = (_raised(record, records, fitting) or _repeated(record, records, fitting) for record in records)
    return [lesson for lesson in found if lesson is not None]


def _raised(record: TrialRecord, records: Sequence[TrialRecord], fitting: Mapping[Layout, Fitting]) -> Lesson | None:
    """The next larger memory fraction of the space than the engine said is too small, once for each split."""
    outcome = record.outcome
    if not isinstance(outcome, OutOfMemory) or outcome.least_fraction is None:
        return None
    if outcome.direction is not Direction.RAISE_FRACTION:
        return None
    split = _split(record.requested)
    if any(r.origin is Origin.ADVISED and _split(r.requested) == split for r in records):
        return None
    tried = {r.requested for r in records}
    larger = {
        layout: each.effective.mem_fraction_static
        for layout, each in fitting.items()
        if _split(layout) == split and (each.effective.mem_fraction_static or 0.0) > outcome.least_fraction
    }
    if not larger or tried & larger.keys():
        return None
    layout = min(larger, key=lambda each: larger[each] or 1.0)
    told = f"trial {record.number}: the engine wants a memory fraction above {outcome.least_fraction:g}"
    return Lesson(layout=layout, origin=Origin.ADVISED, told=f"{told}: {layout.label} is tried")


def _repeated(record: TrialRecord, records: Sequence[TrialRecord], fitting: Mapping[Layout, Fitting]) -> Lesson | None:
    """The same layout, where what ended it may pass, and it was tried but once."""
    tries = [r for r in records if r.requested == record.requested and r.is_conclusive]
    if len(tries) > 1 or record.requested not in fitting or not may_pass(record.outcome):
        return None
    if any(r.origin is Origin.REPEATED and r.requested == record.requested for r in records):
        return None
    told = f"trial {record.number}: such an end may pass, {record.requested.label} is started once more"
    return Lesson(layout=record.requested, origin=Origin.REPEATED, told=told)


def may_pass(outcome: Outcome) -> bool:
    """Whether another start of the same layout may well end otherwise."""
    return isinstance(outcome, Crashed | Hung) and outcome.fault in _MAY_PASS


def _split(layout: Layout) -> Layout:
    return replace(layout, mem_fraction_static=None)
