"""What an option or environment variable that the memory model does not count is told by.

Paths are under `sglang/srt/` of 0.5.23.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.parts import Component
from search_spaces.sglang.target import Target
from search_spaces.sglang.versions import EngineVersion
from search_spaces.verdict import Stage


class Effect(StrEnum):
    FREES = "frees"
    """Less GPU memory is needed than is counted."""
    ADDS = "adds"
    EITHER = "either"


class Part(StrEnum):
    """What of the GPU's memory is moved."""

    WEIGHTS = "weights"
    CACHE = "cache"
    """KV cache and states of requests: what of the static fraction the weights leave."""
    BUFFERS = "buffers"
    """What is set aside inside the static fraction before the KV cache is sized."""
    FRACTION = "fraction"
    """The static fraction itself, where no other is asked for, and what is captured outside of it."""
    SERVER = "server"
    """Everything: another model, or another device."""


POOL = frozenset({Stage.KV_POOL})
GRAPHS = frozenset({Stage.GRAPHS})
STATIC = frozenset({Stage.WEIGHTS, Stage.KV_POOL})
ALL = STATIC | GRAPHS

EVERY = frozenset(Component)
LAYERS = EVERY - {Component.EMBED, Component.LM_HEAD, Component.VISION}
"""What of the weights stands in decoder layers."""
ROUTED = frozenset({Component.ROUTED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A launch, as far as it decides what an option does.

    asked, run: the layout as asked for, and as it runs. others: the values of options outside of the layout, by the
        engine's own names. env: the server's environment, as far as it is known.
    """

    asked: Layout
    run: Layout
    others: Mapping[str, Any]
    env: Mapping[str, str]
    target: Target
    version: EngineVersion

    @property
    def model(self) -> Model:
        return self.target.model


@dataclass(frozen=True, slots=True, kw_only=True)
class UncountedOption:
    """One option or variable.

    name: of an option the engine's own (its parser's `dest`). does: told after it; `{}` stands for the value.
    stages: where memory runs out sooner or later for it. counts: the values that do so; of an environment variable,
        `bool` stands for a switch.
    concerns: whether it does so to a launch: elsewhere the engine refuses the launch, or the option moves nothing.
    components: of weights, those that it can move. most_share: of their bytes, what it frees at most.
    raises_fraction_to: the largest static fraction that the engine may choose for it.
    decides: whether it may need so much more, or less, that nothing can be said to fit.
    changes_times: whether steps take another time than without it.
    """

    name: str
    does: str
    effect: Effect
    source: str
    part: Part = Part.WEIGHTS
    stages: frozenset[Stage] = STATIC
    counts: Callable[[Any], bool] = bool
    concerns: Callable[[Situation], bool] = lambda _: True
    components: frozenset[Component] = EVERY
    most_share: Callable[[Situation], float] = lambda _: 1.0
    raises_fraction_to: Callable[[Situation], float] = lambda _: 1.0
    decides: bool = False
    changes_times: bool = False
    gpu_only: bool = False
    shows_value: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncounted:
    """words: as they stand in the launch. does: what they do, told after them.

    stages: where memory runs out sooner or later for it. part: what is moved.
    components, most_share: of these weights, the share that it frees at most. most_bytes: what it frees on each GPU at
        most, but for one layer; None where only the share bounds it.
    least_growth: the factor by which `components` grow at least. raises_fraction_to: the largest static fraction that
        the engine may choose for it. decides: whether nothing can be said to fit beside it. changes_times: whether
        steps take another time than without it.
    """

    words: str
    does: str
    effect: Effect
    stages: frozenset[Stage]
    part: Part = Part.WEIGHTS
    components: frozenset[Component] = EVERY
    most_share: float = 1.0
    most_bytes: float | None = None
    least_growth: float = 1.0
    raises_fraction_to: float = 1.0
    decides: bool = False
    changes_times: bool = False

    @property
    def may_free(self) -> bool:
        return self.effect is not Effect.ADDS

    @property
    def is_another_server(self) -> bool:
        """Whether the model or the device is another one, so that no prediction for these GPUs is about the launch."""
        return self.part is Part.SERVER
