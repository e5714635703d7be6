"""Under which engine a layout runs, and by whom it is measured."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from search_spaces.sglang.versions import NEWEST, EngineVersion


class ServingEngine(StrEnum):
    """Engines whose public measurements can be compared with; layouts are SGLang's."""

    SGLANG = "sglang"
    VLLM = "vllm"
    TRTLLM = "trtllm"


class Client(StrEnum):
    """Who sends the load and takes the time."""

    STEADY = "steady"
    """A closed loop that runs long enough for its start not to matter."""
    INFERENCEX = "inferencex"
    """The InferenceX campaigns: ten requests for each one in flight, all of the first ones sent at once, lengths drawn
    between 0.8 and 1.0 of what is stated. SGLang's times to first token hold a constant there that vLLM's do not, and
    that other campaigns of SGLang do not have: its launch flags are not known.
    """
    BURST = "burst"
    """As many requests as are in flight, all sent at once: each waits for the prompts of all. Sweeps with lengths of
    whole thousands show times to first token in proportion to concurrency times input tokens.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """version: whose rules and paths apply. release: N of SGLang 0.5.N where the measured release is older than any
    whose rules are known; None: that of `version`. is_release_known: False where `version` is a guess. environment:
    names and values of the server's environment, sorted; those that choose the way of the all-reduces are heeded
    (`search_spaces.sglang.all_reduce.SWITCHES`).
    """

    engine: ServingEngine = ServingEngine.SGLANG
    version: EngineVersion = NEWEST
    release: int | None = None
    is_release_known: bool = True
    client: Client = Client.STEADY
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def patch(self) -> int:
        """N of the SGLang 0.5.N that is served with."""
        return self.version.patch if self.release is None else self.release
