"""Which of the legal layouts a ranking predicts."""

from __future__ import annotations

from collections.abc import Sequence

from search_spaces.layout import Layout
from search_spaces.space import MEM_FRACTIONS, Candidate
from tuner.predict_trials import shape_of


def with_something_to_exchange(own: Sequence[Candidate], measured: frozenset[Layout]) -> list[Candidate]:
    """Without an all-to-all backend's layouts that keep every expert on one rank, where the plain one is there, unless
    they were measured.
    """
    known = {each.requested for each in own}
    shapes = {shape_of(each) for each in measured}
    plain = Layout().moe_a2a_backend
    return [
        each
        for each in own
        if each.effective.ep_size > 1
        or each.requested.moe_a2a_backend == plain
        or each.requested.changed(moe_a2a_backend=plain) not in known
        or shape_of(each.effective) in shapes
    ]


def at_every_fraction(own: Sequence[Candidate]) -> list[Candidate]:
    """own: at the engine's own fraction. No rule and no automatic value hangs on which other one is asked for."""
    found: dict[Layout, Candidate] = {}
    for each in own:
        found.setdefault(each.effective, each)
        for fraction in MEM_FRACTIONS:
            run_as = each.effective.changed(mem_fraction_static=fraction)
            asked = each.requested.changed(mem_fraction_static=fraction)
            found.setdefault(run_as, Candidate(requested=asked, effective=run_as))
    return list(found.values())
