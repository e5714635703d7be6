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


def _rotary_parameters_are_the_checkpoints(mimo_v2: ModuleType) -> None:
    """Servers load MiMo-V2 with the configuration class that comes with the checkpoint, which scales no positions.

    The class that transformers has puts parameters for each kind of layer in the same place:
    `TypeError: unhashable type: 'dict'`
    """
    unpatched = mimo_v2.get_rope

    def get_rope(*args: Any, rope_scaling: object = None, **kwargs: Any) -> Any:
        del rope_scaling
        return unpatched(*args, **kwargs)

    mimo_v2.get_rope = get_rope


PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "sglang.srt.distributed.parallel_state": _uneven_reduce_scatter_needs_no_nccl,
    "sglang.srt.layers.attention.torch_native_backend": _padding_has_one_token,
    "sglang.srt.layers.moe.fused_moe_native": _experts_of_other_ranks_add_nothing,
}


CONFIGURATION_PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "sglang.srt.models.mimo_v2": _rotary_parameters_are_the_checkpoints,
}
"""For the construction of models from their config.json alone."""


class _PatchedSource(SourceFileLoader):
    def __init__(self, name: str, path: str, patch: Callable[[ModuleType], None]) -> None:
        super().__init__(name, path)
        self._patch = patch

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        self._patch(module)


class PatchedModules(MetaPathFinder):
    """Comes first on `sys.meta_path`, and patches a module as soon as it has been executed."""

    def __init__(self, patches: dict[str, Callable[[ModuleType], None]]) -> None:
        self._patches = patches

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._patches:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _PatchedSource(fullname, spec.origin, self._patches[fullname])
        return spec
