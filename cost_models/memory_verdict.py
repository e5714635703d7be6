"""Whether a launch that the rules accept dies for memory, told as a broken rule.

These are predictions: the engine itself finds out on the GPU.
"""

from __future__ import annotations

from cost_models.memory import fit
from cost_models.memory_types import DoesNotFit
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.sglang.versions import NEWEST, EngineVersion
from search_spaces.verdict import Evidence, Stage, Violation
from search_spaces.workload import Workload

SMALLEST_REQUEST = Workload(input_tokens=1, output_tokens=2, concurrencies=(1,))
"""What a server has to hold at the very least: its own warm-up."""

_ENDS = {
    Stage.WEIGHTS: (
        "memory.weights",
        "model_executor/model_runner.py:1270",
        "torch.OutOfMemoryError",
        "CUDA out of memory.",
    ),
    Stage.KV_POOL: (
        "memory.kv_pool",
        "mem_cache/kv_cache_configurator.py:3050",
        "ValueError",
        "Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=",
    ),
    Stage.GRAPHS: (
        "memory.graphs",
        "model_executor/runner/decode_cuda_graph_runner.py:603",
        "Exception",
        "Capture cuda graph failed: CUDA out of memory.",
    ),
}
"""Rule, source, exception and the beginning of the engine's text, by the stage at which memory runs out."""

MEMORY_RULES = {rule: stage for stage, (rule, *_) in _ENDS.items()}


def memory_violation(
    model: Model, cluster: Cluster, layout: Layout, *, version: EngineVersion = NEWEST
) -> Violation | None:
    """The way in which an effective layout runs out of memory with a single short request; None where it fits."""
    ended = fit(model, cluster, layout, SMALLEST_REQUEST, version=version)
    return violation_of(ended) if isinstance(ended, DoesNotFit) else None


def violation_of(ended: DoesNotFit) -> Violation:
    rule, source, exception, text = _ENDS[ended.stage]
    if ended.stage is Stage.KV_POOL:
        text = f"{text}{ended.memory.mem_fraction_static:g}."
    return Violation(
        rule=rule,
        stage=ended.stage,
        message=ended.message,
        source=source,
        exception=exception,
        engine_text=text,
        evidence=Evidence.PREDICTED,
    )
