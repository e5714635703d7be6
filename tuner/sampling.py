"""An Optuna sampler that proposes only legal layouts, starts from the theory and learns its error.

Each candidate has a predicted score; what is learnt from finished trials is the residual between measured
and predicted (`tuner.residual_process`). The next candidate is the one of the largest expected improvement
times the probability that it works at all. With nothing measured this is the order of the prediction.

The sampler keeps no state of its own: it rebuilds itself from the study's trials at every call, so that a
study goes on in another process where it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from search_spaces.layout import Layout
from tuner.residual_process import expected_improvement, posterior, success_probability

Params = Mapping[str, Any]

OUTCOME_ATTR = "outcome"
"""Trial user attribute: the kind of the outcome, as `tuner.outcome` names it."""
DIRECTION_ATTR = "direction"
"""Trial user attribute, of one that ran out of memory: what would get past it, as `tuner.outcome.Direction` says it."""
WRONG = "wrong answers"
COUNTED = frozenset({"environment", "killed"})
MAX_TRIES = 2
"""A layout whose trial was ended by the environment, or with its tuner, is tried once more, not for ever. What a
person interrupted does not count."""
TWIN_SCORE_GAP = 1e-3
"""Layouts that differ in the memory fraction alone, and by less than this in log score, are twins."""
MEASUREMENT_NOISE = 0.03
"""Standard deviation of a repeated measurement, in log units: 3 to 10 % between public repeats."""

_UNITS_PER_FRACTION = 2.5
"""A tenth of memory more or less changes the pool, and rarely the pace: layouts that differ in it alone are close."""

_DIMENSIONS = (
    "tp_size",
    "pp_size",
    "dp_size",
    "attn_dp_size",
    "attn_cp_size",
    "ep_size",
    "moe_dp_size",
    "moe_a2a_backend",
    "mem_fraction_static",
)
"""Always Optuna parameters, so that studies can be compared; other fields are where candidates differ in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """score: log of the predicted objective, larger is better, whatever the objective's direction. chance: that it
    works at all, as far as is known before any trial. room_bytes: what the memory model leaves where it may run out, by
    the direction that would get past it.
    """

    layout: Layout
    score: float
    chance: float = 1.0
    room_bytes: Mapping[str, float] = field(default_factory=dict)


class LayoutSampler(BaseSampler):
    """candidates: what may be proposed. noise: of one measurement, in log units."""

    def __init__(self, candidates: Sequence[Scored], *, noise: float = MEASUREMENT_NOISE) -> None:
        if not candidates:
            raise ValueError("a sampler needs at least one candidate")
        self._layouts = [c.layout for c in candidates]
        self._dimensions = _dimensions(self._layouts)
        self._params = [self.params_of(layout) for layout in self._layouts]
        self._index = {self._key(p): i for i, p in enumerate(self._params)}
        if len(self._index) != len(candidates):
            raise ValueError("candidates must differ")
        self._prior = np.array([c.score for c in candidates])
        self._room_bytes = [c.room_bytes for c in candidates]
        self._chance = np.array([c.chance for c in candidates])
        self._features = _features(self._params, self._dimensions)
        self._noise = noise
        self._independent = RandomSampler(seed=0)

    def infer_relative_search_space(
        self,
        study: Study,  # noqa: ARG002 - Optuna's interface
        trial: FrozenTrial,  # noqa: ARG002
    ) -> dict[str, BaseDistribution]:
        return dict(self.distributions)

    @property
    def distributions(self) -> dict[str, CategoricalDistribution]:
        """For each dimension the values that some candidate has."""
        values: dict[str, dict[Any, None]] = {name: {} for name in self._dimensions}
        for params in self._params:
            for name, value in params.items():
                values[name][value] = None
        return {name: CategoricalDistribution(tuple(found)) for name, found in values.items()}

    def sample_relative(
        self,
        study: Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],  # noqa: ARG002
    ) -> dict[str, Any]:
        """The parameters of the most promising candidate not yet tried."""
        others = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
        sign = 1 if study.direction is StudyDirection.MAXIMIZE else -1
        return dict(self._params[self._most_promising(others, sign=sign)])

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def params_of(self, layout: Layout) -> dict[str, Any]:
        """The layout as Optuna parameters."""
        return {name: getattr(layout, name) for name in self._dimensions}

    def knows(self, layout: Layout) -> bool:
        """Whether `layout` is a candidate."""
        return self._index.get(self._key(self.params_of(layout))) is not None and layout in self._layouts

    def _key(self, params: Params) -> tuple[Any, ...]:
        return tuple(params.get(name) for name in self._dimensions)

    def layout_of(self, params: Params) -> Layout:
        """Raises KeyError for parameters that are no candidate's."""
        return self._layouts[self._index[self._key(params)]]

    def open_candidates(self, trials: Sequence[FrozenTrial]) -> list[int]:
        """Those that may still be proposed: not tried, or tried once without learning anything."""
        tries: dict[int, int] = {}
        conclusive: set[int] = set()
        for i, t in self._tried(trials):
            tries[i] = tries.get(i, 0) + (t.user_attrs.get(OUTCOME_ATTR) in COUNTED)
            if t.state is not TrialState.FAIL:
                conclusive.add(i)
        return [i for i in range(len(self._params)) if i not in conclusive and tries.get(i, 0) < MAX_TRIES]

    def _tried(self, trials: Sequence[FrozenTrial]) -> Iterator[tuple[int, FrozenTrial]]:
        for t in trials:
            i = self._index.get(self._key(t.params))
            if i is not None:
                yield i, t

    def _most_promising(self, trials: Sequence[FrozenTrial], *, sign: int) -> int:
        """sign: +1 where larger values are better, -1 where smaller ones are."""
        measured: list[tuple[int, float]] = []
        attempts: list[tuple[int, float]] = []
        for i, t in self._tried(trials):
            if t.state is TrialState.COMPLETE and t.value is not None and t.value > 0:
                measured.append((i, sign * float(np.log(t.value))))
                attempts.append((i, 1.0))
            elif t.state in (TrialState.PRUNED, TrialState.COMPLETE):  # a value of 0: its limits hold nowhere
                attempts.append((i, 0.0))
        observed = np.array([i for i, _ in measured], dtype=int)
        scores = np.array([s for _, s in measured])
        believed = posterior(self._features, observed, scores - self._prior[observed], noise=self._noise)
        mean = self._prior + believed.mean
        best = scores.max() if len(scores) else self._prior.max()
        gain = expected_improvement(mean, believed.std, float(best))
        tried = np.array([i for i, _ in attempts], dtype=int)
        worked = np.array([w for _, w in attempts])
        promise = gain * self._chance * success_probability(self._features, tried, worked)
        open_ = self.open_candidates(trials)
        known_twins = {self._family(i) for i, _ in measured}
        fresh = {i for i in open_ if self._family(i) not in known_twins}
        doomed = self._doomed(trials)
        # Ties, and gains too small to tell apart, fall back on the believed score.
        return max(open_, key=lambda i: (i not in doomed, i in fresh, promise[i], mean[i]))

    def _doomed(self, trials: Sequence[FrozenTrial]) -> set[int]:
        """Candidates that come last: those to which the memory model leaves no more than to one that ran out of memory
        on this host, unless it left even less to one that worked; and those that differ from one that answered wrongly
        in their memory fraction alone.
        """
        tried = list(self._tried(trials))
        worked = [i for i, t in tried if t.state is TrialState.COMPLETE]
        wrong = {self._split(i) for i, t in tried if t.user_attrs.get(OUTCOME_ATTR) == WRONG}
        doomed = {i for i in range(len(self._params)) if self._split(i) in wrong}
        died: dict[str, list[int]] = {}
        for i, t in tried:
            if direction := t.user_attrs.get(DIRECTION_ATTR):
                died.setdefault(direction, []).append(i)
        for direction, ended in died.items():
            room = {i: each[direction] for i, each in enumerate(self._room_bytes) if direction in each}
            least = min((room[i] for i in worked if i in room), default=float("inf"))
            most = max((room[i] for i in ended if i in room and room[i] < least), default=float("-inf"))
            doomed |= {i for i, bytes_ in room.items() if bytes_ <= most}
        return doomed

    def _split(self, i: int) -> tuple[Any, ...]:
        return tuple(v for name, v in self._params[i].items() if name != "mem_fraction_static")

    def _family(self, i: int) -> tuple[Any, ...]:
        """Equal for twins: where more or less memory makes no difference to the score, one of them is enough."""
        rest = tuple(v for name, v in self._params[i].items() if name != "mem_fraction_static")
        return (*rest, round(self._prior[i] / TWIN_SCORE_GAP))


def _dimensions(layouts: Sequence[Layout]) -> tuple[str, ...]:
    others = (f.name for f in fields(Layout) if f.name not in _DIMENSIONS)
    return (*_DIMENSIONS, *(name for name in others if len({getattr(layout, name) for layout in layouts}) > 1))


def _features(params: Sequence[Params], dimensions: Sequence[str]) -> NDArray[np.float64]:
    """(n, d): log2 of sizes, the memory fraction, anything else as indicator columns; constant columns dropped.

    One unit is one doubling of a size, so that distances mean the same in every space.
    """
    columns: list[list[float]] = []
    for name in dimensions:
        values = [p[name] for p in params]
        if name == "mem_fraction_static":
            columns.append([_UNITS_PER_FRACTION * (v if v is not None else 0.0) for v in values])
        elif all(type(v) is int and v > 0 for v in values):
            columns.append([float(np.log2(v)) for v in values])
        else:
            columns += [[float(v == kind) for v in values] for kind in sorted(set(values), key=str)]
    matrix = np.array(columns).T
    varying = matrix[:, np.ptp(matrix, axis=0) > 0]
    return varying if varying.shape[1] else np.zeros((len(params), 1))
