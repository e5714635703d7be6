"""Finds what a benchmark served under the names that benchmarks use: a model with a precision, a GPU with its trim.

`deepseek-ai/DeepSeek-R1-0528` at `fp4` is NVIDIA's NVFP4 checkpoint of it; `zai-org/GLM-4.6` at `fp8` is a checkpoint
that the catalogue does not hold, and is derived from what is stored of its kind.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from search_spaces.catalogue.lookup import aliases, load_gpu, load_model, model_files, model_names
from search_spaces.config_json import model_from_config
from search_spaces.errors import MalformedError, UnknownNameError
from search_spaces.hardware import Gpu, LinkKind
from search_spaces.model import Model
from search_spaces.parts import Scheme

_PRECISIONS: Mapping[str, frozenset[Scheme]] = {
    "bf16": frozenset({Scheme.NONE}),
    "fp8": frozenset({Scheme.FP8_BLOCK, Scheme.FP8_CHANNEL, Scheme.FP8_TENSOR, Scheme.MXFP8}),
    "fp4": frozenset({Scheme.NVFP4, Scheme.MXFP4}),
    "nvfp4": frozenset({Scheme.NVFP4}),
    "mxfp4": frozenset({Scheme.MXFP4}),
    "int4": frozenset({Scheme.INT4_GROUP}),
}
"""What a checkpoint of each precision stores. `fp4` leaves open which of the two formats it is."""

_SPELLINGS: Mapping[str, str] = {
    "bfloat16": "bf16", "fp16": "bf16", "float16": "bf16", "half": "bf16", "none": "bf16", "unquantized": "bf16",
    "float8": "fp8", "fp8block": "fp8", "fp8e4m3": "fp8", "w8a8fp8": "fp8",
    "float4": "fp4", "modeloptfp4": "nvfp4",
    "w4a16": "int4", "int4wo": "int4", "awq": "int4", "gptq": "int4",
}  # fmt: skip

_QUARTER = frozenset({Scheme.NVFP4, Scheme.MXFP4, Scheme.INT4_GROUP})

_REVISIONS = re.compile(r"v\d|\d{4}|instruct|thinking|base|chat|it|hf|preview|exp|terminus|dynamic|block")
"""Words behind a model's name that do not change its shape: dates, tunings, the second cut of a checkpoint."""

_STORED_IN_KEY = re.compile(r"-(?:bf16|fp8|nvfp4|int4)$")

_SHAPE = (
    "num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads", "num_key_value_heads", "intermediate_size",
    "moe_intermediate_size", "n_routed_experts", "num_experts", "num_local_experts", "num_experts_per_tok",
)  # fmt: skip

_NO_EMBEDDINGS = ["lm_head", "*embed_tokens*", "*mlp.gate", "*block_sparse_moe.gate", "*mlp.router*"]
_EXPERTS_AND_MLP = [*_NO_EMBEDDINGS, "*self_attn*", "*linear_attn*", "*visual*", "*vision*"]
_PLAIN_WAYS: Mapping[str, Mapping[str, Any]] = {
    "fp8": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["lm_head", "*visual*", "*vision*"],
    },
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": _EXPERTS_AND_MLP},
    "mxfp4": {
        "quant_method": "compressed-tensors",
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 32}}
        },
        "ignore": _EXPERTS_AND_MLP,
    },
    "int4": {
        "quant_method": "compressed-tensors",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128},
            }
        },
        "ignore": _EXPERTS_AND_MLP,
    },
}
"""How a precision is stored where the catalogue has no checkpoint of the architecture to learn it from."""


def served_model(name: str, precision: str = "") -> Model:
    """The catalogue model of that name, as stored at that precision; an empty precision: as the name has it.

    Case, punctuation and a leading `owner/` are ignored, and so are words behind the name that do not change the
    shape. Where the catalogue holds no checkpoint of the precision, it is built as the published checkpoints of the
    same architecture are. A coarser precision than what was published (`fp8` for a model that is published in four
    bits) speaks of the computation: the weights stay as they are.

    Raises UserError.
    """
    key, said = _key_of(name)
    wanted = precision_of(precision) or said
    if wanted is None or _is_stored(key, wanted):
        return load_model(key)
    return _stored_as(key, wanted)


def precision_of(word: str) -> str | None:
    """One of the names of precisions; None for an empty word. Raises UserError."""
    squeezed = _squeezed(word)
    found = _SPELLINGS.get(squeezed, squeezed)
    if found and found not in _PRECISIONS:
        raise UnknownNameError("precision", word, _PRECISIONS)
    return found or None


def _key_of(name: str) -> tuple[str, str | None]:
    """The catalogue key, and the precision that was taken off the name to find it."""
    stem = name.strip().rsplit("/", 1)[-1]
    said = None
    for shorter, precision in _shortened(stem):
        said = said or precision
        try:
            return load_model(shorter).name, said
        except UnknownNameError:
            continue
    key = _by_shortest().get(_squeezed(_shortest(stem)))
    if key is None:
        raise UnknownNameError("model", name, model_names())
    return key, said


def _shortened(stem: str) -> Iterator[tuple[str, str | None]]:
    """The name itself, then without one more of its last words at a time, and the precision that such a word was."""
    yield stem, None
    while True:
        rest, _, word = stem.rpartition("-")
        named = _SPELLINGS.get(word.lower(), word.lower())
        is_precision = named in _PRECISIONS
        if not rest or not (is_precision or _REVISIONS.fullmatch(word.lower())):
            return
        yield rest, named if is_precision else None
        stem = rest


def _shortest(stem: str) -> str:
    *_, (shortest, _) = _shortened(stem)
    return shortest


@cache
def _by_shortest() -> Mapping[str, str]:
    """Catalogue keys by their names without dates, tunings and precisions."""
    found: dict[str, str] = {}
    for key in _published_first(model_names(), near=""):
        for each in (key, *aliases(key)):
            found.setdefault(_squeezed(_shortest(each.rsplit("/", 1)[-1])), key)
    return found


@cache
def _stored_as(key: str, wanted: str) -> Model:
    own = load_model(key)
    for other in _published_first(_family(key), near=key):
        if _is_stored(other, wanted):
            return load_model(other)
    if wanted == "fp8" and own.quantization.scheme in _QUARTER:
        return own
    return _derived(own, "nvfp4" if wanted == "fp4" else wanted)


def _derived(own: Model, wanted: str) -> Model:
    files = model_files(own.name)
    config = dict(files["config.json"])
    config.pop("quantization_config", None)
    if isinstance(text := config.get("text_config"), Mapping):
        config["text_config"] = {name: value for name, value in text.items() if name != "quantization_config"}
    way, learnt_from = _way_of(own, wanted)
    if way is not None:
        config["quantization_config"] = way
    return model_from_config(
        config,
        name=f"{_STORED_IN_KEY.sub('', own.name)}-{wanted}",
        source=f"{own.source}; stored at {wanted} as {learnt_from} is",
    )


def _way_of(own: Model, wanted: str) -> tuple[Mapping[str, Any] | None, str]:
    """A `quantization_config`, None for none, and whose it is."""
    if wanted == "bf16":
        return None, "every unquantised checkpoint"
    kin = [name for name in model_names() if _architecture(name) == own.architecture and _is_stored(name, wanted)]
    for name in _published_first(kin, near=own.name):
        files = model_files(name)
        raw = files["config.json"].get("quantization_config") or files.get("hf_quant_config.json")
        # What lists each module of one model by its layer says nothing of another model.
        if raw is not None and "quantized_layers" not in raw and "moe_quant_algo" not in raw:
            return raw, name
    return _PLAIN_WAYS[wanted], "checkpoints of other architectures"


def _family(key: str) -> tuple[str, ...]:
    """The catalogue models of the same shape."""
    return tuple(name for name in model_names() if _shape(name) == _shape(key))


@cache
def _shape(key: str) -> str:
    config = model_files(key)["config.json"]
    text = config.get("text_config")
    facts = {**config, **(text if isinstance(text, Mapping) else {})}
    return json.dumps([_architecture(key), *(facts.get(name) for name in _SHAPE)])


def _architecture(key: str) -> str:
    return str(model_files(key)["config.json"]["architectures"][0])


def _is_published(key: str) -> bool:
    return any("/" in alias for alias in aliases(key))


def _published_first(names: Iterable[str], *, near: str) -> list[str]:
    """Checkpoints that can be downloaded before made-up ones, then those whose names begin alike."""

    def alike(name: str) -> int:
        return next((i for i, (a, b) in enumerate(zip(name, near, strict=False)) if a != b), min(len(name), len(near)))

    return sorted(names, key=lambda name: (not _is_published(name), -alike(name), len(name), name))


@cache
def _is_stored(key: str, wanted: str) -> bool:
    return load_model(key).quantization.scheme in _PRECISIONS[wanted]


_TRIM = re.compile(r"nvidia|geforce|tesla|tensor|core|gpu|blackwell|hopper|hgx|dgx|edition|generation|hbm\d?e?|nvl\d+")
_FORM = re.compile(r"sxm\d?")
_GB = re.compile(r"(\d+)g(?:i?b)?")
_OWN_MEMORY = 0.12
"""Vendors round the memory in a GPU's name up or down by that share."""


@cache
def served_gpu(name: str) -> Gpu:
    """The catalogue GPU under names such as `H200 SXM 141GB`, `A100 80GB SXM` or `NVIDIA H100 80GB HBM3`.

    Raises UserError, also where the memory or the form in the name is not that GPU's.
    """
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word and not _TRIM.fullmatch(word)]
    stated = [int(match[1]) for word in words if (match := _GB.fullmatch(word))]
    for candidate in _gpu_names(words):
        try:
            gpu = load_gpu(candidate)
        except UnknownNameError:
            continue
        if stated and abs(gpu.memory_bytes / 2**30 / stated[0] - 1) > _OWN_MEMORY:
            raise MalformedError(
                f"{name}: a GPU of that name with {stated[0]} GB is not known here; {gpu.key} has {gpu.memory_mib} MiB"
            )
        if any(map(_FORM.fullmatch, words)) and gpu.link is LinkKind.PCIE:
            raise MalformedError(f"{name}: its kind with NVLink is not known here; {gpu.key} is a PCIe card")
        return gpu
    return load_gpu(name)


def _gpu_names(words: list[str]) -> Iterator[str]:
    plain = [word for word in words if not _GB.fullmatch(word)]
    memory = [match[1] for word in words if (match := _GB.fullmatch(word))]
    bare = [word for word in plain if not _FORM.fullmatch(word)]
    if not bare:
        return
    yield "-".join([bare[0], *memory, *bare[1:]])
    for each in (words, plain, bare):
        yield "-".join(each)


def _squeezed(word: str) -> str:
    return "".join(letter for letter in word.casefold() if letter.isalnum())
