"""Which weights a checkpoint stores quantised, and how, from its `quantization_config`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from search_spaces.errors import MalformedError, UnsupportedError
from search_spaces.model import Component, Quantization, Scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What must be known of a checkpoint to name its modules."""

    name: str
    num_layers: int
    num_dense_layers: int
    has_shared_experts: bool


def quantization_from_config(raw: Any, checkpoint: Checkpoint) -> Quantization:
    """Reads fp8, compressed-tensors, modelopt and mxfp4 configurations; None means unquantised.

    A component counts as quantised when most of its layers are: some checkpoints leave the first
    layer alone. Routers, embeddings and the LM head stay unquantised under every scheme read here
    (sglang 0.5.23 builds them without a quantisation method).
    """
    if raw is None:
        return Quantization()
    if not isinstance(raw, Mapping):
        raise MalformedError(f"{checkpoint.name}: quantization_config must be an object (got {raw!r})")
    scheme, group_size = _scheme(raw, checkpoint.name)
    if scheme is Scheme.MXFP4:
        # The engine's MXFP4 method exists for experts only.
        return Quantization(scheme=scheme, group_size=group_size, components=frozenset({Component.ROUTED}))
    skipped = [
        _module_pattern(str(pattern))
        for key in ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules")
        for pattern in _listed(raw.get(key), key, checkpoint.name)
    ]
    components = frozenset(
        component
        for component, modules in _modules(checkpoint).items()
        if modules and 2 * sum(_is_skipped(module, skipped) for module in modules) < len(modules)
    )
    if not components:
        return Quantization()
    return Quantization(scheme=scheme, group_size=group_size, components=components)


def _scheme(raw: Mapping[str, Any], name: str) -> tuple[Scheme, int]:
    method = raw.get("quant_method")
    match method:
        case "fp8":
            return _fp8(raw.get("weight_block_size"), name)
        case "mxfp4":
            return Scheme.MXFP4, 32
        case "compressed-tensors":
            return _compressed_tensors(raw, name)
        case "modelopt" | "modelopt_fp4" | "modelopt_fp8":
            return _modelopt(raw, name)
        case None:
            raise MalformedError(f"{name}: quantization_config lacks quant_method")
        case _:
            raise UnsupportedError(
                f"{name}: quantisation method {method!r} is not known here. "
                "Known: compressed-tensors, fp8, modelopt, mxfp4"
            )


def _fp8(block: Any, name: str) -> tuple[Scheme, int]:
    if block is None:
        return Scheme.FP8_CHANNEL, 0
    is_pair = isinstance(block, list) and len(block) == 2
    if not is_pair or type(block[0]) is not int or block[0] < 1 or block[0] != block[1]:
        raise UnsupportedError(f"{name}: FP8 weight blocks must be square, e.g. [128, 128] (got {block!r})")
    return Scheme.FP8_BLOCK, int(block[0])


def _compressed_tensors(raw: Mapping[str, Any], name: str) -> tuple[Scheme, int]:
    groups = raw.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise MalformedError(f"{name}: a compressed-tensors quantization_config lacks config_groups")
    first = next(iter(groups.values()))
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(weights, Mapping):
        raise MalformedError(f"{name}: config_groups of compressed-tensors must hold groups with weights")
    match weights.get("num_bits"), weights.get("type"), weights.get("strategy"):
        case 4, "int", "group":
            return Scheme.INT4_GROUP, _group_size(weights.get("group_size"), name)
        case 8, "float", "channel" | "tensor":
            return Scheme.FP8_CHANNEL, 0
        case 8, "float", "block":
            return _fp8(weights.get("block_structure"), name)
        case 4, "float", _:
            return Scheme.NVFP4, _group_size(weights.get("group_size", 16), name)
        case bits, kind, strategy:
            raise UnsupportedError(
                f"{name}: compressed-tensors weights with num_bits={bits}, type={kind}, strategy={strategy} "
                "are not known here. Known: int 4-bit group; float 8-bit channel, tensor, block; float 4-bit"
            )


def _group_size(value: Any, name: str) -> int:
    if type(value) is not int or value < 1:
        raise MalformedError(f"{name}: group_size of a quantization_config must be a positive integer (got {value!r})")
    return value


def _listed(value: Any, key: str, name: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise MalformedError(f"{name}: {key} of a quantization_config must be a list (got {value!r})")
    return value


def _modelopt(raw: Mapping[str, Any], name: str) -> tuple[Scheme, int]:
    nested = raw.get("quantization")
    inner = nested if isinstance(nested, Mapping) else raw
    algorithm = inner.get("quant_algo")
    match algorithm:
        case "NVFP4":
            return Scheme.NVFP4, _group_size(inner.get("group_size", 16), name)
        case "FP8":
            return Scheme.FP8_CHANNEL, 0
        case _:
            raise UnsupportedError(f"{name}: modelopt algorithm {algorithm!r} is not known here. Known: FP8, NVFP4")


def _modules(checkpoint: Checkpoint) -> Mapping[Component, tuple[str, ...]]:
    """One representative linear module of each component in every layer that has it."""
    layers = range(checkpoint.num_layers)
    moe_layers = layers[checkpoint.num_dense_layers :]

    def named(which: Iterable[int], module: str) -> tuple[str, ...]:
        return tuple(f"model.layers.{layer}.{module}" for layer in which)

    return {
        Component.ATTENTION: named(layers, "self_attn.o_proj"),
        Component.DENSE: named(layers[: checkpoint.num_dense_layers], "mlp.gate_proj"),
        Component.ROUTED: named(moe_layers, "mlp.experts.0.gate_proj"),
        Component.SHARED: (named(moe_layers, "mlp.shared_experts.gate_proj") if checkpoint.has_shared_experts else ()),
    }


def _module_pattern(pattern: str) -> re.Pattern[str]:
    """`re:` marks a regular expression; otherwise `*` is a wildcard and the words name a subtree."""
    if pattern.startswith("re:"):
        return re.compile(pattern.removeprefix("re:"))
    name = pattern.removeprefix("language_model.")
    return re.compile(r"(?:.*\.)?" + ".*".join(map(re.escape, name.split("*"))) + r"(?:$|\.)")


def _is_skipped(module: str, patterns: Iterable[re.Pattern[str]]) -> bool:
    return any(pattern.match(module) for pattern in patterns)
