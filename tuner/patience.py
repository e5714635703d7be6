"""How long a server may be silent, by what it is busy with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from search_spaces.verdict import Stage

WARM_UP = "warm-up"

STAGE_SILENCE_S: Mapping[str, float] = MappingProxyType(
    {
        Stage.RESOLVE: 600.0,
        Stage.INIT: 600.0,
        Stage.WEIGHTS: 1800.0,
        Stage.KV_POOL: 600.0,
        Stage.GRAPHS: 1800.0,
        WARM_UP: 1800.0,
    }
)
"""Generous where it is silent for good reasons: weights that come over a network, kernels that are compiled during
capture and warm-up. Imports and the rendezvous of ranks take a minute or two; SGLang itself gives the rendezvous 600 s
(`--dist-timeout`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Wall seconds without any sign of progress before a server counts as hung.

    by_stage_s: without a new log line, by stage of the start. starting_s: the same for every stage that it does not
    name. loaded_s: without a token from any request in flight.
    """

    starting_s: float = 1800.0
    loaded_s: float = 300.0
    by_stage_s: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def usual(cls) -> Patience:
        return cls(by_stage_s=STAGE_SILENCE_S)

    @classmethod
    def alike(cls, silence_s: float) -> Patience:
        """The same for every stage, and under load."""
        return cls(starting_s=silence_s, loaded_s=silence_s)

    def silence_s(self, stage: str) -> float:
        """How long a start may be silent at `stage`."""
        return self.by_stage_s.get(stage, self.starting_s)

    def on_a_clock(self, scale: float, *, beside_s: float) -> Patience:
        """For a server whose seconds pass `scale` times as fast as the wall's. beside_s: wall seconds of silence on
        top, that a busy machine may cause.
        """
        return Patience(
            starting_s=beside_s + self.starting_s / scale,
            loaded_s=beside_s + self.loaded_s / scale,
            by_stage_s={stage: beside_s + silence_s / scale for stage, silence_s in self.by_stage_s.items()},
        )
