"""Typed reading of a `config.json`: the language model's own level first, and exact words for what is missing."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from search_spaces.errors import MalformedError
from search_spaces.parts import Storage
from search_spaces.quantization_config import StoredModules

LARGEST = 2**24
"""Above any size of a model there is."""

DEEPEST = 4096
"""Above any number of layers there is; each of them is described."""

_OTHER_NAMES = {
    "num_experts": "num_local_experts",
    "num_local_experts": "num_experts",
    "n_routed_experts": "num_local_experts",
}
"""What transformers from 5.0 on may write in a field's place (the `attribute_map` of its configuration classes)."""


class Fields:
    """Reads typed values; multimodal wrappers keep the language model's facts under `text_config`, which win."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        text = config.get("text_config")
        self._levels = [level for level in (text, config) if isinstance(level, Mapping)]
        self._config = config
        self._within = ""
        self.name = name

    def architecture(self) -> str:
        named = self._config.get("architectures")
        if not isinstance(named, list) or not named or not isinstance(named[0], str):
            raise MalformedError(
                f"{self.name}: config.json must name its class, "
                f'e.g. "architectures": ["Qwen3MoeForCausalLM"] (got {reprlib.repr(named)})'
            )
        return named[0]

    def inner(self, key: str, defaults: Mapping[str, Any] | None = None) -> Fields | None:
        """The fields under `key` alone, e.g. `vision_config`; None where there are none.

        defaults: what the engine takes for those that are absent.
        """
        found = self.value(key)
        if found is not None and not isinstance(found, Mapping):
            raise MalformedError(f"{self.name}: {key} must be an object (got {reprlib.repr(found)})")
        held = {**(defaults or {}), **(found or {})}
        if not held:
            return None
        fields = Fields({**held, "architectures": [self.architecture()]}, self.name)
        fields._levels = [held]
        fields._within = f"{key}."
        return fields

    def value(self, *keys: str) -> Any:
        """The first of `keys` that is set and not null, or None."""
        for key in (*keys, *(_OTHER_NAMES[key] for key in keys if key in _OTHER_NAMES)):
            for level in self._levels:
                if level.get(key) is not None:
                    return level[key]
        return None

    def listed(self, *keys: str) -> list[Any]:
        found = self.value(*keys)
        if found is None:
            return []
        if not isinstance(found, list):
            raise MalformedError(f"{self.name}: {self._within}{keys[0]} must be a list (got {reprlib.repr(found)})")
        return found

    def of_layer(self, key: str, layer: int) -> Any:
        """The entry for `layer` of a list with one for each; None where the field is absent or null."""
        found = self.listed(key)
        if self.value(key) is not None and layer >= len(found):
            raise MalformedError(
                f"{self.name}: {self._within}{key} must have an entry for each layer, but layer {layer} has none"
            )
        return found[layer] if found else None

    def count(self, *keys: str, default: int | None = None, most: int = LARGEST) -> int:
        """A positive integer up to `most`, or `default` where the field is absent or null."""
        found = self.value(*keys)
        if found is None:
            if default is None:
                named = " or ".join(f"{self._within}{key}" for key in keys)
                raise MalformedError(f"{self.name}: config.json lacks {named}, which {self.architecture()} needs")
            return default
        smallest = 1 if default is None else 0
        if not isinstance(found, int) or isinstance(found, bool) or not smallest <= found <= most:
            raise MalformedError(
                f"{self.name}: {self._within}{keys[0]} must be an integer from {smallest} to {most} "
                f"(got {reprlib.repr(found)})"
            )
        return found

    def whole(self, key: str, *, default: int | None) -> int:
        """An integer of at least 0; `default` None: the field has to be there."""
        if default is None and self.value(key) is None:
            return self.count(key)
        return self.count(key, default=0)

    def flag(self, key: str, *, default: bool = False) -> bool:
        found = self.value(key)
        return default if found is None else bool(found)


@dataclass(frozen=True)
class Checkpoint:
    """What an architecture reads to tell its parts: the fields, and how each module is stored."""

    fields: Fields
    stored: StoredModules
    dtype_bytes: int

    @cached_property
    def num_layers(self) -> int:
        return self.fields.count("num_hidden_layers", "num_layers", most=DEEPEST)

    @cached_property
    def hidden_size(self) -> int:
        return self.fields.count("hidden_size")

    def storage(self, layer: int, *modules: str) -> Storage:
        """How a module of `layer` is stored; `modules` are its names in checkpoints of different kinds."""
        return self.stored.storage(*(f"layers.{layer}.{module}" for module in modules))
