"""Clusters as people write them: `8xrtx-pro-6000`, `2x8xh200`, `H200 x8`, `h200:8`."""

from __future__ import annotations

import re

from search_spaces.catalogue.lookup import load_gpu
from search_spaces.errors import MalformedError, UserError
from search_spaces.hardware import Cluster

_NOTATION = re.compile(
    r"(?:(?P<nodes>\d{1,6})[x\u00d7*])?(?P<gpus>\d{1,6})[x\u00d7*](?P<gpu>(?!\d+[x\u00d7*])\w.*)",
    re.IGNORECASE,
)

_GPU_FIRST = re.compile(r"(?P<gpu>(?=.*[A-Za-z]).*?\S)\s*[x\u00d7*:]\s*(?P<gpus>\d{1,6})", re.IGNORECASE)
_SPACED = re.compile(r"(?P<gpus>\d{1,6})(?:\s*[x\u00d7*]\s+|\s+(?:[x\u00d7*]\s+)?)(?P<gpu>[A-Za-z].*)", re.IGNORECASE)

MOST_GPUS = 256


def parse_cluster(text: str) -> Cluster:
    """`[NODESx]GPUSxGPU`, or one node as `GPU xGPUS`, `GPU:GPUS` or `GPUS GPU`; the GPU as `load_gpu` knows it.

    Raises MalformedError, and UnknownNameError for the GPU.
    """
    word = text.strip()
    match = _NOTATION.fullmatch(word) or _GPU_FIRST.fullmatch(word) or _SPACED.fullmatch(word)
    nodes = int(match.groupdict().get("nodes") or 1) if match else 0
    gpus = int(match["gpus"]) if match else 0
    if match is None or nodes < 1 or gpus < 1:
        raise MalformedError(
            "a cluster is written [NODESx]GPUSxGPU with counts of at least 1, "
            f"e.g. 8xrtx-pro-6000 or 2x8xh200 (got {text!r}{_meant(word)})"
        )
    if nodes * gpus > MOST_GPUS:
        raise MalformedError(f"a cluster of at most {MOST_GPUS} GPUs can be searched (got {nodes * gpus} in {text!r})")
    return Cluster(gpu=load_gpu(match["gpu"]), gpus_per_node=gpus, num_nodes=nodes)


def _meant(word: str) -> str:
    """What is missing of a cluster that names a GPU; empty where `word` names none."""
    if key := _gpu_key(word):
        return f"; how many? 8x{key} is eight of them"
    number = re.match(r"[1-9]\d{0,5}", word)
    if number and (key := _gpu_key(word[number.end() :])):
        return f"; did you mean {number[0]}x{key}?"
    return ""


def _gpu_key(word: str) -> str:
    try:
        return load_gpu(word).key
    except UserError:
        return ""
