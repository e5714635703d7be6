"""One rule of the engine as data, and what it is asked about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.sglang.target import Target
from search_spaces.sglang.versions import NEWEST, OLDEST, EngineVersion
from search_spaces.verdict import Stage, Violation

CHOICES = "choices"
SIZES = "sizes"
ATTENTION = "attention"
EXPERTS = "experts"
"""What a rule can rely on: known words, sizes of at least 1, and TP groups that attention or experts fill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A layout about to be launched: as asked, as it would run, and on what.

    env: environment variables of the server; the engine's capacity limits are read from it.
    sound: which of CHOICES, SIZES, ATTENTION and EXPERTS hold.
    """

    asked: Layout
    effective: Layout
    target: Target
    cluster: Cluster
    version: EngineVersion = NEWEST
    env: Mapping[str, str] = field(default_factory=dict)
    sound: frozenset[str] = frozenset()

    @property
    def model(self) -> Model:
        return self.target.model

    def limit(self, variable: str, default: int) -> int:
        """A capacity from the environment; what is no integer counts as unset."""
        try:
            return int(self.env.get(variable, default))
        except ValueError:
            return default


def _empty(_: Launch) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """source: path:line under `sglang/srt/` of 0.5.23, unless it names another place.
    broken: whether the launch breaks the rule; only asked where `needs` is sound.
    exception, engine_text: what the engine raises and prints; empty where it does not notice.
    since, until: versions that have the rule, both included.
    cuda_only: whether CPU servers are free of it.
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

    def holds_for(self, version: EngineVersion, *, is_cpu: bool) -> bool:
        return self.since <= version <= self.until and not (is_cpu and self.cuda_only)

    def is_broken_by(self, launch: Launch) -> bool:
        return self.needs <= launch.sound and self.broken(launch)

    def violation(self, launch: Launch) -> Violation:
        return Violation(
            rule=self.id,
            stage=self.stage,
            message=self.message(launch),
            source=self.source,
            exception=self.exception,
            engine_text=self.engine_text(launch),
        )


def says(text: str) -> Callable[[Launch], str]:
    """A message that is the same for every launch."""

    def constant(_: Launch) -> str:
        return text

    return constant
