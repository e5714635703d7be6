"""How far a measurement may lie from a prediction: one log-normal deviation for each thing that is not known.

A deviation is the standard deviation of the natural logarithm of measured over predicted. What two layouts have in
common (a campaign, attention data parallelism, a link nobody measured) moves both by the same factor, which is what
`cost_models.calibration` learns from; independent deviations add in squares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from cost_models.communication import path_uncertainty
from cost_models.rates import lacks_units
from cost_models.routing import Floats
from cost_models.setting import ServingEngine, Setting
from cost_models.work import NEWEST_MEASURED, OLDEST_MEASURED
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.sglang.all_reduce import AllReducePath

Z = 1.96
"""Deviations either way that hold 95 % of a normal distribution."""


class Trait(StrEnum):
    """What the predictions of layouts may have in common that is not known."""

    ATTENTION_DP = "attention data parallelism"
    PIPELINE = "pipeline parallelism"
    CONTEXT_PARALLEL = "context parallelism"
    EXCHANGE = "an all-to-all backend"
    MOE_DP = "MoE data parallelism"
    NODES = "several nodes"
    ARCHITECTURE = "an architecture of which few measurements were used"
    GPU = "a GPU of which no or few serving measurements were used"
    RELEASE = "a release of which no serving measurement was used"
    SPECULATION = "speculative decoding"
    DENSE = "a dense model, where constants come from Mixture-of-Experts"
    FORMAT = "weights in a format that the card has no units for"
    ENGINE = "an engine of which one factor alone is fitted"
    HOST = "CPUs"


class Deviations(NamedTuple):
    """tpot, ttft: of one trait, for the time per output token and to first token."""

    tpot: float
    ttft: float


CAMPAIGN = Deviations(0.16, 0.50)
"""What a measured campaign (model, GPU, release, flags) is off by as a whole, with its own pair of model and GPU left
out of the fit: what `tune validate --leave-one-out` shows."""
LAYOUT = Deviations(0.05, 0.10)
"""What one layout of a campaign is off by beyond the others."""
LENGTHS = Deviations(0.04, 0.20)
"""What one layout is off by at lengths of its own."""
SHAPE = Deviations(0.06, 0.25)
"""What a sweep over concurrency is off by along the way."""
NOISE = Deviations(0.04, 0.10)
"""Two measurements of one and the same point: repeats differ by 3 to 10 %."""

CROWD = Deviations(0.15, 0.25)
"""For each e-fold of requests in flight beyond `MOST_MEASURED`: at 1000, points that no constant was fitted on lie
mostly at 0.4 to 1.4 times the prediction, some of it since requests of unequal length drain.
"""
MOST_MEASURED = 128
"""Requests in flight at one replica, up to which there are fitted points (and one at 256)."""

_UNPROVEN = {
    # Its two terms were read by hand off the only times per token there are: three of SGLang, which lie at 1.0 to 1.1
    # times the prediction, and eleven of TensorRT-LLM, at 0.7 to 1.2 times (time to first token: 0.5 to 7 times).
    # Twelve throughputs of SGLang, of 100 to 1000 requests, lie at 0.5 to 1.4 times.
    Trait.ATTENTION_DP: Deviations(0.30, 0.7),
    # One measured pipeline beside the opening story's: GLM-4.5-Air PP4 on H100, in burst.
    Trait.PIPELINE: Deviations(0.25, 0.6),
    Trait.CONTEXT_PARALLEL: Deviations(0.35, 0.6),
    Trait.EXCHANGE: Deviations(0.40, 0.5),
    Trait.MOE_DP: Deviations(0.35, 0.4),
    Trait.NODES: Deviations(0.30, 0.4),
    Trait.ARCHITECTURE: Deviations(0.12, 0.2),
    Trait.GPU: Deviations(0.10, 0.2),
    Trait.RELEASE: Deviations(0.08, 0.3),
    Trait.SPECULATION: Deviations(0.20, 0.3),
    # GLM-4.6 and Qwen3-235B in FP8 on A100 run half as fast as predicted under vLLM; gpt-oss of SGLang 0.5.3 and 0.5.4
    # on A100 and H100, without units for FP4, far slower still.
    Trait.FORMAT: Deviations(0.35, 0.4),
    # Qwen3-32B on H100 runs up to twice as fast as predicted.
    Trait.DENSE: Deviations(0.35, 0.5),
    Trait.HOST: Deviations(1.5, 1.5),
}

_OF_ENGINE = {ServingEngine.VLLM: Deviations(0.12, 0.2), ServingEngine.TRTLLM: Deviations(0.25, 0.3)}
"""With these, 95 % intervals hold about as many of the bundled points of these engines."""

_WORTH_TELLING = 0.5
_MEASURED_GPUS = {
    ServingEngine.SGLANG: frozenset({"h200", "b200"}),
    ServingEngine.VLLM: frozenset({"h100", "h200", "b200"}),
    ServingEngine.TRTLLM: frozenset({"h100", "h200", "b200"}),
}
"""Of which dozens of points were used for fitting. Of B300 there are seven, of one campaign."""


def traits_of(model: Model, cluster: Cluster, layout: Layout, setting: Setting) -> dict[Trait, Deviations]:
    """What is not proven of a layout's prediction, apart from its collectives and the campaign."""
    holds = {
        Trait.ATTENTION_DP: layout.attn_dp_size > 1,
        Trait.PIPELINE: layout.pp_size > 1,
        Trait.CONTEXT_PARALLEL: layout.attn_cp_size > 1 or layout.dcp_size > 1,
        Trait.EXCHANGE: layout.moe_a2a_backend != "none",
        Trait.MOE_DP: layout.moe_dp_size > 1,
        Trait.NODES: layout.tp_size * layout.pp_size > cluster.gpus_per_node,
        Trait.ARCHITECTURE: _is_rare(model),
        Trait.GPU: cluster.gpu.key not in _MEASURED_GPUS[setting.engine] and not cluster.gpu.is_cpu,
        Trait.RELEASE: setting.engine is ServingEngine.SGLANG
        and not (setting.is_release_known and OLDEST_MEASURED <= setting.patch <= NEWEST_MEASURED),
        Trait.SPECULATION: layout.speculative_algorithm is not None,
        Trait.DENSE: not model.is_moe,
        Trait.FORMAT: lacks_units(model, cluster.gpu, setting.engine),
        Trait.HOST: cluster.gpu.is_cpu,
    }
    found = {trait: _UNPROVEN[trait] for trait, is_so in holds.items() if is_so}
    if setting.engine in _OF_ENGINE:
        found[Trait.ENGINE] = _OF_ENGINE[setting.engine]
    return found


_OF_LAYOUT = frozenset(
    {
        Trait.ATTENTION_DP,
        Trait.PIPELINE,
        Trait.CONTEXT_PARALLEL,
        Trait.EXCHANGE,
        Trait.MOE_DP,
        Trait.NODES,
        Trait.SPECULATION,
    }
)


def layout_deviation(traits: Mapping[Trait, Deviations]) -> float:
    """Of the time per token, what is not proven of this way of splitting a model and others may not have in common."""
    return math.sqrt(sum(found.tpot**2 for trait, found in traits.items() if trait in _OF_LAYOUT))


def collectives_deviation(cluster: Cluster, layout: Layout, path: AllReducePath) -> float:
    """Of the time that messages between GPUs take."""
    return path_uncertainty(path, cluster, layout.tp_size) if layout.tp_size > 1 else 0.0


def slower_collectives(share: Floats, deviation: Floats) -> Floats:
    """Of a time of which `share` passes in collectives that may take `exp(Z * deviation)` times as long."""
    return np.asarray(np.log1p(share * np.expm1(Z * deviation)) / Z)


def faster_collectives(share: Floats, deviation: Floats) -> Floats:
    """The same where they take as many times less long: at most the share itself is saved."""
    return np.asarray(-np.log1p(share * np.expm1(-Z * deviation)) / Z)


def _is_rare(model: Model) -> bool:
    """Linear attention, sparse attention and compressed caches: of all fitted points one has any."""
    return model.linear_attention is not None or model.indexer is not None


def reasons(model: Model, cluster: Cluster, layout: Layout, setting: Setting, path: AllReducePath) -> tuple[str, ...]:
    """Why intervals are wider than for layouts like the measured ones, in plain words, each with how much it alone may
    move the time per token.
    """
    said = [
        f"{trait} (x{math.exp(Z * deviations.tpot):.1f})"
        for trait, deviations in traits_of(model, cluster, layout, setting).items()
    ]
    deviation = collectives_deviation(cluster, layout, path)
    if deviation > _WORTH_TELLING:
        over = "several nodes" if layout.tp_size > cluster.gpus_per_node else "PCIe"
        said.append(
            f"all-reduces over {over} ({path}) differ by up to {math.exp(Z * deviation):.0f} times between hosts: "
            "`tune probe` measures this one"
        )
    return tuple(said)
