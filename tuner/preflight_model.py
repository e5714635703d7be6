"""The model as a server will look for it: a folder with a config.json, and the weights that its index names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from tuner.servers.host import Host

_INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_POINTER_BYTES = 1024
"""A Git LFS pointer has about 130 bytes, and stands where the file itself was not fetched."""
_LIST = 'cd -- "$1" && for f in *; do printf "%s %s\\n" "$(stat -L -c %s -- "$f" 2>/dev/null || echo 0)" "$f"; done'


def model_fault(host: Host, model_path: str, extra_args: Sequence[str] = ()) -> str:
    """Why a server on `host` would not find its model, in one line; empty where it would, or where that is its affair:
    a hub id, and what is no folder in the form of Hugging Face. Raises HostError.

    model_path: of `--model-path`. extra_args: of the server.
    """
    if not model_path.startswith(("/", ".")) and host.run(["test", "-d", model_path]).code != 0:
        return ""
    listed = host.run(["sh", "-c", _LIST, "sh", model_path])
    if listed.code != 0:
        is_file = host.run(["test", "-f", model_path]).code == 0
        return "" if is_file else f"there is no folder {model_path}"
    sizes = {}
    for line in listed.stdout.decode(errors="replace").splitlines():
        size, _, name = line.partition(" ")
        sizes[name] = int(size) if size.isdigit() else 0
    if "config.json" not in sizes:
        return f"{model_path} holds no config.json"
    if _needs_no_weights(extra_args):
        return ""
    return _weights_fault(host, model_path, sizes)


def _weights_fault(host: Host, model_path: str, sizes: Mapping[str, int]) -> str:
    index = next((each for each in _INDICES if each in sizes), None)
    if index is None:
        has_weights = any(name.endswith(_WEIGHTS) and size > 0 for name, size in sizes.items())
        return "" if has_weights else f"{model_path} holds no weights ({', '.join(_WEIGHTS)})"
    named = _named(host.run(["cat", "--", str(PurePosixPath(model_path) / index)]).stdout)
    if not named:
        return f"{index} in {model_path} cannot be read as JSON, or names no weights"
    missing = [name for name in named if sizes.get(name, 0) == 0]
    pointers = [name for name in named if 0 < sizes.get(name, 0) <= _POINTER_BYTES]
    if missing or pointers:
        what = "are missing" if missing else "are pointers of Git LFS: they were not fetched"
        first = (missing or pointers)[0]
        return f"{len(missing or pointers)} of {len(named)} files that {index} names {what} in {model_path}: {first}"
    return ""


def _named(text: bytes) -> list[str]:
    try:
        found = json.loads(text)
        return sorted(set(found["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def _needs_no_weights(extra_args: Sequence[str]) -> bool:
    """`--load-format dummy` makes them up; remote loaders fetch them."""
    for place, word in enumerate(extra_args):
        name, equals, value = word.partition("=")
        if name == "--load-format":
            given = value if equals else " ".join(extra_args[place + 1 : place + 2])
            return given not in {"auto", "safetensors", "pt"}
    return False
