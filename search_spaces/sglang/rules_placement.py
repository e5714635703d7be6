"""Rules on which GPU each rank takes (entrypoints/engine.py:2045 of 0.5.23)."""

from __future__ import annotations

from search_spaces.hardware import Cluster
from search_spaces.sglang.rule import SIZES, Launch, Rule
from search_spaces.verdict import Evidence, Stage

_SIZED = frozenset({SIZES})


def _room(cluster: Cluster) -> str:
    nodes = f"{cluster.num_nodes} nodes of " if cluster.num_nodes > 1 else ""
    return f"{nodes}{cluster.gpus_per_node} GPUs"


def _exceeds(launch: Launch) -> bool:
    asked, cluster = launch.asked, launch.cluster
    return asked.nnodes > cluster.num_nodes or asked.num_gpus > asked.nnodes * cluster.gpus_per_node


def _stages_per_node(launch: Launch) -> int:
    return max(launch.asked.pp_size // launch.asked.nnodes, 1)


def _ranks_per_node(launch: Launch) -> int:
    """TP ranks of one stage on one node."""
    return launch.asked.tp_size // max(launch.asked.nnodes // launch.asked.pp_size, 1)


def _highest_gpu(launch: Launch) -> int:
    """The highest GPU number on a node; stages follow each other by ranks, whatever the step."""
    asked = launch.asked
    ranks = _ranks_per_node(launch)
    of_replica = (_stages_per_node(launch) - 1) * ranks + (ranks - 1) * asked.gpu_id_step
    before = (asked.dp_size - 1) * asked.tp_size * asked.pp_size * asked.gpu_id_step
    return asked.base_gpu_id + before + of_replica


def _stages_overlap(launch: Launch) -> bool:
    return launch.asked.gpu_id_step > 1 and _stages_per_node(launch) > 1 and _ranks_per_node(launch) > 1


def _stage_is_lost(launch: Launch) -> bool:
    pp, nodes = launch.asked.pp_size, launch.asked.nnodes
    return pp % nodes != 0 and nodes % pp != 0


ROOM = (
    Rule(
        id="cluster.too_small",
        stage=Stage.INIT,
        source="entrypoints/engine.py:2045",
        broken=_exceeds,
        message=lambda launch: (
            f"dp_size * tp_size * pp_size must fit the cluster, but {launch.asked.dp_size} * "
            f"{launch.asked.tp_size} * {launch.asked.pp_size} = {launch.asked.num_gpus} GPUs on "
            f"{launch.asked.nnodes} node(s) do not fit {_room(launch.cluster)}"
        ),
        exception="torch.AcceleratorError",
        engine_text=lambda _: "CUDA error: invalid device ordinal",
        needs=_SIZED,
    ),
    Rule(
        id="gpu.beyond_node",
        stage=Stage.INIT,
        source="entrypoints/engine.py:936",
        concerns=frozenset({"base_gpu_id", "gpu_id_step"}),
        broken=lambda launch: not _exceeds(launch) and _highest_gpu(launch) >= launch.cluster.gpus_per_node,
        message=lambda launch: (
            f"base_gpu_id={launch.asked.base_gpu_id} and gpu_id_step={launch.asked.gpu_id_step} reach up to GPU "
            f"{_highest_gpu(launch)} of a node that has {launch.cluster.gpus_per_node}"
        ),
        exception="torch.AcceleratorError",
        engine_text=lambda _: "CUDA error: invalid device ordinal",
        needs=_SIZED,
        cuda_only=True,
        evidence=Evidence.READ,
    ),
)

UNDETECTED = (
    Rule(
        id="nnodes.pp",
        stage=Stage.UNDETECTED,
        source="entrypoints/engine.py:2045",
        broken=_stage_is_lost,
        message=lambda launch: (
            f"nnodes must divide pp_size or pp_size divide nnodes (pp_size={launch.asked.pp_size}, "
            f"nnodes={launch.asked.nnodes}); otherwise a stage is never started and the others wait for it"
        ),
        needs=_SIZED,
    ),
    Rule(
        id="gpu.shared_by_stages",
        stage=Stage.UNDETECTED,
        source="entrypoints/engine.py:936",
        concerns=frozenset({"gpu_id_step"}),
        broken=_stages_overlap,
        message=lambda launch: (
            f"with gpu_id_step={launch.asked.gpu_id_step}, pipeline stages on one node take the same GPUs: a stage "
            f"begins {_ranks_per_node(launch)} GPUs after the one before it"
        ),
        needs=_SIZED,
        evidence=Evidence.READ,
    ),
)
