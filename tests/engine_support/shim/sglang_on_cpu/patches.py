"""Three places in SGLang 0.5.23 that a CPU server trips over, each with the error seen without the patch.

They make no layout legal that is not, and change nothing on the way a layout is resolved or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any


def _experts_of_other_ranks_add_nothing(fused_moe_native: ModuleType) -> None:
    """Under expert parallelism an expert of another rank has id -1, and the plain torch path indexes with it.

    --tp-size 2 --ep-size 2: `RuntimeError: index -1 is out of bounds for dimension 1 with size 16`
    """
    unpatched = fused_moe_native.moe_forward_native

    def moe_forward_native(layer: Any, x: Any, topk_output: Any, moe_runner_config: Any) -> Any:
        elsewhere = topk_output.topk_ids < 0
        if not elsewhere.any():
            return unpatched(layer, x, topk_output, moe_runner_config)
        # Each pick becomes a token of its own: the original counts an expert at most once a token.
        num_picks = elsewhere.shape[1]
        picks = topk_output._replace(
            topk_weights=topk_output.topk_weights.masked_fill(elsewhere, 0).reshape(-1, 1),
            topk_ids=topk_output.topk_ids.masked_fill(elsewhere, 0).reshape(-1, 1),
        )
        parts = unpatched(layer, x.repeat_interleave(num_picks, dim=0), picks, moe_runner_config)
        return parts.unflatten(0, (-1, num_picks)).sum(dim=1)

    fused_moe_native.moe_forward_native = moe_forward_native


def _padding_has_one_token(torch_native_backend: ModuleType) -> None:
    """Attention data parallelism pads batches to one size, with a length the torch backend doesn't name.

    --tp-size 2 --attn-dp-size 2:
    `AttributeError: 'TorchNativeAttnBackend' object has no attribute 'get_cpu_graph_seq_len_fill_value'`
    """
    torch_native_backend.TorchNativeAttnBackend.get_cpu_graph_seq_len_fill_value = lambda _self: 1


def _uneven_reduce_scatter_needs_no_nccl(parallel_state: ModuleType) -> None:
    """The uneven reduce-scatter goes through NCCL, except in the engine's deterministic mode.

    --tp-size 2 --ep-size 2 --attn-dp-size 2:
    `AttributeError: 'PyNcclCommunicator' object has no attribute 'device'`
    """

    def reduce_scatterv(self: Any, input_: Any, output: Any = None, sizes: list[int] | None = None) -> Any:
        return self._deterministic_reduce_scatterv(input_, output, sizes)

    parallel_state.GroupCoordinator.reduce_scatterv = reduce_scatterv


PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "sglang.srt.distributed.parallel_state": _uneven_reduce_scatter_needs_no_nccl,
    "sglang.srt.layers.attention.torch_native_backend": _padding_has_one_token,
    "sglang.srt.layers.moe.fused_moe_native": _experts_of_other_ranks_add_nothing,
}


class _PatchedSource(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        PATCHES[module.__name__](module)


class PatchedModules(MetaPathFinder):
    """Comes first on `sys.meta_path`, and patches a module as soon as it has been executed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in PATCHES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _PatchedSource(fullname, spec.origin)
        return spec
