"""Rules on how many CUDA graph sizes the engine is made to list."""

from __future__ import annotations

from search_spaces.sglang.cuda_graphs import MOST_SIZES, num_decode_graphs, num_prefill_graphs
from search_spaces.sglang.rule import Launch, Rule
from search_spaces.verdict import Evidence, Stage


def _num_decode(launch: Launch) -> int:
    run = launch.effective
    return 0 if run.cuda_graph_backend_decode == "disabled" else num_decode_graphs(run)


def _num_prefill(launch: Launch) -> int:
    run = launch.effective
    if run.cuda_graph_backend_prefill == "disabled" or run.cuda_graph_bs_prefill is not None:
        return 0
    return num_prefill_graphs(run.cuda_graph_max_bs_prefill or 0)


LISTED = (
    Rule(
        id="graphs.sizes",
        stage=Stage.RESOLVE,
        source="arg_groups/cuda_graph_hook.py:476",
        broken=lambda launch: max(_num_decode(launch), _num_prefill(launch)) > MOST_SIZES,
        message=lambda launch: (
            f"CUDA graphs up to cuda_graph_max_bs_decode={launch.effective.cuda_graph_max_bs_decode} and "
            f"cuda_graph_max_bs_prefill={launch.effective.cuda_graph_max_bs_prefill} (chunked_prefill_size="
            f"{launch.effective.chunked_prefill_size}) are {max(_num_decode(launch), _num_prefill(launch))} sizes, "
            "which the engine lists one by one until the host's memory is full"
        ),
        exception="MemoryError",
        evidence=Evidence.READ,
    ),
)
