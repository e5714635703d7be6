"""What speaks against prefill graphs, by release (arg_groups/cuda_graph_hook.py:125-256 of 0.5.23).

Until 0.5.14 they were compiled piecewise, which much more speaks against (server_args.py:1078 of 0.5.10).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from search_spaces.layout import Layout
from search_spaces.sglang.attention_backends import backends_by_phase
from search_spaces.sglang.target import Target
from search_spaces.sglang.version_facts import VersionFacts
from search_spaces.sglang.versions import EngineVersion, release_0_5

_FIRST_BREAKABLE = 15
_FIRST_CONTEXT_PARALLEL = 17
_CAPTURING_BACKENDS = frozenset({"none", "deepep", "megamoe", "flashinfer"})
"""All-to-all backends under which prefill graphs are known to work (cuda_graph_hook.py:228)."""

_VISION_SINCE = {
    "Qwen3_5ForConditionalGeneration": release_0_5(16),
    "Qwen3_5MoeForConditionalGeneration": release_0_5(16),
    "KimiK25ForConditionalGeneration": release_0_5(18),
    "KimiK3ForConditionalGeneration": release_0_5(18),
    "MiniMaxM3SparseForCausalLM": release_0_5(22),
    "MiniMaxM3SparseForConditionalGeneration": release_0_5(22),
}
"""Multimodal architectures read here whose prefill is captured (configs/model_config.py:2501), by first release."""

_UNCOMPILED_SINCE_0_5_10 = frozenset({"DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM", "Qwen3NextForCausalLM"})
_UNCOMPILED_SINCE_0_5_13 = frozenset({"DeepseekV4ForCausalLM", "Qwen3NextForCausalLM"})
"""Architectures that piecewise compilation is off for (configs/model_config.py:1352 of 0.5.10, :1579 of 0.5.13)."""


class _Obstacle(NamedTuple):
    """Releases 0.5.`since` to 0.5.`until`, both included, do not capture where `stops`."""

    since: int
    until: int
    stops: Callable[[Layout, Target, VersionFacts], bool]


_PIECEWISE = (
    _Obstacle(10, 12, lambda _, target, __: target.model.architecture in _UNCOMPILED_SINCE_0_5_10),
    _Obstacle(13, 14, lambda _, target, __: target.model.architecture in _UNCOMPILED_SINCE_0_5_13),
    _Obstacle(10, 10, lambda layout, _, __: layout.speculative_algorithm is not None),
    _Obstacle(10, 14, lambda layout, _, __: layout.attn_dp_size > 1),
    _Obstacle(10, 14, lambda layout, _, __: layout.enable_torch_compile),
    _Obstacle(10, 14, lambda layout, _, __: layout.pp_size > 1),
    _Obstacle(10, 14, lambda layout, _, __: layout.moe_a2a_backend != "none"),
    _Obstacle(10, 14, lambda _, target, __: target.is_multimodal),
    _Obstacle(10, 14, lambda layout, _, __: layout.disaggregation_mode != "null"),
    _Obstacle(10, 14, lambda layout, _, __: layout.enable_symm_mem or layout.enable_eplb),
    _Obstacle(10, 14, lambda layout, _, __: layout.attn_cp_size > 1),
    _Obstacle(13, 14, lambda layout, target, __: layout.enable_prefill_cp and target.is_dsa),
)
_BREAKABLE = (
    _Obstacle(15, 16, lambda _, target, __: target.is_mla),
    _Obstacle(17, 17, lambda _, target, __: target.is_mla and not target.is_dsa),
    _Obstacle(15, 23, lambda _, target, __: target.model.architecture == "DeepseekV4ForCausalLM"),
    _Obstacle(17, 17, lambda _, target, __: target.model.architecture == "NemotronHForCausalLM"),
    _Obstacle(20, 23, lambda _, target, __: target.model.is_kda),
    _Obstacle(19, 23, lambda layout, _, __: layout.pp_size > 1),
    _Obstacle(
        15,
        23,
        lambda layout, _, facts: layout.attn_cp_size > 1 and not captures_context_parallel_prefill(layout, facts),
    ),
    _Obstacle(16, 23, lambda layout, _, __: layout.dcp_size > 1),
    _Obstacle(17, 23, lambda layout, _, __: layout.enable_two_batch_overlap),
    _Obstacle(15, 15, lambda layout, _, __: layout.disaggregation_mode == "prefill"),
    _Obstacle(15, 16, lambda layout, _, __: layout.moe_a2a_backend != "none" or layout.attn_dp_size > 1),
    _Obstacle(17, 23, lambda layout, _, __: layout.moe_a2a_backend not in _CAPTURING_BACKENDS),
    _Obstacle(15, 23, lambda _, target, facts: target.is_multimodal and not _captures_vision(target, facts)),
)


def captures_prefill(layout: Layout, target: Target, facts: VersionFacts) -> bool:
    """Whether nothing speaks against prefill graphs."""
    if facts.prefill_graph == "disabled" or target.is_cpu:
        return False
    return not any(obstacle.stops(layout, target, facts) for obstacle in _obstacles(facts.version))


def captures_context_parallel_prefill(layout: Layout, facts: VersionFacts) -> bool:
    """Whether prefill graphs work under this context parallelism (layers/cp/bcg/__init__.py:42)."""
    return (
        layout.enable_prefill_cp
        and facts.version >= release_0_5(_FIRST_CONTEXT_PARALLEL)
        and layout.pp_size == 1
        and layout.attn_cp_size == layout.tp_size
        and layout.cp_strategy == "zigzag"
        and backends_by_phase(layout)[0] == "trtllm_mha"
    )


def _captures_vision(target: Target, facts: VersionFacts) -> bool:
    first = _VISION_SINCE.get(target.model.architecture)
    return first is not None and facts.version >= first


@cache
def _obstacles(version: EngineVersion) -> tuple[_Obstacle, ...]:
    known = _BREAKABLE if version >= release_0_5(_FIRST_BREAKABLE) else _PIECEWISE
    return tuple(item for item in known if release_0_5(item.since) <= version <= release_0_5(item.until))
