"""A cluster as a JSON file: what `--cluster FILE.json` reads and `tune probe --save` writes.

    {"gpu": "h200", "gpus_per_node": 8, "num_nodes": 2,
     "fabric": {"source": "...", "route": "nvlink", "has_peer_access": true, "nic_bytes_per_s": 5e10,
                "curves": [{"op": "all_reduce", "backend": "nccl", "num_ranks": 8,
                            "size_bytes": [1024, 2048], "seconds": [1.1e-05, 1.2e-05]}]}}

`gpu` is a name of the catalogue or an object with the fields of `Gpu`; `num_nodes` and `fabric` may be left out, and
of `fabric` everything but `source`. What stands under `probed` is for people and not read.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, TypeVar

from search_spaces.catalogue import gpu_keys, load_gpu
from search_spaces.catalogue.cluster_notation import MOST_GPUS
from search_spaces.errors import MalformedError, UnknownNameError, UserError
from search_spaces.hardware import Cluster, CollectiveOp, Fabric, Gpu, LinkKind, MeasuredCurve, Route

UNREAD = "probed"
_LARGEST_BYTES = 2**50
_SLOWEST_PER_S, _FASTEST_PER_S = 1e6, 1e21
"""Bytes or operations a second: slower than any machine of the last decades, and a million times any of today's."""
_LONGEST_SAID = 40
_SHORTEST_S, _LONGEST_S = 1e-9, 1e4
_Kind = TypeVar("_Kind", bound=StrEnum)
_KEYS = ("gpu", "gpus_per_node", "num_nodes", "fabric", UNREAD)
_WORDS = ("key", "name", "source")
_COUNTS = ("sm", "memory_bytes")
_RATES = ("memory_bytes_per_s", "bf16_flop_per_s", "link_bytes_per_s")
_RATES_OR_NULL = ("fp8_flop_per_s", "fp4_flop_per_s")
_GPU_KEYS = (*_WORDS, *_COUNTS, *_RATES, *_RATES_OR_NULL, "link")
_FABRIC_KEYS = ("source", "route", "has_peer_access", "nic_bytes_per_s", "curves")
_CURVE_KEYS = ("op", "backend", "num_ranks", "size_bytes", "seconds")


def read_cluster(path: Path, word: str) -> Cluster:
    """word: the file as the user wrote it, for the messages. Raises UserError: one line a fault."""
    return cluster_in(_object(path, word), word)


def cluster_in(found: Mapping[str, Any], word: str) -> Cluster:
    _refuse_others(found, _KEYS, word)
    per_node = _count(found, "gpus_per_node", word)
    nodes = _count({"num_nodes": 1, **found}, "num_nodes", word)
    if per_node * nodes > MOST_GPUS:
        raise MalformedError(f"{word}: a cluster of at most {MOST_GPUS} GPUs can be searched (got {per_node * nodes})")
    described = found.get("gpu")
    if isinstance(described, str):
        gpu = load_gpu(described)
    elif isinstance(described, dict):
        gpu = _gpu(described, word)
    else:
        raise MalformedError(
            f"{word}: gpu is a name of the catalogue (h200) or an object with its facts (got {described!r})"
        )
    fabric = found.get("fabric")
    if fabric is not None and not isinstance(fabric, dict):
        raise MalformedError(f"{word}: fabric is an object with {', '.join(_FABRIC_KEYS)} (got {fabric!r})")
    return Cluster(
        gpu=gpu,
        gpus_per_node=per_node,
        num_nodes=nodes,
        fabric=None if fabric is None else _fabric(fabric, per_node * nodes, word),
    )


def document_of(cluster: Cluster) -> dict[str, Any]:
    """What `cluster_in` reads as this very cluster."""
    is_known = cluster.gpu.key in gpu_keys() and load_gpu(cluster.gpu.key) == cluster.gpu
    return document(
        cluster.gpu.key if is_known else asdict(cluster.gpu),
        gpus_per_node=cluster.gpus_per_node,
        num_nodes=cluster.num_nodes,
        fabric=cluster.fabric,
    )


def document(
    gpu: str | Mapping[str, Any], *, gpus_per_node: int, num_nodes: int, fabric: Fabric | None
) -> dict[str, Any]:
    """gpu: a name of the catalogue or the fields of a `Gpu`, of which some may be left to fill in by hand, as None."""
    facts = {"gpu": gpu, "gpus_per_node": gpus_per_node, "num_nodes": num_nodes}
    return facts if fabric is None else {**facts, "fabric": asdict(fabric)}


def write_document(written: Mapping[str, Any], path: Path, *, may_replace: bool) -> None:
    """Whole or not at all. Raises UserError."""
    refuse_to_replace(path, may_replace=may_replace)
    unfinished = None
    try:
        with NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            unfinished = Path(file.name)
            file.write(text_of(written))
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        unfinished.chmod(0o666 & ~umask)
        if may_replace:
            unfinished.replace(path)
        else:
            os.link(unfinished, path)  # unlike a rename it replaces nothing that came in the meantime
            unfinished.unlink()
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        if unfinished is not None:
            with suppress(OSError):
                unfinished.unlink()


def refuse_to_replace(path: Path, *, may_replace: bool) -> None:
    """Raises UserError for a place at which no file can be put, before the work that it is to hold."""
    if path.suffix != ".json":
        raise MalformedError(f"a cluster file ends with .json, so that --cluster knows it for one (got {path})")
    if path.is_dir():
        raise MalformedError(f"{path} is a folder")
    if not path.parent.is_dir():
        raise MalformedError(f"{path} cannot be written: there is no folder {path.parent}")
    if path.exists() and not may_replace:
        raise UserError(f"{path} exists already; --force replaces it")


def text_of(written: Mapping[str, Any]) -> str:
    """Indented JSON in which a list of numbers stays on one line."""
    return _laid_out(written, "") + "\n"


def _laid_out(value: Any, margin: str) -> str:
    inner = margin + "  "
    if isinstance(value, Mapping) and value:
        lines = [f"{inner}{json.dumps(key)}: {_laid_out(each, inner)}" for key, each in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{margin}}}"
    if isinstance(value, list | tuple) and any(isinstance(each, Mapping) for each in value):
        return "[\n" + ",\n".join(inner + _laid_out(each, inner) for each in value) + f"\n{margin}]"
    return json.dumps(value)


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
        **{name: _count(facts, name, word) for name in _COUNTS},
        **{name: _rate(facts, name, word) for name in _RATES},
        **{name: _rate_or_none(facts, name, word) for name in _RATES_OR_NULL},
    }
    return Gpu(**read, link=LinkKind(facts["link"]))


def _fabric(facts: Mapping[str, Any], num_gpus: int, word: str) -> Fabric:
    place = f"{word}: fabric"
    _refuse_others(facts, _FABRIC_KEYS, f"{word}, fabric")
    source = facts.get("source")
    if not isinstance(source, str) or not source:
        raise MalformedError(f"{place}.source says who found it, in words (got {source!r})")
    access = facts.get("has_peer_access")
    if access is not None and not isinstance(access, bool):
        raise MalformedError(f"{place}.has_peer_access is true, false or null (got {access!r})")
    listed = facts.get("curves", [])
    if not isinstance(listed, list | tuple):
        raise MalformedError(f"{place}.curves is a list (got {listed!r})")
    curves = tuple(_curve(each, num_gpus, f"{place}.curves[{i}]") for i, each in enumerate(listed))
    first: dict[tuple[str, str, int], int] = {}
    for i, curve in enumerate(curves):
        same = first.setdefault((curve.op, curve.backend, curve.num_ranks), i)
        if same != i:
            raise MalformedError(
                f"{place}.curves[{i}] is of the same op, backend and num_ranks as curves[{same}] "
                f"({curve.op}, {curve.backend}, {curve.num_ranks}): one curve each"
            )
    return Fabric(
        source=source,
        route=_member(Route, facts["route"], f"{place}.route") if facts.get("route") is not None else None,
        has_peer_access=access,
        nic_bytes_per_s=_rate_or_none(facts, "nic_bytes_per_s", word),
        curves=curves,
    )


def _curve(facts: Any, num_gpus: int, place: str) -> MeasuredCurve:
    if not isinstance(facts, dict):
        raise MalformedError(f"{place} is an object with {', '.join(_CURVE_KEYS)} (got {facts!r})")
    _refuse_others(facts, _CURVE_KEYS, place)
    backend = facts.get("backend")
    if not isinstance(backend, str) or not backend:
        raise MalformedError(f"{place}.backend is a word such as nccl or custom (got {backend!r})")
    num_ranks = facts.get("num_ranks")
    if type(num_ranks) is not int or not 2 <= num_ranks <= num_gpus:
        raise MalformedError(
            f"{place}.num_ranks is a count from 2 to the {num_gpus} GPUs of the cluster (got {num_ranks!r})"
        )
    sizes, seconds = (_list(facts, name, place) for name in ("size_bytes", "seconds"))
    if len(sizes) != len(seconds):
        raise MalformedError(
            f"{place} has a latency for each size (got {len(sizes)} size_bytes and {len(seconds)} seconds)"
        )
    for i, size in enumerate(sizes):
        if type(size) is not int or not 1 <= size <= _LARGEST_BYTES:
            raise MalformedError(
                f"{place}.size_bytes[{i}] is a count of at least 1, at most 2**50 (got {_short(size)})"
            )
        if i and size <= sizes[i - 1]:
            raise MalformedError(f"{place}.size_bytes rise, but {sizes[i - 1]} is followed by {size}")
    for i, each in enumerate(seconds):
        if not _SHORTEST_S <= (_positive(each) or 0.0) <= _LONGEST_S:
            raise MalformedError(
                f"{place}.seconds[{i}] is a number above 0, from {_SHORTEST_S:g} to {_LONGEST_S:g} (got {_short(each)})"
            )
    return MeasuredCurve(
        op=_member(CollectiveOp, facts.get("op"), f"{place}.op"),
        backend=backend,
        num_ranks=num_ranks,
        size_bytes=tuple(sizes),
        seconds=tuple(float(each) for each in seconds),
    )


def _member(kind: type[_Kind], value: Any, place: str) -> _Kind:
    if not isinstance(value, str) or value not in set(kind):
        raise UnknownNameError(place, str(value), [str(each) for each in kind])
    return kind(value)


def _list(facts: Mapping[str, Any], name: str, place: str) -> list[Any]:
    value = facts.get(name)
    if not isinstance(value, list | tuple) or not value:
        raise MalformedError(f"{place}.{name} is a list of numbers, one at least (got {value!r})")
    return list(value)


def _count(facts: Mapping[str, Any], name: str, word: str) -> int:
    value = facts.get(name)
    if type(value) is not int or not 1 <= value <= _LARGEST_BYTES:
        raise MalformedError(f"{word}: {name} is a count of at least 1, at most 2**50 (got {_short(value)})")
    return value


def _rate(facts: Mapping[str, Any], name: str, word: str) -> float:
    value = _positive(facts.get(name))
    if value is None or not _SLOWEST_PER_S <= value <= _FASTEST_PER_S:
        raise MalformedError(
            f"{word}: {name} is a number above 0, from {_SLOWEST_PER_S:g} to {_FASTEST_PER_S:g} "
            f"(got {_short(facts.get(name))})"
        )
    return value


def _rate_or_none(facts: Mapping[str, Any], name: str, word: str) -> float | None:
    return None if facts.get(name) is None else _rate(facts, name, word)


def _short(value: Any) -> str:
    """As it is written, cut where it is long."""
    try:
        said = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        return "a number of thousands of digits"
    return said if len(said) <= _LONGEST_SAID else f"{said[:_LONGEST_SAID]}..."


def _positive(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if number > 0 and math.isfinite(number) else None


def _refuse_others(facts: Mapping[str, Any], known: tuple[str, ...], place: str) -> None:
    for key in facts:
        if key not in known:
            raise UnknownNameError(f"key in {place}", key, known)
