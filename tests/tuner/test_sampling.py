"""The sampler as any Optuna study uses it."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution
from optuna.trial import Trial, TrialState

from search_spaces.layout import Layout
from tuner.sampling import DIRECTION_ATTR, OUTCOME_ATTR, LayoutSampler, Scored

optuna.logging.set_verbosity(optuna.logging.WARNING)

LAYOUTS = [
    Layout(tp_size=tp, pp_size=8 // tp, ep_size=ep, attn_dp_size=adp, mem_fraction_static=mem)
    for tp, ep, adp, mem in itertools.product((1, 2, 4, 8), (1, 2, 4, 8), (1, 2), (0.8, 0.9))
    if tp % ep == 0 and tp % adp == 0
]


def scored(rng_seed: int = 0) -> list[Scored]:
    rng = np.random.default_rng(rng_seed)
    return [
        Scored(layout=layout, score=float(s))
        for layout, s in zip(LAYOUTS, rng.normal(6, 0.5, len(LAYOUTS)), strict=True)
    ]


def study_of(sampler: LayoutSampler, storage: str | None = None, direction: str = "maximize") -> optuna.Study:
    return optuna.create_study(
        study_name="s", storage=storage, sampler=sampler, direction=direction, load_if_exists=True
    )


def ask(study: optuna.Study, sampler: LayoutSampler) -> tuple[Trial, Layout]:
    trial = study.ask()
    for name, distribution in sampler.distributions.items():
        assert isinstance(distribution, CategoricalDistribution)
        trial.suggest_categorical(name, distribution.choices)
    return trial, sampler.layout_of(trial.params)


def test_with_nothing_measured_the_first_proposal_is_the_prediction_s_best() -> None:
    candidates = scored()
    sampler = LayoutSampler(candidates)
    _, layout = ask(study_of(sampler), sampler)
    assert layout == max(candidates, key=lambda c: c.score).layout


def test_every_candidate_is_proposed_exactly_once_and_nothing_else() -> None:
    sampler = LayoutSampler(scored())
    study = study_of(sampler)
    proposed = []
    while sampler.open_candidates(study.get_trials()):
        trial, layout = ask(study, sampler)
        proposed.append(layout)
        study.tell(trial, 100.0 + len(proposed))
    assert sorted(map(str, proposed)) == sorted(map(str, LAYOUTS))


def test_a_study_goes_on_in_another_process_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'optuna.db'}"
    whole, halves = [], []
    for kept, url in ((whole, None), (halves, storage)):
        for part in range(2):
            sampler = LayoutSampler(scored())
            if part == 0 or url is not None:
                study = study_of(sampler, url)
            for _ in range(4):
                trial, layout = ask(study, sampler)
                kept.append(layout)
                study.tell(trial, 100.0 + 10 * layout.ep_size)
    assert whole == halves


def test_what_is_running_is_not_proposed_again() -> None:
    sampler = LayoutSampler(scored())
    study = study_of(sampler)
    assert len({ask(study, sampler)[1] for _ in range(6)}) == 6


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_it_learns_that_a_whole_family_is_better_than_predicted(direction: str) -> None:
    """The theory cannot tell the layouts apart; in truth each doubling of EP is worth a third."""
    sign = 1 if direction == "maximize" else -1
    sampler = LayoutSampler([Scored(layout=layout, score=math.log(100.0)) for layout in LAYOUTS])
    study = study_of(sampler, direction=direction)
    for _ in range(len(LAYOUTS) // 2):
        trial, layout = ask(study, sampler)
        study.tell(trial, 100.0 * (4 / 3) ** (sign * math.log2(layout.ep_size)))
    assert sampler.layout_of(study.best_trial.params).ep_size == 8


@pytest.mark.parametrize("seed", range(3))
def test_a_theory_that_has_nothing_to_do_with_the_truth_does_not_hide_the_best(seed: int) -> None:
    truth = {
        layout: 100.0 * (1 + 0.3 * math.log2(layout.ep_size) + 0.1 * math.log2(layout.tp_size)) for layout in LAYOUTS
    }
    sampler = LayoutSampler(scored(seed))
    study = study_of(sampler)
    for _ in range(len(LAYOUTS) // 2):
        trial, layout = ask(study, sampler)
        study.tell(trial, truth[layout])
    assert study.best_value >= 0.95 * max(truth.values())


def test_failures_of_a_family_make_it_less_likely_but_never_impossible() -> None:
    sampler = LayoutSampler([Scored(layout=layout, score=5.0 + 0.05 * layout.attn_dp_size) for layout in LAYOUTS])
    study = study_of(sampler)
    order = []
    while sampler.open_candidates(study.get_trials()):
        trial, layout = ask(study, sampler)
        order.append(layout.attn_dp_size)
        if layout.attn_dp_size == 2:
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, 100.0)
    failing = sum(1 for layout in LAYOUTS if layout.attn_dp_size == 2)
    assert order[0] == 2
    assert order.index(1) < failing / 2
    assert order.count(2) == failing


def test_a_trial_that_taught_nothing_is_tried_once_more_and_no_oftener() -> None:
    sampler = LayoutSampler([Scored(layout=LAYOUTS[0], score=1.0)])
    study = study_of(sampler)
    for _ in range(2):
        assert sampler.open_candidates(study.get_trials()) == [0]
        trial, _layout = ask(study, sampler)
        trial.set_user_attr(OUTCOME_ATTR, "environment")
        study.tell(trial, state=TrialState.FAIL)
    assert sampler.open_candidates(study.get_trials()) == []


def test_twins_that_differ_in_memory_alone_wait_until_nothing_else_is_left() -> None:
    sampler = LayoutSampler([Scored(layout=layout, score=float(layout.ep_size)) for layout in LAYOUTS])
    study = study_of(sampler)
    order = []
    while sampler.open_candidates(study.get_trials()):
        trial, layout = ask(study, sampler)
        order.append(replace(layout, mem_fraction_static=None))
        study.tell(trial, 100.0 * layout.ep_size)
    half = len(order) // 2
    assert len(set(order[:half])) == half


def test_a_twin_of_a_layout_that_failed_is_no_twin() -> None:
    pair = [Scored(layout=layout, score=5.0 - 0.5 * (layout.tp_size != 8)) for layout in LAYOUTS if layout.ep_size == 1]
    sampler = LayoutSampler(pair)
    study = study_of(sampler)
    trial, first = ask(study, sampler)
    study.tell(trial, state=TrialState.PRUNED)
    _, second = ask(study, sampler)
    assert first.tp_size == second.tp_size == 8


def test_an_interrupted_trial_does_not_count_as_a_try() -> None:
    sampler = LayoutSampler([Scored(layout=LAYOUTS[0], score=1.0)])
    study = study_of(sampler)
    for _ in range(4):
        trial, _layout = ask(study, sampler)
        trial.set_user_attr(OUTCOME_ATTR, "interrupted")
        study.tell(trial, state=TrialState.FAIL)
    assert sampler.open_candidates(study.get_trials()) == [0]


def test_an_enqueued_layout_comes_first() -> None:
    sampler = LayoutSampler(scored())
    study = study_of(sampler)
    study.enqueue_trial(sampler.params_of(LAYOUTS[-1]))
    assert ask(study, sampler)[1] == LAYOUTS[-1]


def test_candidates_that_differ_in_another_field_only_are_told_apart() -> None:
    mine = replace(LAYOUTS[0], chunked_prefill_size=4096, enable_dp_lm_head=True)
    sampler = LayoutSampler([Scored(layout=LAYOUTS[0], score=1.0), Scored(layout=mine, score=2.0)])
    study = study_of(sampler)
    assert [ask(study, sampler)[1] for _ in range(2)] == [mine, LAYOUTS[0]]
    assert sampler.knows(mine)
    assert not sampler.knows(replace(mine, chunked_prefill_size=2048))


def test_equal_candidates_are_refused() -> None:
    twin = Scored(layout=LAYOUTS[0], score=2.0)
    with pytest.raises(ValueError, match="differ"):
        LayoutSampler([Scored(layout=LAYOUTS[0], score=1.0), twin])
    with pytest.raises(ValueError, match="at least one"):
        LayoutSampler([])


def test_of_twins_the_one_that_may_run_out_of_memory_comes_last():
    safe, tight = (Layout(tp_size=8, mem_fraction_static=fraction) for fraction in (0.9, 0.94))
    sampler = LayoutSampler([Scored(layout=tight, score=2.0001, chance=0.5), Scored(layout=safe, score=2.0)])
    study = optuna.create_study(sampler=sampler, direction="maximize")
    assert sampler.layout_of(study.ask(sampler.distributions).params) == safe


DIED = "lower mem_fraction_static"


def roomy(room_bytes: dict[Layout, float]) -> LayoutSampler:
    """The earlier a layout, the more it promises."""
    return LayoutSampler(
        [
            Scored(layout=layout, score=float(-i), room_bytes={DIED: room})
            for i, (layout, room) in enumerate(room_bytes.items())
        ]
    )


def ended(study: optuna.Study, sampler: LayoutSampler, outcome: str, **attrs: str) -> Layout:
    trial, layout = ask(study, sampler)
    for name, value in {OUTCOME_ATTR: outcome, **attrs}.items():
        trial.set_user_attr(name, value)
    if outcome == "measured":
        study.tell(trial, 100.0)
    else:
        study.tell(trial, state=TrialState.PRUNED)
    return layout


def test_layouts_with_no_more_room_than_one_that_ran_out_of_memory_come_last() -> None:
    tight, tighter, roomiest, same = (Layout(tp_size=tp, mem_fraction_static=0.9) for tp in (1, 2, 4, 8))
    sampler = roomy({tight: 2e9, tighter: 1e9, same: 2e9, roomiest: 3e9})
    study = study_of(sampler)
    assert ended(study, sampler, "out of memory", **{DIRECTION_ATTR: DIED}) == tight
    assert ended(study, sampler, "measured") == roomiest
    assert {ended(study, sampler, "measured"), ended(study, sampler, "measured")} == {tighter, same}


def test_a_death_says_nothing_of_the_model_where_one_with_less_room_worked() -> None:
    dies, works, between = (Layout(tp_size=tp, mem_fraction_static=0.9) for tp in (1, 2, 4))
    sampler = roomy({dies: 2e9, between: 1.5e9, works: 1e9})
    doomed_by = sampler._doomed
    study = study_of(sampler)
    ended(study, sampler, "out of memory", **{DIRECTION_ATTR: DIED})
    assert len(doomed_by(study.get_trials())) == 3
    study.enqueue_trial(sampler.params_of(works))
    assert ended(study, sampler, "measured") == works
    assert doomed_by(study.get_trials()) == set()


def test_another_memory_fraction_of_a_layout_that_answers_wrongly_comes_last() -> None:
    wrong, twin, other = (Layout(tp_size=tp, mem_fraction_static=mem) for tp, mem in ((8, 0.9), (8, 0.8), (4, 0.9)))
    sampler = LayoutSampler([Scored(layout=layout, score=float(-i)) for i, layout in enumerate((wrong, twin, other))])
    study = study_of(sampler)
    assert ended(study, sampler, "wrong answers") == wrong
    assert ended(study, sampler, "measured") == other
    assert ended(study, sampler, "measured") == twin
