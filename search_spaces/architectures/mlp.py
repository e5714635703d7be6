"""Feed-forward parts: plain MLPs, routers, routed and shared experts."""

from __future__ import annotations

from search_spaces.architectures.reading import Checkpoint
from search_spaces.parts import Component, Experts, Part, Projection, Ranks, Split, Storage, Tensor


def mlp(
    checkpoint: Checkpoint,
    layer: int,
    module: str,
    width: int,
    *,
    component: Component = Component.DENSE,
    ranks: Ranks = Ranks.WORLD,
    num_inner: int = 2,
    inner: str = "gate_proj",
    outer: str = "down_proj",
) -> tuple[Part, ...]:
    """Gate and up merged (or up alone), and down."""
    hidden, bytes_each = checkpoint.hidden_size, checkpoint.dtype_bytes
    return (
        Projection(
            component=component,
            outputs=(width,) * num_inner,
            inputs=hidden,
            ranks=ranks,
            element_bytes=bytes_each,
            storage=checkpoint.storage(layer, f"{module}.{inner}"),
        ),
        Projection(
            component=component,
            outputs=(hidden,),
            inputs=width,
            ranks=ranks,
            split=Split.INPUTS,
            element_bytes=bytes_each,
            storage=checkpoint.storage(layer, f"{module}.{outer}"),
        ),
    )


def router(checkpoint: Checkpoint, num_experts: int, *, element_bytes: int = 0, has_bias: bool = False) -> Part:
    """The router's matrix; never quantised, never split."""
    size = element_bytes or checkpoint.dtype_bytes
    bias = num_experts if has_bias else 0
    return Tensor(component=Component.ROUTER, size=num_experts * checkpoint.hidden_size + bias, element_bytes=size)


def experts(
    checkpoint: Checkpoint,
    layer: int,
    *,
    count: int,
    width: int,
    module: str = "mlp.experts.0.gate_proj",
    hidden_size: int = 0,
    num_inner: int = 2,
    has_bias: bool = False,
    storage: Storage | None = None,
) -> Experts:
    return Experts(
        count=count,
        width=width,
        hidden_size=hidden_size or checkpoint.hidden_size,
        num_inner=num_inner,
        has_bias=has_bias,
        storage=checkpoint.storage(layer, module) if storage is None else storage,
        element_bytes=checkpoint.dtype_bytes,
    )


def norms(checkpoint: Checkpoint, count: int = 2) -> Tensor:
    return Tensor(component=Component.OTHER, size=count * checkpoint.hidden_size, element_bytes=checkpoint.dtype_bytes)
