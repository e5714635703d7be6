"""What `--cluster` takes: a notation such as 2x8xh200, or a JSON file for GPUs that the catalogue does not hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from search_spaces.catalogue import load_gpu, parse_cluster
from search_spaces.catalogue.cluster_notation import MOST_GPUS
from search_spaces.errors import MalformedError, UnknownNameError
from search_spaces.hardware import Cluster, Gpu, LinkKind

_KEYS = ("gpu", "gpus_per_node", "num_nodes")
_WORDS = ("key", "name", "source")
_COUNTS = ("sm", "memory_bytes")
_RATES = ("memory_bytes_per_s", "bf16_flop_per_s", "link_bytes_per_s")
_RATES_OR_NULL = ("fp8_flop_per_s", "fp4_flop_per_s")
_GPU_KEYS = (*_WORDS, *_COUNTS, *_RATES, *_RATES_OR_NULL, "link")


def cluster_of(word: str) -> Cluster:
    """Raises UserError.

    A file holds `gpu` (a name of the catalogue, or an object with the fields of `Gpu`), `gpus_per_node` and, where
    there are several, `num_nodes`.
    """
    if not (word.endswith(".json") or "/" in word):
        return parse_cluster(word)
    found = _object(Path(word).expanduser(), word)
    _refuse_others(found, _KEYS, word)
    per_node, nodes = (
        _count(found, name, default, word) for name, default in (("gpus_per_node", None), ("num_nodes", 1))
    )
    if per_node * nodes > MOST_GPUS:
        raise MalformedError(f"{word}: a cluster of at most {MOST_GPUS} GPUs can be searched (got {per_node * nodes})")
    gpu = found.get("gpu")
    if isinstance(gpu, str):
        return Cluster(gpu=load_gpu(gpu), gpus_per_node=per_node, num_nodes=nodes)
    if not isinstance(gpu, dict):
        raise MalformedError(f"{word}: gpu is a name of the catalogue (h200) or an object with its facts (got {gpu!r})")
    return Cluster(gpu=_gpu(gpu, word), gpus_per_node=per_node, num_nodes=nodes)


def _object(path: Path, word: str) -> dict[str, Any]:
    if not path.is_file():
        raise MalformedError(f"--cluster {word}: no such file; a cluster is also written 8xh200 or 2x8xh200")
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise MalformedError(f"--cluster {word} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise MalformedError(f"--cluster {word} is not a JSON object")
    return found


def _gpu(facts: Mapping[str, Any], word: str) -> Gpu:
    _refuse_others(facts, _GPU_KEYS, word)
    key = facts.get("key")
    words = {"source": word, "name": key, **{name: facts[name] for name in _WORDS if name in facts}}
    if not all(isinstance(words.get(name), str) and words[name] for name in _WORDS):
        raise MalformedError(f"{word}: key, name and source of a GPU are words (got {words!r})")
    if facts.get("link") not in set(LinkKind):
        raise MalformedError(f"{word}: link is one of {', '.join(LinkKind)} (got {facts.get('link')!r})")
    read: dict[str, Any] = {
        **words,
        **{name: _count(facts, name, None, word) for name in _COUNTS},
        **{name: _rate(facts, name, word) for name in _RATES},
        **{name: None if facts.get(name) is None else _rate(facts, name, word) for name in _RATES_OR_NULL},
    }
    return Gpu(**read, link=LinkKind(facts["link"]))


def _count(facts: Mapping[str, Any], name: str, default: int | None, word: str) -> int:
    value = facts.get(name, default)
    if type(value) is not int or value < 1:
        raise MalformedError(f"{word}: {name} is a count of at least 1 (got {value!r})")
    return value


def _rate(facts: Mapping[str, Any], name: str, word: str) -> float:
    value = facts.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise MalformedError(f"{word}: {name} is a number above 0 (got {value!r})")
    return float(value)


def _refuse_others(facts: Mapping[str, Any], known: tuple[str, ...], word: str) -> None:
    for key in facts:
        if key not in known:
            raise UnknownNameError(f"key in {word}", key, known)
