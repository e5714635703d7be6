"""The bundled measurements of collectives (`collectives.json`), by GPU, group and host."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from cost_models.curves import Curve, measured
from search_spaces.hardware import Route

CUSTOM = "custom"
"""The series of SGLang's own all-reduce; every other one is NCCL's, under the name of its operation."""

_SAME_FABRIC = {"rtx-pro-6000-ws": "rtx-pro-6000", "rtx-pro-6000-max-q": "rtx-pro-6000", "h20": "h200"}
"""GPUs that share PCIe 5.0 or NVLink 4 with one that was measured."""

_WIDER_FABRIC = {"gb200": "b200", "gb300": "b300"}
"""Where larger groups of the same NVLink generation were measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Single measurements on one machine whose topology is told: sizes in bytes, times in seconds.

    is_tuned: with settings that nobody has by default.
    """

    what: str
    source: str
    num_ranks: int
    route: Route
    is_tuned: bool
    series: dict[str, tuple[tuple[float, ...], tuple[float, ...]]]


@cache
def group_curve(gpu_key: str, series: str, num_ranks: int) -> Curve | None:
    """The curve of this group, or of the smallest larger one, then as a guess; None where none is as large."""
    own = _SAME_FABRIC.get(gpu_key, gpu_key)
    for key in (own, _WIDER_FABRIC.get(gpu_key, "")):
        groups = _tables()["gpus"].get(key, {}).get("groups", {})
        sizes = [int(size) for size, found in groups.items() if series in found and int(size) >= num_ranks]
        if sizes:
            curve = _read(key, series, min(sizes))
            if key == own and min(sizes) == num_ranks:
                return curve
            return curve.as_guess(f"{curve.source}, {min(sizes)} ranks for {num_ranks}")
    return None


@cache
def largest_group(gpu_key: str, series: str) -> int:
    """The largest group of which a curve is at hand; 0 where there is none."""
    keys = (_SAME_FABRIC.get(gpu_key, gpu_key), _WIDER_FABRIC.get(gpu_key, ""))
    groups = [_tables()["gpus"].get(key, {}).get("groups", {}) for key in keys]
    return max((int(size) for found in groups for size, ops in found.items() if series in ops), default=0)


@cache
def hosts(gpu_key: str) -> tuple[Host, ...]:
    """Machines of this kind of GPU on which single points were measured."""
    return tuple(_host(entry) for entry in _tables()["hosts"] if gpu_key in entry["gpus"])


@cache
def _read(key: str, series: str, num_ranks: int) -> Curve:
    gpu = _tables()["gpus"][key]
    points = gpu["groups"][str(num_ranks)][series]
    sizes = [points["first_bytes"] * 2.0**i for i in range(len(points["us"]))]
    version = f"sglang {gpu['sglang_version']}" if series == CUSTOM else f"NCCL {gpu['nccl_version']}"
    source = f"{series} over {num_ranks} {key}, {version} (github:ai-dynamo/aiconfigurator@095f58a5)"
    return measured(sizes, [us * 1e-6 for us in points["us"]], source)


def _host(entry: dict[str, Any]) -> Host:
    return Host(
        what=entry["what"],
        source=entry["source"],
        num_ranks=entry["ranks"],
        route=Route(entry["route"]),
        is_tuned=entry["is_tuned"],
        series={
            name: (tuple(map(float, points["bytes"])), tuple(us * 1e-6 for us in points["us"]))
            for name, points in entry.items()
            if isinstance(points, dict)
        },
    )


@cache
def _tables() -> Any:
    return json.loads((files(__package__) / "collectives.json").read_text(encoding="utf-8"))
