"""One launch, judged whole: the engine's rules, its silent changes, the memory, and what would work instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any

from cost_models.memory_types import DoesNotFit, Memory
from cost_models.memory_verdict import MEMORY_RULES
from cost_models.setting import Setting
from cost_models.weights import leaves_draft_out, weight_bytes_at_construction
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.rank_groups import rank_groups
from search_spaces.sglang.all_reduce import HEEDED
from search_spaces.sglang.corrections import corrected
from search_spaces.sglang.flags import FlagError, from_argv
from search_spaces.sglang.rules import how_far, judge, launch_of
from search_spaces.sglang.suggestions import nearest_legal
from search_spaces.sglang.target import Target
from search_spaces.sglang.uncounted import Uncounted
from search_spaces.sglang.uncounted_memory import uncounted_memory
from search_spaces.sglang.versions import NEWEST, EngineVersion
from search_spaces.verdict import Adjustment, Stage, Status, Verdict, Violation
from search_spaces.workload import Workload
from tuner.check_excuse import JudgedMemory, judged_memory, may_free

UP_TO_CONSTRUCTION = frozenset({Stage.PARSE, Stage.RESOLVE, Stage.CHECK, Stage.PUBLISH, Stage.INIT, Stage.MODEL})
"""The stages that need no GPU memory: arguments, topology, and the model's shapes."""

_WITHOUT_MODEL = UP_TO_CONSTRUCTION - {Stage.INIT}
"""Where a launch ends without a model whose weights could be counted."""

_BEYOND_RULES = 1e6
"""Memory runs out after every rule has been passed."""

_AT_THE_EDGE = 1e7
"""It may fit, but is not sure to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What a launch runs on: model, GPUs, the engine's version, and the environment as far as it is known."""

    model: Model
    cluster: Cluster
    version: EngineVersion = NEWEST
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def setting(self) -> Setting:
        """What predictions of its launches are made under."""
        switches = tuple(sorted((name, self.env[name]) for name in HEEDED & self.env.keys()))
        return Setting(version=self.version, environment=switches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """verdict: with the ways in which memory runs out among its violations, and suggestions that fit.

    argument_stages: the verdict up to model construction alone, which the engine reaches without GPU memory.
    memory: on the fullest GPU; None where the model is not built, or where the static fraction is none.
    ended: how memory runs out; None where it does not, or where that is not judged.
    excused: how it would run out without what `uncounted` may free; memory is not judged then.
    weight_bytes_rank0: bytes of the parameters that the first rank allocates before it loads the checkpoint.
    suggestions_fit: whether the suggestions also fit; otherwise none of this model's layouts fits these GPUs. None
        where memory is not judged.
    others: the launch's options outside of its layout, by the engine's own names. uncounted: what of the launch
        `memory` does not count.
    """

    server: Server
    verdict: Verdict
    argument_stages: Status
    memory: Memory | None = None
    ended: Violation | None = None
    excused: Violation | None = None
    weight_bytes_rank0: int | None = None
    suggestions_fit: bool | None = True
    others: Mapping[str, Any] = field(default_factory=dict)
    uncounted: tuple[Uncounted, ...] = ()

    @property
    def fits(self) -> bool | None:
        """Whether it fits the GPUs; None where it does not come to that, where a draft model that is not counted has
        to fit too, or where options that are not counted decide.
        """
        if self.memory is None or self.excused is not None:
            return None
        if any(broken.stage in UP_TO_CONSTRUCTION for broken in self.verdict.violations):
            return None
        if self.ended is None and (self.leaves_draft_out or any(each.decides for each in self.uncounted)):
            return None
        return self.ended is None

    @property
    def is_another_server(self) -> bool:
        """Whether options name another device or another model than predictions are made for."""
        return any(each.is_another_server for each in self.uncounted)

    @property
    def leaves_draft_out(self) -> bool:
        """Whether the launch loads a draft model that `memory` does not know."""
        return leaves_draft_out(self.server.model, self.verdict.effective)

    @property
    def is_tight(self) -> bool:
        """Whether it starts only if graphs and activations need less than is expected; not said of what is unjudged."""
        if self.verdict.violations or self.server.cluster.gpu.is_cpu or self.excused is not None:
            return False
        if self.is_another_server or _may_free(self.uncounted, Stage.GRAPHS):
            return False
        return self.memory is not None and self.memory.is_tight

    @property
    def is_at_the_edge(self) -> bool:
        """Whether it fits only with less memory gone before the weights are loaded than is usual."""
        is_judged = self.ended is None and self.excused is None
        return is_judged and self.memory is not None and self.memory.kv_tokens < 1


def check_flags(words: Sequence[str], server: Server, *, suggest: bool = True, memory_decides: bool = True) -> Checked:
    """Launch flags as the engine's own parser would read them; what it cannot read is a broken rule too."""
    try:
        parsed = from_argv(words, server.version)
    except FlagError as error:
        return _unreadable(words, error, server, suggest=suggest)
    return check_layout(
        parsed.layout,
        server,
        adjustments=parsed.adjustments,
        others=parsed.others,
        suggest=suggest,
        memory_decides=memory_decides,
    )


def check_layout(
    layout: Layout,
    server: Server,
    *,
    adjustments: Sequence[Adjustment] = (),
    others: Mapping[str, Any] | None = None,
    suggest: bool = True,
    memory_decides: bool = True,
) -> Checked:
    """adjustments: what reading the flags has already changed. others: the launch's options outside of the layout.

    memory_decides: whether a launch that is too large for the GPUs is illegal; otherwise that is only said by `fits`.
    """
    model, cluster = server.model, server.cluster
    verdict = judge(layout, model, cluster, server.version, suggest=False, env=server.env)
    verdict = replace(verdict, adjustments=(*adjustments, *verdict.adjustments))
    stages = {broken.stage for broken in verdict.violations}
    arguments = Status.ILLEGAL if stages & UP_TO_CONSTRUCTION else replace(verdict, violations=()).status
    checked = Checked(
        server=server,
        verdict=verdict,
        argument_stages=arguments,
        others=others or {},
        uncounted=_uncounted(others or {}, layout, verdict.effective, server),
    )
    if not stages & _WITHOUT_MODEL and rank_groups(verdict.effective):
        checked = replace(
            checked, weight_bytes_rank0=weight_bytes_at_construction(model, cluster.gpu, verdict.effective)
        )
    if checked.weight_bytes_rank0 is not None and _has_share(verdict.effective):
        judged = _judged_memory(server, verdict.effective, checked.uncounted)
        if judged.ended is not None and memory_decides:
            verdict = replace(verdict, violations=_in_order((*verdict.violations, judged.ended)))
        checked = replace(checked, verdict=verdict, memory=judged.memory, ended=judged.ended, excused=judged.excused)
    return checked if verdict.is_legal or not suggest else _with_suggestions(checked)


def _has_share(layout: Layout) -> bool:
    """Whether the static fraction is one; what the engine makes of another can only be seen on the GPU."""
    return layout.mem_fraction_static is None or 0 < layout.mem_fraction_static < 1


def _uncounted(others: Mapping[str, Any], asked: Layout, run: Layout, server: Server) -> tuple[Uncounted, ...]:
    target = Target(model=server.model, gpu=server.cluster.gpu)
    return uncounted_memory(others, asked, run, target, server.version, server.env)


def _judged_memory(server: Server, run: Layout, uncounted: Sequence[Uncounted]) -> JudgedMemory:
    return judged_memory(server.model, server.cluster, run, uncounted, server.version)


def _may_free(uncounted: Sequence[Uncounted], stage: Stage) -> bool:
    return any(each.may_free and stage in each.stages for each in uncounted)


def may_be_freed(checked: Checked, lacking: DoesNotFit, workload: Workload) -> bool:
    """Whether options that are not counted may free what `lacking` says is missing for `workload`."""
    server = checked.server
    return may_free(server.model, server.cluster, lacking, workload, checked.uncounted, server.version)


def check_anew(checked: Checked, layout: Layout) -> Checked:
    """Another layout on the same server with the same other options, without suggestions."""
    return check_layout(layout, checked.server, others=checked.others, suggest=False)


_ORDER = {stage: place for place, stage in enumerate(Stage)}


def _in_order(violations: Sequence[Violation]) -> tuple[Violation, ...]:
    """By the stage at which the engine would come to them; what it never notices is last."""
    return tuple(sorted(violations, key=lambda v: _ORDER[v.stage]))


def _with_suggestions(checked: Checked) -> Checked:
    verdict, server = checked.verdict, checked.server
    found: tuple[Layout, ...]
    if _may_free(checked.uncounted, Stage.WEIGHTS):
        found = nearest_legal(verdict.requested, server.cluster, _progress(server, _Room.FREED, checked.others))
        return replace(checked, verdict=replace(verdict, suggestions=found), suggestions_fit=None)
    fits: bool | None = _may_fit(server)
    found = ()
    if fits:
        found = nearest_legal(verdict.requested, server.cluster, _progress(server, _Room.SURE)) or nearest_legal(
            verdict.requested, server.cluster, _progress(server, _Room.POSSIBLE)
        )
    if not found and any(each.may_free for each in checked.uncounted):
        found = nearest_legal(verdict.requested, server.cluster, _progress(server, _Room.FREED, checked.others))
        fits = None if found else fits
    if not found and any(v.rule not in MEMORY_RULES for v in verdict.violations):
        fits = False
        found = nearest_legal(verdict.requested, server.cluster, _progress(server, _Room.ANY))
    return replace(checked, verdict=replace(verdict, suggestions=found), suggestions_fit=fits)


def _may_fit(server: Server) -> bool:
    """Whether the weights, divided evenly over all GPUs, leave anything: a bound, not an estimate."""
    cluster = server.cluster
    return server.model.weight_bytes / cluster.num_gpus < cluster.gpu.memory_bytes


class _Room(Enum):
    """What is asked of a layout's memory: that it fits for sure, that it may, that it may with what is not counted, or
    nothing.
    """

    SURE = auto()
    POSSIBLE = auto()
    FREED = auto()
    ANY = auto()


def _progress(server: Server, room: _Room, others: Mapping[str, Any] | None = None) -> Callable[[Layout], float | None]:
    """others: the launch's options outside of the layout, for `FREED`."""
    target = Target(model=server.model, gpu=server.cluster.gpu)

    def progress(layout: Layout) -> float | None:
        launch = launch_of(layout, target, server.cluster, server.version, server.env)
        place = how_far(launch)
        if place is not None or room is _Room.ANY:
            return place
        uncounted = _uncounted(others or {}, layout, launch.effective, server) if room is _Room.FREED else ()
        judged = _judged_memory(server, launch.effective, uncounted)
        if judged.excused is not None:
            return None
        if judged.ended is not None:
            return _BEYOND_RULES + _ORDER[judged.ended.stage]
        if room is not _Room.SURE or judged.memory.kv_tokens:
            return None
        return _AT_THE_EDGE

    return progress


def _unreadable(words: Sequence[str], error: FlagError, server: Server, *, suggest: bool) -> Checked:
    """Judged no further than the parser; suggested is what was probably meant, or what is legal near that."""
    meant = corrected(words, server.version) if suggest else None
    suggestions: tuple[Layout, ...] = ()
    fits: bool | None = True
    if meant is not None:
        inner = check_flags(meant, server)
        suggestions = (inner.verdict.requested,) if inner.verdict.is_legal else inner.verdict.suggestions
        fits = inner.suggestions_fit
    empty = Layout()
    verdict = Verdict(requested=empty, effective=empty, violations=(error.violation,), suggestions=suggestions)
    return Checked(server=server, verdict=verdict, argument_stages=Status.ILLEGAL, suggestions_fit=fits)
