"""Clusters as people write them: `8xrtx-pro-6000`, `2x8xh200`."""

from __future__ import annotations

import re

from search_spaces.catalogue.lookup import load_gpu
from search_spaces.errors import MalformedError
from search_spaces.hardware import Cluster

_NOTATION = re.compile(
    r"(?:(?P<nodes>\d{1,6})[x\u00d7*])?(?P<gpus>\d{1,6})[x\u00d7*](?P<gpu>(?!\d+[x\u00d7*])\w.*)",
    re.IGNORECASE,
)

MOST_GPUS = 256


def parse_cluster(text: str) -> Cluster:
    """`[NODESx]GPUSxGPU`, the GPU as `load_gpu` knows it.

    Raises MalformedError, and UnknownNameError for the GPU.
    """
    match = _NOTATION.fullmatch(text.strip())
    nodes = int(match["nodes"] or 1) if match else 0
    gpus = int(match["gpus"]) if match else 0
    if match is None or nodes < 1 or gpus < 1:
        raise MalformedError(
            "a cluster is written [NODESx]GPUSxGPU with counts of at least 1, "
            f"e.g. 8xrtx-pro-6000 or 2x8xh200 (got {text!r})"
        )
    if nodes * gpus > MOST_GPUS:
        raise MalformedError(f"a cluster of at most {MOST_GPUS} GPUs can be searched (got {nodes * gpus} in {text!r})")
    return Cluster(gpu=load_gpu(match["gpu"]), gpus_per_node=gpus, num_nodes=nodes)
