"""One rule of the engine as data, and what it is asked about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.sglang.target import Target
from search_spaces.sglang.versions import NEWEST, OLDEST, EngineVersion
from search_spaces.verdict import Evidence, Stage, Violation

CHOICES = "choices"
SIZES = "sizes"
WIDTHS = "widths"
ATTENTION = "attention"
EXPERTS = "experts"
"""What a rule can rely on: known words, sizes of at least 1 (WIDTHS: those inside the TP group), and TP groups that
attention or experts fill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A layout about to be launched: as asked, as it would run, and on what.

    declared: with what the model and the weight-sharing modes declare, before attention data parallelism
        divides the chunk and an all-to-all backend widens ep_size: what the engine's group checks see.
    env: environment variables of the server; the engine's capacity limits are read from it.
    sound: which of CHOICES, SIZES, WIDTHS, ATTENTION and EXPERTS hold.
    """

    asked: Layout
    declared: Layout
    effective: Layout
    target: Target
    cluster: Cluster
    version: EngineVersion = NEWEST
    env: Mapping[str, str] = field(default_factory=dict)
    sound: frozenset[str] = frozenset()

    @property
    def model(self) -> Model:
        return self.target.model

    @property
    def asks_megamoe(self) -> bool:
        """Whether the flags name MegaMoE, by either of its two options (arg_groups/mega_moe_hook.py:260)."""
        return "megamoe" in (self.asked.moe_a2a_backend, self.asked.moe_runner_backend)

    def limit(self, variable: str, default: int) -> int:
        """A capacity from the environment; what is no integer counts as unset."""
        try:
            return int(self.env.get(variable, default))
        except ValueError:
            return default


_EXECUTED_STAGES = frozenset(
    {Stage.PARSE, Stage.RESOLVE, Stage.CHECK, Stage.PUBLISH, Stage.INIT, Stage.MODEL, Stage.UNDETECTED}
)


def _empty(_: Launch) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """source: path:line under `sglang/srt/` of 0.5.23, unless it names another place.
    broken: whether the launch breaks the rule; only asked where `needs` is sound.
    exception, engine_text: what the engine raises and prints; empty where it does not notice.
    since, until: versions that have the rule, both included.
    cuda_only: whether CPU servers are free of it.
    evidence: None stands for what its stage usually has: executed up to model construction, read after it.
    concerns, backends, architectures: what has to be the case before a launch can break the rule at all: one of these
        fields is set, the all-to-all backend or the model is one of these. Empty: any. They only spare the question.
    """

    id: str
    stage: Stage
    source: str
    broken: Callable[[Launch], bool]
    message: Callable[[Launch], str]
    exception: str = ""
    engine_text: Callable[[Launch], str] = _empty
    needs: frozenset[str] = frozenset({CHOICES})
    since: EngineVersion = OLDEST
    until: EngineVersion = NEWEST
    cuda_only: bool = False
    evidence: Evidence | None = None
    concerns: frozenset[str] = frozenset()
    backends: frozenset[str] = frozenset()
    architectures: frozenset[str] = frozenset()

    def holds_for(self, version: EngineVersion, *, is_cpu: bool) -> bool:
        return self.since <= version <= self.until and not (is_cpu and self.cuda_only)

    def violation(self, launch: Launch) -> Violation:
        return Violation(
            rule=self.id,
            stage=self.stage,
            message=self.message(launch),
            source=self.source,
            exception=self.exception,
            engine_text=self.engine_text(launch),
            evidence=self.evidence or (Evidence.EXECUTED if self.stage in _EXECUTED_STAGES else Evidence.READ),
        )


def says(text: str) -> Callable[[Launch], str]:
    """A message that is the same for every launch."""

    def constant(_: Launch) -> str:
        return text

    return constant


def worded(*texts: tuple[EngineVersion, str]) -> Callable[[Launch], str]:
    """A text that the engine has reworded: each wording with the first release that has it, oldest first."""

    def of_its_release(launch: Launch) -> str:
        return [text for first, text in texts if first <= launch.version][-1]

    return of_its_release
