"""Reads the matrices that `nvidia-smi topo -m` and `nvidia-smi topo -p2p r` print."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from search_spaces.hardware import Route

_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NVLINK = re.compile(r"NV\d+")
_GPU = re.compile(r"GPU\d+")
_SELF = "X"
_ROUTES = {
    "PIX": Route.SWITCH,
    "PXB": Route.SWITCH,
    "PHB": Route.ROOT,
    "NODE": Route.ROOT,
    "SYS": Route.SOCKETS,
}
_FARTHEST_LAST = (Route.NVLINK, Route.SWITCH, Route.ROOT, Route.SOCKETS)
_BESIDE = frozenset({"PIX", "PXB"})
_LEGEND_ENTRY = re.compile(r"^\s*(?P<label>NIC\d+)\s*:\s*(?P<device>\S+)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """gpus: as the matrix names them (`GPU0`), in its order. nics: devices (`mlx5_0`).

    links: from a GPU to any other GPU or NIC, in the matrix's words (`NV18`, `PIX`, `SYS`).
    """

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    links: Mapping[tuple[str, str], str]

    @property
    def pairs(self) -> Iterator[tuple[str, str, str]]:
        """Each two GPUs once, with their link."""
        for i, one in enumerate(self.gpus):
            for other in self.gpus[i + 1 :]:
                yield one, other, self.links.get((one, other), "")

    @property
    def worst_route(self) -> Route | None:
        """Of all pairs of GPUs; None where there is no pair, or one whose link is not known."""
        routes = [route_of(link) for _, _, link in self.pairs]
        if not routes or None in routes:
            return None
        return max((route for route in routes if route), key=_FARTHEST_LAST.index)

    @property
    def nics_beside_gpus(self) -> tuple[str, ...]:
        """Those that share a PCIe switch with a GPU."""
        return tuple(nic for nic in self.nics if any(self.links.get((gpu, nic)) in _BESIDE for gpu in self.gpus))

    def of(self, indices: Sequence[int]) -> Topology:
        """Of the GPUs with these indices, which are those of `nvidia-smi`."""
        kept = tuple(gpu for gpu in (f"GPU{index}" for index in indices) if gpu in self.gpus)
        return Topology(
            gpus=kept, nics=self.nics, links={pair: link for pair, link in self.links.items() if pair[0] in kept}
        )


def route_of(link: str) -> Route | None:
    return Route.NVLINK if _NVLINK.fullmatch(link) else _ROUTES.get(link)


def parse_topology(output: str) -> Topology | None:
    """None for what is no matrix of GPUs, such as an error's text."""
    text = _ESCAPES.sub("", output)
    columns, rows = _matrix(text)
    devices = {entry["label"]: entry["device"] for entry in _LEGEND_ENTRY.finditer(text)}
    gpus = tuple(name for name in columns if name in rows and _GPU.fullmatch(name))
    if not gpus:
        return None
    others = tuple(name for name in columns if not _GPU.fullmatch(name))
    links = {
        (gpu, devices.get(name, name)): cell
        for gpu in gpus
        for name, cell in zip(columns, rows[gpu], strict=False)
        if cell != _SELF
    }
    return Topology(gpus=gpus, nics=tuple(devices.get(name, name) for name in others), links=links)


def parse_peer_access(output: str) -> Mapping[tuple[str, str], str]:
    """From `nvidia-smi topo -p2p r`: each GPU and another one to `OK`, or to why not (`CNS`, `GNS`, `TNS`, `NS`, `DR`,
    `U`). Empty for what is no such matrix.
    """
    columns, rows = _matrix(_ESCAPES.sub("", output))
    return {
        (gpu, other): cell
        for gpu, cells in rows.items()
        for other, cell in zip(columns, cells, strict=False)
        if cell != _SELF and _GPU.fullmatch(gpu) and _GPU.fullmatch(other)
    }


def peer_access_of(gpus: Sequence[str], access: Mapping[tuple[str, str], str]) -> bool | None:
    """Whether each of `gpus` reads the memory of every other one; None where that is not known."""
    found = {access.get((one, other), "U") for one in gpus for other in gpus if one != other}
    if not found:
        return None
    if found - {"OK", "U"}:
        return False
    return None if "U" in found else True


def _matrix(text: str) -> tuple[list[str], Mapping[str, list[str]]]:
    """The names of the columns, and the cells of each row by its name, as many as there are columns at most.

    The header ends where the columns about CPUs begin, whose own names hold blanks.
    """
    lines = [line.split() for line in text.splitlines()]
    at = next((i for i, words in enumerate(lines) if _is_header(words)), None)
    if at is None:
        return [], {}
    header = lines[at]
    columns = header[: header.index("CPU")] if "CPU" in header else header
    rows = {}
    for words in lines[at + 1 :]:
        if not words or words[0] not in columns:
            break
        rows[words[0]] = words[1 : len(columns) + 1]
    return columns, rows


def _is_header(words: Sequence[str]) -> bool:
    return bool(words) and _GPU.fullmatch(words[0]) is not None and _SELF not in words
