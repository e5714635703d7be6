"""Finds a model or a GPU under the names people use."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from search_spaces.config_json import model_from_config
from search_spaces.errors import UnknownNameError, UnsupportedError
from search_spaces.hardware import Gpu, LinkKind
from search_spaces.model import Model

_DATA = files(__package__)

_OTHER_GPUS = {
    "mi300x": "AMD Instinct MI300X runs SGLang's ROCm code",
    "mi325x": "AMD Instinct MI325X runs SGLang's ROCm code",
    "mi355x": "AMD Instinct MI355X runs SGLang's ROCm code",
}


def model_names() -> tuple[str, ...]:
    return tuple(sorted(_models()))


def gpu_keys() -> tuple[str, ...]:
    return tuple(sorted(_gpus()))


def load_model(name: str) -> Model:
    """A catalogue model by its key or hub id; case, punctuation and a leading `owner/` are ignored.

    Raises UnknownNameError.
    """
    entries = _models()
    key = _find(name, {key: entry["aliases"] for key, entry in entries.items()})
    if key is None:
        raise UnknownNameError("model", name, entries)
    return _model(key)


@cache
def _model(key: str) -> Model:
    entry = _models()[key]
    return model_from_config(
        entry["config"], name=key, source=entry["source"], hf_quant_config=entry.get("hf_quant_config")
    )


def model_files(key: str) -> Mapping[str, Mapping[str, Any]]:
    """The files of a catalogue model that engines read its shape from, by name: `config.json`, and
    `hf_quant_config.json` where the checkpoint has one that counts.
    """
    entry = _models()[key]
    files = {"config.json": entry["config"]}
    if "hf_quant_config" in entry:
        files["hf_quant_config.json"] = entry["hf_quant_config"]
    return files


def load_gpu(key: str) -> Gpu:
    """A catalogue GPU by its key or one of its aliases; case and punctuation are ignored.

    Raises UnknownNameError, and UnsupportedError for a GPU that is known but has other rules.
    """
    entries = _gpus()
    found = _find(key, {known: entry["aliases"] for known, entry in entries.items()})
    if found is None:
        other = _find(key, dict.fromkeys(_OTHER_GPUS, ()))
        if other is not None:
            raise UnsupportedError(f"{key}: {_OTHER_GPUS[other]}; the rules here are those of SGLang on CUDA")
        raise UnknownNameError("GPU", key, entries)
    entry = entries[found]
    return Gpu(
        key=found,
        name=entry["name"],
        sm=entry["sm"],
        memory_bytes=entry["memory_mib"] * 2**20,
        memory_bytes_per_s=entry["memory_gb_per_s"] * 1e9,
        bf16_flop_per_s=entry["bf16_tflop_per_s"] * 1e12,
        fp8_flop_per_s=_tera(entry["fp8_tflop_per_s"]),
        fp4_flop_per_s=_tera(entry["fp4_tflop_per_s"]),
        link=LinkKind(entry["link"]),
        link_bytes_per_s=entry["link_gb_per_s"] * 1e9,
        source=entry["source"],
    )


def _find(name: str, aliases: Mapping[str, Iterable[str]]) -> str | None:
    wanted = {_squeezed(name), _squeezed(name.rsplit("/", 1)[-1])}
    for key, others in aliases.items():
        known = {key, *others, *(other.rsplit("/", 1)[-1] for other in others)}
        if not wanted.isdisjoint(map(_squeezed, known)):
            return key
    return None


def _squeezed(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def _tera(value: float | None) -> float | None:
    return None if value is None else value * 1e12


@cache
def _models() -> Mapping[str, Mapping[str, Any]]:
    folder = _DATA / "models"
    return {
        entry.name.removesuffix(".json"): json.loads(entry.read_text(encoding="utf-8"))
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".json")
    }


@cache
def _gpus() -> Mapping[str, Mapping[str, Any]]:
    entries: Mapping[str, Mapping[str, Any]] = json.loads((_DATA / "gpus.json").read_text(encoding="utf-8"))
    return entries


def aliases(name: str) -> tuple[str, ...]:
    """The other names of a catalogue model, hub ids among them."""
    return tuple(_models()[name]["aliases"])


def hub_id(name: str) -> str:
    """Where a catalogue model is downloaded from: `owner/name`; the key itself where none is known."""
    return next((alias for alias in _models()[name]["aliases"] if "/" in alias), name)
