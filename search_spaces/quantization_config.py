"""Which weights a checkpoint stores quantised, and how, from its `quantization_config`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from search_spaces.errors import MalformedError, UnsupportedError
from search_spaces.model import Quantization
from search_spaces.parts import PLAIN, Block, Component, Experts, Projection, Scheme, Split, Storage


class StoredModules:
    """How each module of a checkpoint is stored.

    A module is named from its layer on: `layers.3.self_attn.o_proj`.
    """

    def __init__(
        self,
        default: Storage = PLAIN,
        *,
        skipped: Iterable[str] = (),
        named: Mapping[str, Storage] | None = None,
        only_experts: bool = False,
        experts: Storage | None = None,
    ) -> None:
        names = [name for name in skipped if not _is_pattern(name)]
        self._default = default
        self._skipped = frozenset(map(_from_layer_on, names))
        self._patterns = tuple(_module_pattern(name) for name in skipped if _is_pattern(name))
        self._named = named
        self._only_experts = only_experts
        self._experts = experts

    @property
    def default(self) -> Storage:
        return self._default

    def storage(self, *modules: str) -> Storage:
        """Of one module under all of its names: to list it under one of them is enough."""
        if self._named is not None:
            names = (name for module in modules for name in _subtrees(module))
            return next((self._named[name] for name in names if name in self._named), PLAIN)
        found = [self._storage(module) for module in modules]
        return PLAIN if PLAIN in found else found[0]

    def _storage(self, module: str) -> Storage:
        if self._experts is not None:
            return self._experts if ".experts" in module else self._default
        if self._only_experts and ".experts" not in module:
            return PLAIN
        if not self._skipped.isdisjoint(_subtrees(module)):
            return PLAIN
        if any(pattern.match(f"model.{module}") for pattern in self._patterns):
            return PLAIN
        return self._default


def stored_modules(raw: Any, name: str) -> StoredModules:
    """Reads fp8, compressed-tensors, modelopt and mxfp4 configurations; None means unquantised.

    Routers and embeddings stay unquantised under every scheme read here (sglang 0.5.23 builds them without a
    quantisation method).
    """
    if raw is None:
        return StoredModules()
    if not isinstance(raw, Mapping):
        raise MalformedError(f"{name}: quantization_config must be an object (got {raw!r})")
    inner = raw.get("quantization")
    if raw.get("quant_method") is None and isinstance(inner, Mapping):
        raw = {"quant_method": "modelopt", **inner}
    if raw.get("moe_quant_algo") == "NVFP4":
        # DeepSeek-V4's NVFP4 checkpoints: its own FP8 blocks around NVFP4 experts.
        return StoredModules(
            Storage(*_fp8(raw.get("weight_block_size"), name)),
            experts=Storage(Scheme.NVFP4, _group_size(raw.get("group_size", 16), name)),
        )
    if isinstance(raw.get("quantized_layers"), Mapping):
        return StoredModules(named=_named(raw["quantized_layers"], name))
    storage = Storage(*_scheme(raw, name))
    if storage.scheme is Scheme.MXFP4 and raw.get("quant_method") == "mxfp4":
        # The engine's MXFP4 method exists for experts only.
        return StoredModules(storage, only_experts=True)
    skipped = [
        str(pattern)
        for key in ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules")
        for pattern in _listed(raw.get(key), key, name)
    ]
    return StoredModules(storage, skipped=skipped)


def method_of(raw: Any) -> str:
    """The engine's name of a quantisation method: ModelOpt's is told apart by its algorithm (model_config.py)."""
    if not isinstance(raw, Mapping):
        return ""
    inner = raw.get("quantization")
    settings = inner if isinstance(inner, Mapping) else raw
    method = str(raw.get("quant_method") or "modelopt")
    if not method.startswith("modelopt"):
        return method
    algorithm = str(settings.get("quant_algo", ""))
    if algorithm == "MIXED_PRECISION":
        return "modelopt_mixed"
    return {"NVFP4": "modelopt_fp4", "FP8": "modelopt_fp8"}.get(algorithm, method)


def has_fp8_kv(raw: Any) -> bool:
    """Whether a ModelOpt checkpoint stores its KV cache in FP8 (layers/quantization/modelopt_quant.py:478); other
    methods leave the cache as it is (mem_cache/kv_cache_dtype.py:49).
    """
    if not method_of(raw).startswith("modelopt"):
        return False
    inner = raw.get("quantization")
    settings = inner if isinstance(inner, Mapping) else raw
    scheme = settings.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        return scheme.get("type") == "float" and scheme.get("num_bits") == 8
    return str(settings.get("kv_cache_quant_algo")).upper() == "FP8"


def quantization_of(blocks: Iterable[Block]) -> Quantization:
    """The scheme of the routed experts, or of most else, and the components that most layers store so."""
    found: Counter[tuple[Component, Storage]] = Counter()
    for block in blocks:
        seen = {}
        for part in block.parts:
            if isinstance(part, Experts):
                seen[Component.ROUTED] = part.storage
            elif isinstance(part, Projection) and part.component in _JUDGED and part.split is Split.INPUTS:
                seen[part.component] = part.storage
        found.update(seen.items())
    most = {
        component: max((n, s) for (c, s), n in found.items() if c is component)[1]
        for component in {component for component, _ in found}
    }
    quantised = {component: storage for component, storage in most.items() if storage.scheme is not Scheme.NONE}
    if not quantised:
        return Quantization()
    storage = quantised.get(Component.ROUTED) or next(iter(quantised.values()))
    return Quantization(
        scheme=storage.scheme,
        group_size=storage.group_size,
        components=frozenset(component for component, other in quantised.items() if other.scheme is storage.scheme),
    )


_JUDGED = frozenset({Component.ATTENTION, Component.DENSE, Component.SHARED})


def _named(layers: Mapping[str, Any], name: str) -> Mapping[str, Storage]:
    """Mixed precision of ModelOpt lists each quantised module with its algorithm."""
    return {
        _from_layer_on(module): Storage(*_modelopt(settings if isinstance(settings, Mapping) else {}, name))
        for module, settings in layers.items()
    }


def _is_pattern(name: str) -> bool:
    return name.startswith("re:") or "*" in name or ".layers." not in f".{name}"


def _from_layer_on(module: str) -> str:
    if module.startswith("mtp"):
        return module
    at = f".{module}".find(".layers.")
    return module[at:] if at >= 0 else module.removeprefix("language_model.")


def _subtrees(module: str) -> Iterator[str]:
    """`a.b.c` is in the subtrees `a.b.c`, `a.b` and `a`."""
    words = module.split(".")
    return (".".join(words[:count]) for count in range(len(words), 0, -1))


def _scheme(raw: Mapping[str, Any], name: str) -> tuple[Scheme, int]:
    method = raw.get("quant_method")
    match method:
        case "fp8":
            return _fp8(raw.get("weight_block_size"), name)
        case "mxfp4":
            return Scheme.MXFP4, 32
        case "compressed-tensors":
            return _compressed_tensors(raw, name)
        case "modelopt" | "modelopt_fp4" | "modelopt_fp8" | "modelopt_mixed":
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
        case 4, "float", _ if weights.get("group_size") == _MXFP4_GROUP:
            return Scheme.MXFP4, _MXFP4_GROUP
        case 4, "float", _:
            return Scheme.NVFP4, _group_size(weights.get("group_size", 16), name)
        case bits, kind, strategy:
            raise UnsupportedError(
                f"{name}: compressed-tensors weights with num_bits={bits}, type={kind}, strategy={strategy} "
                "are not known here. Known: int 4-bit group; float 8-bit channel, tensor, block; float 4-bit"
            )


_MXFP4_GROUP = 32
"""Tells the OCP format from NVFP4, whose groups are of 16."""


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
        case "NVFP4" | "W4A16_NVFP4":
            return Scheme.NVFP4, _group_size(inner.get("group_size", 16), name)
        case "FP8":
            return Scheme.FP8_TENSOR, 0
        case "MXFP8":
            return Scheme.MXFP8, 32
        case _:
            raise UnsupportedError(
                f"{name}: modelopt algorithm {algorithm!r} is not known here. Known: FP8, MXFP8, NVFP4"
            )


def _module_pattern(pattern: str) -> re.Pattern[str]:
    """`re:` marks a regular expression; otherwise `*` is a wildcard and the words name a subtree."""
    if pattern.startswith("re:"):
        try:
            return re.compile(pattern.removeprefix("re:"))
        except re.error as error:
            raise MalformedError(f"quantization_config: {pattern!r} is no regular expression: {error}") from None
    name = _from_layer_on(pattern)
    return re.compile(r"(?:.*\.)?" + ".*".join(map(re.escape, name.split("*"))) + r"(?:$|\.)")
