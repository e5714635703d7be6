"""What the memory model says of a layout: where the bytes of the fullest GPU go, or by how much they do not fit."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from search_spaces.layout import Layout
from search_spaces.parts import Component
from search_spaces.verdict import Stage
from search_spaces.workload import Workload


class Remedy(StrEnum):
    """What has to change for a layout to fit."""

    RAISE_FRACTION = "raise the memory fraction"
    LOWER_FRACTION = "lower the memory fraction"
    SPREAD = "spread each replica over more GPUs"
    NO_FRACTION = "no memory fraction works: ask less of the memory outside it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on the fullest GPU: the fullest rank of the fullest pipeline stage.

    weights: resident weight bytes by component, with scales and padding; they sum to `weight_bytes`.
    scales_bytes: of those, what quantisation scales and the padding of kernels add to the plain weights.
    total_bytes: the card. reserve_bytes: what is gone before weights load (context, communicators).
    buffer_bytes: what the engine sets aside inside the static fraction before it sizes the KV cache: the workspace of
        an all-to-all backend that is made with the model, and a multimodal model's feature cache.
    kv_pool_bytes: what `mem_fraction_static` leaves for the KV cache; negative when nothing is left. state_bytes: of
        these, what hybrids keep for the states of linear attention.
    headroom_bytes: what stays outside the static fraction.
    exchange_bytes, graph_bytes, activation_bytes: what all-to-all buffers, CUDA graphs and one prefill chunk are
        expected to take of it. least_need_bytes: the least that all three can do with.
    kv_tokens: tokens that the pool of one KV replica holds; `kv_replicas` pools make the deployment's
        capacity (one for each attention-DP rank and each replica).
    max_running_requests: requests that the engine runs at once in one of these pools.
    """

    weights: tuple[tuple[Component, int], ...]
    total_bytes: int
    reserve_bytes: int
    mem_fraction_static: float
    kv_pool_bytes: int
    headroom_bytes: int
    kv_tokens: int
    kv_replicas: int
    scales_bytes: tuple[tuple[Component, int], ...] = ()
    buffer_bytes: int = 0
    state_bytes: int = 0
    exchange_bytes: int = 0
    graph_bytes: int = 0
    activation_bytes: int = 0
    least_need_bytes: int = 0
    max_running_requests: int = 0

    @property
    def weight_bytes(self) -> int:
        return sum(size for _, size in self.weights)

    @property
    def kv_tokens_total(self) -> int:
        return self.kv_tokens * self.kv_replicas

    @property
    def need_bytes(self) -> int:
        """What is expected to be needed outside the static fraction."""
        return self.exchange_bytes + self.graph_bytes + self.activation_bytes

    @property
    def is_tight(self) -> bool:
        """Whether less than the expected need stays outside the static fraction: it may run out of memory while graphs
        are captured or a long prompt is read.
        """
        return self.headroom_bytes < self.need_bytes

    @property
    def risk(self) -> str:
        """`tight`, or empty where the expected need is met."""
        return "tight" if self.is_tight else ""

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """Where all bytes of the card go; they sum to `total_bytes`.

        Weights are told without scales and padding, which have a part of their own. What graphs and activations are
        expected to need is told as far as there is room for it; where there is less, `missing_bytes` says how much.
        `free` is what is left; it is negative only where weights alone are too large.
        """
        scales = dict(self.scales_bytes)
        named = [("reserve", self.reserve_bytes)]
        named += [(str(component), size - scales.get(component, 0)) for component, size in self.weights if size]
        named += [
            ("scales and padding", sum(scales.values())),
            ("buffers", self.buffer_bytes),
            ("KV cache", max(self.kv_pool_bytes, 0) - self.state_bytes),
            ("states", self.state_bytes),
        ]
        left = self.total_bytes - sum(size for _, size in named)
        for name, size in (
            ("all-to-all", self.exchange_bytes),
            ("CUDA graphs", self.graph_bytes),
            ("activations", self.activation_bytes),
        ):
            held = min(size, max(left, 0))
            named.append((name, held))
            left -= held
        return (*named, ("free", left))

    @property
    def missing_bytes(self) -> int:
        """By how much what stays outside the static fraction falls short of the expected need; 0 where it does not."""
        return max(0, self.need_bytes - self.headroom_bytes)

    def max_concurrency(self, workload: Workload) -> int:
        """Requests of `workload` that the whole deployment runs at once: by its KV pools and its request limit."""
        of_one_pool = min(self.kv_tokens // workload.tokens_per_request, self.max_running_requests)
        return of_one_pool * self.kv_replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class DoesNotFit:
    """stage: where the launch would die. shortfall_bytes: what is missing on the fullest GPU, positive.

    remedy: what would make it fit, as `message` says it in words.
    least_fraction: the smallest `mem_fraction_static`, in thousandths, with which it fits; None where none helps.
    most_fraction: the largest, where it is too large; None elsewhere.
    """

    layout: Layout
    stage: Stage
    memory: Memory
    shortfall_bytes: int
    message: str
    remedy: Remedy
    least_fraction: float | None = None
    most_fraction: float | None = None
