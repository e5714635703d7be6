"""What `tune probe` prints for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from search_spaces.hardware import MeasuredCurve, Route
from tuner.predict_words import figure
from tuner.probe_machine import Machine

_FARTHEST = {
    Route.NVLINK: "NVLink everywhere",
    Route.SWITCH: "the farthest pair through PCIe switches alone",
    Route.ROOT: "the farthest pair through a CPU's host bridges",
    Route.SOCKETS: "the farthest pair across CPU sockets",
    None: "the farthest pair is not known",
}
_PEER_ACCESS = {True: "peer access: yes", False: "peer access: no", None: "peer access: not known"}
_COLUMN_STEP = 4
_COLUMN = 10
_UNITS = (("microseconds", 1e6, 1.0), ("milliseconds", 1e3, 10.0))
"""Each with how many are a second, and up to which time it is used."""


def lines_of_machine(machine: Machine, key: str | None) -> tuple[str, ...]:
    """key: of the GPU in the catalogue."""
    gpu = machine.gpus[0]
    facts = [
        f"{len(machine.gpus)}x {gpu.name} ({key or 'not in the catalogue'})",
        f"{gpu.memory_mib / 1024:.1f} GiB",
        f"driver {gpu.driver}" if gpu.driver else "",
        f"power limit {_all_of([each.power_limit_w for each in machine.gpus], 'W')}",
        _pcie(machine),
    ]
    lines = [", ".join(fact for fact in facts if fact and "None" not in fact)]
    if machine.topology is not None:
        counts = Counter(link for _, _, link in machine.topology.pairs)
        pairs = ", ".join(f"{link} ({count} pair{'s' * (count > 1)})" for link, count in counts.most_common())
        lines.append(
            f"links: {pairs}; {_FARTHEST[machine.topology.worst_route]}; {_PEER_ACCESS[machine.has_peer_access]}"
        )
    if machine.nics:
        names = ", ".join(nic.name + (" (beside a GPU)" if nic.is_beside_gpu else "") for nic in machine.nics)
        lines.append(f"NICs: {names}; {(machine.nic_bytes_per_s or 0) / 1e9:.4g} GB/s for each GPU")
    return tuple(lines)


def _pcie(machine: Machine) -> str:
    generation = _all_of([gpu.pcie_generation for gpu in machine.gpus])
    return f"PCIe {generation}.0 x{_all_of([gpu.pcie_lanes for gpu in machine.gpus])}"


def _all_of(values: Sequence[float | None], unit: str = "") -> str:
    """Once where all are alike."""
    told = [f"{value:g}{' ' * bool(unit)}{unit}" for value in values if value is not None]
    return "/".join(dict.fromkeys(told)) or "None"


def lines_of_curves(curves: Sequence[MeasuredCurve], ranks: str) -> tuple[str, ...]:
    """ranks: what they are, `GPUs`."""
    sizes = sorted({size for curve in curves for size in curve.size_bytes})
    shown = sizes[::_COLUMN_STEP] if len(sizes) > 2 * _COLUMN_STEP else sizes
    names = [f"{curve.op} ({curve.backend}), {curve.num_ranks} {ranks}" for curve in curves]
    margin = max(map(len, names))
    unit, per_s = _unit_of(curves)
    margin = max(margin, len(unit))
    header = unit.ljust(margin) + "".join(said_size(size).rjust(_COLUMN) for size in shown)
    rows = [
        name.ljust(margin) + "".join(_time(curve, size, per_s).rjust(_COLUMN) for size in shown)
        for name, curve in zip(names, curves, strict=True)
    ]
    left_out = [] if len(shown) == len(sizes) else [f"({len(shown)} of {len(sizes)} sizes; --save and --json keep all)"]
    return (header, *(row.rstrip() for row in rows), *left_out)


def _unit_of(curves: Sequence[MeasuredCurve]) -> tuple[str, float]:
    """Of all times of the table, and how many of it are a second: by the longest."""
    longest_s = max(max(curve.seconds) for curve in curves)
    return next(((name, per_s) for name, per_s, most_s in _UNITS if longest_s < most_s), ("seconds", 1.0))


def _time(curve: MeasuredCurve, size: int, per_s: float) -> str:
    if size not in curve.size_bytes:
        return ""
    return figure(curve.seconds[curve.size_bytes.index(size)] * per_s)


def said_size(size: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"
