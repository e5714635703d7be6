"""Typed reading of a `config.json`: the language model's own level first, and exact words for what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from search_spaces.errors import MalformedError
from search_spaces.parts import Storage
from search_spaces.quantization_config import StoredModules

LARGEST = 2**24
"""Above any size of a model there is, and small enough to count through."""


class Fields:
    """Reads typed values; multimodal wrappers keep the language model's facts under `text_config`, which win."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        text = config.get("text_config")
        self._levels = [level for level in (text, config) if isinstance(level, Mapping)]
        self._config = config
        self.name = name

    def architecture(self) -> str:
        named = self._config.get("architectures")
        if not isinstance(named, list) or not named or not isinstance(named[0], str):
            raise MalformedError(
                f"{self.name}: config.json must name its class, "
                f'e.g. "architectures": ["Qwen3MoeForCausalLM"] (got {named!r})'
            )
        return named[0]

    def inner(self, key: str) -> Fields | None:
        """The fields under `key` alone, e.g. `vision_config`."""
        found = self.value(key)
        return Fields({"architectures": [self.architecture()], **found}, self.name) if found else None

    def value(self, *keys: str) -> Any:
        """The first of `keys` that is set and not null, or None."""
        for key in keys:
            for level in self._levels:
                if level.get(key) is not None:
                    return level[key]
        return None

    def listed(self, *keys: str) -> list[Any]:
        found = self.value(*keys)
        if found is None:
            return []
        if not isinstance(found, list):
            raise MalformedError(f"{self.name}: {keys[0]} must be a list (got {found!r})")
        return found

    def count(self, *keys: str, default: int | None = None) -> int:
        """A positive integer, or `default` where the field is absent or null."""
        found = self.value(*keys)
        if found is None:
            if default is None:
                raise MalformedError(
                    f"{self.name}: config.json lacks {' or '.join(keys)}, which {self.architecture()} needs"
                )
            return default
        smallest = 1 if default is None else 0
        if not isinstance(found, int) or isinstance(found, bool) or not smallest <= found <= LARGEST:
            raise MalformedError(
                f"{self.name}: {keys[0]} must be an integer from {smallest} to {LARGEST} (got {found!r})"
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
        return self.fields.count("num_hidden_layers", "num_layers")

    @cached_property
    def hidden_size(self) -> int:
        return self.fields.count("hidden_size")

    def storage(self, layer: int, *modules: str) -> Storage:
        """How a module of `layer` is stored; `modules` are its names in checkpoints of different kinds."""
        return self.stored.storage(*(f"layers.{layer}.{module}" for module in modules))
