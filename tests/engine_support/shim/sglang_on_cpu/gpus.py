"""Lets SGLang believe that this machine has GPUs of a named kind, so that its CUDA rules apply.

Only what is read while a launch is resolved and a model constructed: facts of the cards, and streams that do
nothing. Whoever would compute on them gets an error.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Self

import torch

from sglang_on_cpu.absent import CALLABLE

CUDA_VERSION = "13.0"
COUNT = 8


def properties(*, name: str, sm: int, memory_mib: int) -> Any:
    """As `torch.cuda.get_device_properties` would say them; sm: compute capability times ten."""
    return SimpleNamespace(
        name=name,
        major=sm // 10,
        minor=sm % 10,
        total_memory=memory_mib << 20,
        multi_processor_count=132,
        warp_size=32,
        L2_cache_size=50 << 20,
        shared_memory_per_block_optin=227 << 10,
        regs_per_multiprocessor=1 << 16,
        gcnArchName="",
        uuid="0",
    )


class _Idle:
    """A stream or an event on which nothing runs."""

    cuda_stream = 0

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def wait_stream(self, _other: object) -> None:
        pass


def install(card: Any) -> None:
    """Before SGLang is imported. The facts of the card itself follow it, by the product's own `repeat_gpus`."""
    torch.version.cuda = CUDA_VERSION
    CALLABLE["nixl_ep.topk_idx_t"] = torch.int64
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: COUNT
    torch.cuda.get_device_name = lambda _device=None: card.name
    torch.cuda.get_device_capability = lambda _device=None: (card.major, card.minor)
    torch.cuda.get_device_properties = lambda _device=None: card
    torch.cuda.get_arch_list = lambda: [f"sm_{card.major}{card.minor}"]
    torch.cuda.current_device = lambda: 0
    torch.cuda.set_device = lambda _device: None
    torch.cuda.synchronize = lambda _device=None: None
    torch.cuda.Stream = torch.cuda.Event = _Idle
    torch.cuda.current_stream = lambda _device=None: _Idle()
