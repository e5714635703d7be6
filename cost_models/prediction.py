"""What the cost model says of a layout: how it would run, or by how much it does not fit."""

from __future__ import annotations

from dataclasses import dataclass

from search_spaces.layout import Layout
from search_spaces.model import Component
from search_spaces.verdict import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on the fullest GPU, part by part.

    weights: resident weight bytes by component; they sum to `weight_bytes`.
    total_bytes: the card. reserve_bytes: what is gone before weights load (context, collectives).
    kv_pool_bytes: what `mem_fraction_static` leaves for the KV cache; negative when nothing is left.
    headroom_bytes: what stays outside the static fraction for activations and graphs.
    kv_tokens: tokens that the pool of one KV replica holds; `kv_replicas` pools make the deployment's
        capacity (one for each attention-DP rank and each replica).
    """

    weights: tuple[tuple[Component, int], ...]
    total_bytes: int
    reserve_bytes: int
    mem_fraction_static: float
    kv_pool_bytes: int
    headroom_bytes: int
    kv_tokens: int
    kv_replicas: int

    @property
    def weight_bytes(self) -> int:
        return sum(size for _, size in self.weights)

    @property
    def kv_tokens_total(self) -> int:
        return self.kv_tokens * self.kv_replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPoint:
    """Steady state with `concurrency` requests in flight.

    output_tok_per_s: output tokens per second of the whole deployment.
    """

    concurrency: int
    ttft_s: float
    tpot_s: float
    output_tok_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """One decode step at concurrency 1, by cause, in seconds; the parts sum to the step."""

    parts: tuple[tuple[str, float], ...]

    @property
    def total_s(self) -> float:
        return sum(seconds for _, seconds in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    layout: Layout
    memory: Memory
    step: StepTime
    points: tuple[ServingPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DoesNotFit:
    """stage: where the launch would die. shortfall_bytes: what is missing on the fullest GPU, positive.

    least_fraction: the smallest `mem_fraction_static`, in thousandths, with which it fits; None where none helps.
    """

    layout: Layout
    stage: Stage
    memory: Memory
    shortfall_bytes: int
    message: str
    least_fraction: float | None = None
