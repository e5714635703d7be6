"""How a line of measurements says that a layout splits its model, and over how many GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from search_spaces.catalogue.cluster_notation import MOST_GPUS
from search_spaces.hardware import Cluster, Gpu
from tuner.validate_fields import Reason, SkippedError, count

GPUS_PER_NODE = 8


def sizes_of(said: Mapping[str, Any]) -> tuple[dict[str, int], int]:
    """The sizes of the layout by its fields, and the GPUs. 0 and null stand for no such parallelism."""
    name = "tp" if said.get("world_tp") is None else "world_tp"
    tp = count(said, name, MOST_GPUS)
    ep, attention_dp, pp = (
        count(said, each, MOST_GPUS, default=1, least=0) or 1 for each in ("moe_ep", "attention_dp", "pp")
    )
    if tp * pp > MOST_GPUS:
        message = f"{name} times pp is {tp * pp}: clusters of more than {MOST_GPUS} GPUs are not known"
        raise SkippedError(Reason.BAD_VALUE, message)
    num_gpus = count(said, "n_gpus", MOST_GPUS, default=tp * pp)
    if num_gpus != tp * pp:
        raise SkippedError(Reason.UNCLEAR_LAYOUT, f"n_gpus is {num_gpus}, but {name} times pp is {tp * pp}")
    for each, size in (("moe_ep", ep), ("attention_dp", attention_dp)):
        if tp % size:
            raise SkippedError(Reason.UNCLEAR_LAYOUT, f"{each} must divide {name}, but {size} does not divide {tp}")
    nodes = _nodes(num_gpus)
    return {"tp_size": tp, "ep_size": ep, "attn_dp_size": attention_dp, "pp_size": pp, "nnodes": nodes}, num_gpus


def cluster_of_size(gpu: Gpu, num_gpus: int) -> Cluster:
    nodes = _nodes(num_gpus)
    return Cluster(gpu=gpu, gpus_per_node=num_gpus // nodes, num_nodes=nodes)


def _nodes(num_gpus: int) -> int:
    """The fewest equal nodes of at most `GPUS_PER_NODE`: 9 GPUs stand in 3 of 3."""
    fewest = -(-num_gpus // GPUS_PER_NODE)
    return next(nodes for nodes in range(fewest, num_gpus + 1) if num_gpus % nodes == 0)
