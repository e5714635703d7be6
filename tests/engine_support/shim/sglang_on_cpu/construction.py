"""The two stages that SGLang 0.5.23 goes through in its scheduler processes, on the first rank of a stage.

Process groups are torch's fake ones, in which nothing is sent; the model's own class is built on the meta
device, with the checkpoint's quantisation, so that it has shapes and no memory.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from typing import Any

import sglang.srt.models.registry  # noqa: F401 - every model class, so that a fork has it already
import torch
import torch.distributed as dist
from sglang.srt.arg_groups.overrides import model_config_of
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.distributed import bootstrap, parallel_state
from sglang.srt.eplb.expert_location import compute_initial_expert_location_metadata
from sglang.srt.layers.dp_attention import initialize_dp_attention
from sglang.srt.layers.moe import initialize_moe_config
from sglang.srt.model_executor.model_runner_components.moe_ep_setup import check_quantized_moe_compatibility
from sglang.srt.model_loader.loader import _get_quantization_config, _initialize_model
from sglang.srt.runtime_context import SpawnRanks, get_parallel, publish
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore

PARTS = (
    ("vision", r"visual|vision|mm_projector|multi_modal"),
    ("embed", r"embed_tokens|wte\b"),
    ("lm_head", r"lm_head"),
    ("shared", r"shared_expert"),
    ("routed", r"\.experts\."),
    ("router", r"(mlp|block_sparse_moe|moe|feed_forward|mixer)\.(gate|router)\.|\.router\."),
    ("attention", r"self_attn|linear_attn|\.attention\.|\.attn\."),
    ("dense", r"\.mlp\.|feed_forward"),
)
"""Parts of a model by their parameters' names; what none of them names is `other` (norms)."""

EXPERTS_PER_TOKEN = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "top_k_experts",
    "moe_top_k",
    "moe_topk",
)
"""By which of its fields SGLang sees that a model has experts (managers/scheduler.py:999)."""


def start_scheduler(launch: Any) -> None:
    """Groups and the settings that layers read (managers/scheduler.py:536-1016, distributed/bootstrap.py:305)."""
    publish(launch.server_args, role="scheduler", ranks=SpawnRanks(world_rank=0, dp_rank=0, gpu_id=0))
    parallel = get_parallel()
    world_size = parallel.tp_size * parallel.pp_size
    # Groups would keep buffers on the GPU.
    parallel_state.is_cuda_alike = lambda: False
    parallel_state.set_custom_all_reduce(False)
    dist.init_process_group(backend="fake", store=FakeStore(), rank=0, world_size=world_size)
    unfaked = dist.new_group
    dist.new_group = lambda ranks=None, *_args, **_kwargs: unfaked(ranks, backend="fake")
    parallel_state.init_distributed_environment(
        backend="fake", world_size=world_size, rank=0, local_rank=0, distributed_init_method="fake://"
    )
    parallel_state.initialize_model_parallel(backend="fake")
    initialize_dp_attention(server_args=launch.server_args)
    if any(hasattr(model_config_of(launch.server_args).hf_text_config, name) for name in EXPERTS_PER_TOKEN):
        initialize_moe_config()


def construct_model(launch: Any) -> None:
    """From the experts' places to the built class (model_executor/model_runner.py:705, model_loader/loader.py)."""
    model_config = model_config_of(launch.server_args)
    parallel = get_parallel()
    torch.get_device_module = lambda _device=None: torch.cuda
    torch.set_default_dtype(model_config.dtype)
    with _InsteadOfGpu("cpu"):
        bootstrap.initialize_layernorm_sp(model_config=model_config)
        compute_initial_expert_location_metadata(model_config=model_config, moe_ep_rank=parallel.moe_ep_rank)
    with torch.device("meta"), _InsteadOfGpu("meta"):
        load_config = LoadConfig(load_format="dummy")
        quantization = _get_quantization_config(model_config, load_config)
        model = _initialize_model(model_config, load_config, quantization)
    if parallel.pp_size > 1:
        takes_stages = "pp_proxy_tensors" in inspect.signature(model.forward).parameters
        assert takes_stages, "Pipeline Parallel is not compatible with this model."
    launch.found["weight_bytes"] = weight_bytes(model)
    launch.found["refused_after_load"] = _refusal_after_load(model_config)


def _refusal_after_load(model_config: Any) -> str:
    """What the engine checks only when it has the weights (model_executor/model_runner.py:493)."""

    parallel = get_parallel()
    try:
        check_quantized_moe_compatibility(
            model_config=model_config,
            tp_size=parallel.tp_size,
            moe_ep_size=parallel.moe_ep_size,
            moe_dp_size=parallel.moe_dp_size,
        )
    except ValueError as refusal:
        return str(refusal)
    return ""


def weight_bytes(model: Any) -> dict[str, int]:
    """Bytes of the constructed parameters by part, without those whose shape only the checkpoint tells (GGUF)."""
    found: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            continue
        part = next((part for part, pattern in PARTS if re.search(pattern, name)), "other")
        found[part] += parameter.numel() * parameter.element_size()
    return {**found, "total": found.total()}


class _InsteadOfGpu(TorchFunctionMode):
    """What asks for the GPU by name (tables of experts, of rotary embeddings) gets another device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def moved(value: object) -> object:
            is_gpu = isinstance(value, str | torch.device) and str(value).startswith("cuda")
            return self._device if is_gpu else value

        return func(*map(moved, args), **{name: moved(value) for name, value in (kwargs or {}).items()})
