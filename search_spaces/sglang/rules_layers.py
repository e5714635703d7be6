"""Rules that stop the construction of a model's layers, except the experts'."""

from __future__ import annotations

from dataclasses import replace

from search_spaces.architectures.table import ARCHITECTURES
from search_spaces.parts import Component, Ranks, Widths
from search_spaces.placement import (
    odd_block,
    undivided,
    undivided_heads,
    undivided_kv_heads,
    undivided_linear_heads,
    widths_of,
)
from search_spaces.sglang.experts import fuses_shared_experts
from search_spaces.sglang.rule import ATTENTION, CHOICES, SIZES, Launch, Rule, says
from search_spaces.sglang.versions import release_0_5
from search_spaces.verdict import Stage

_SIZED = frozenset({CHOICES, SIZES})

_WITH_ATTENTION = frozenset({CHOICES, SIZES, ATTENTION})


def _widths(launch: Launch) -> Widths:
    return widths_of(launch.model, launch.effective)


def _sizes(launch: Launch) -> str:
    run = launch.effective
    return f"(tp_size={run.tp_size}, attn_dp_size={run.attn_dp_size}, attn_cp_size={run.attn_cp_size})"


def _heads_text(launch: Launch) -> str:
    widths = _widths(launch)
    heads = undivided_heads(launch.model, widths)
    assert heads is not None
    return (
        f"the attention heads must divide over attention TP, but {widths.of(heads.ranks)} does not divide "
        f"{heads.num_query} {_sizes(launch)}"
    )


def _kv_heads_text(launch: Launch) -> str:
    widths = _widths(launch)
    heads = undivided_kv_heads(launch.model, widths)
    assert heads is not None
    return (
        "the KV heads must divide over attention TP or attention TP over them, but "
        f"{heads.num_kv} KV heads and {widths.of(heads.ranks)} ranks do not"
    )


def _linear_heads_text(launch: Launch) -> str:
    heads = undivided_linear_heads(launch.model, _widths(launch))
    assert heads is not None
    return (
        f"the {heads.what} of linear attention must divide over attention TP, but {heads.ranks} does not divide "
        f"{heads.number} {_sizes(launch)}"
    )


def _linear_heads_engine_text(launch: Launch) -> str:
    heads = undivided_linear_heads(launch.model, _widths(launch))
    return "" if heads is None else heads.engine_text


def _heads_engine_text(launch: Launch) -> str:
    """Nothing where the class asserts it; else what the first projection says (distributed/utils.py:70)."""
    widths = _widths(launch)
    heads = undivided_heads(launch.model, widths)
    found = undivided(launch.model, widths, Component.ATTENTION)
    if heads is None or heads.is_asserted or found is None:
        return ""
    return f"{found.width} is not divisible by {found.ranks}"


def _splits_vision(launch: Launch) -> bool:
    vision = launch.model.vision
    return launch.target.is_multimodal and vision is not None and not vision.is_whole


def _vision_heads(launch: Launch) -> int:
    vision = launch.model.vision
    return 0 if vision is None else vision.num_heads


def _vision_class(launch: Launch) -> str:
    vision = launch.model.vision
    return "" if vision is None else vision.layer_class


def _vision_ranks(launch: Launch) -> int:
    vision = launch.model.vision
    return 1 if vision is None else _widths(launch).of(vision.ranks)


def _vision_reduces_too_widely(launch: Launch) -> bool:
    run, vision = launch.effective, launch.model.vision
    return (
        _splits_vision(launch)
        and vision is not None
        and vision.ranks is Ranks.VISION
        and run.attn_dp_size == 1
        and 1 < run.attn_tp_size < run.tp_size
    )


def _cp_meets_attention_dp(launch: Launch) -> bool:
    run = launch.effective
    return (
        run.attn_cp_size > 1
        and run.attn_dp_size > 1
        and run.moe_dp_size == run.attn_cp_size
        and run.moe_a2a_backend == "none"
    )


def _updates_at_exit(launch: Launch) -> bool:
    match ARCHITECTURES[launch.model.architecture].updates_at_exit:
        case "always":
            return True
        case "without attention DP":
            return launch.effective.attn_dp_size == 1
        case "never":
            return False


_WHOSE = {
    Component.ATTENTION: "an attention projection's",
    Component.DENSE: "the dense layers'",
    Component.SHARED: "the shared experts'",
    Component.VISION: "the vision tower's",
}


def _width_rule(rule_id: str, component: Component) -> Rule:
    """The widths of a component's projections divide over their ranks."""

    def message(launch: Launch) -> str:
        found = undivided(launch.model, _widths(launch), component)
        assert found is not None
        return f"{_WHOSE[component]} width must divide over its ranks, but {found.ranks} does not divide {found.width}"

    return Rule(
        id=rule_id,
        stage=Stage.MODEL,
        source="layers/linear.py:693",
        broken=lambda launch: undivided(launch.model, _widths(launch), component) is not None,
        message=message,
        exception="AssertionError",
        needs=_WITH_ATTENTION,
        cuda_only=True,
    )


def _block_rule(rule_id: str, *components: Component) -> Rule:
    """Parts of block-FP8 projections are whole blocks (layers/quantization/fp8.py:568)."""

    def broken(launch: Launch) -> bool:
        widths = _widths(launch)
        whole = tuple(c for c in components if undivided(launch.model, widths, c) is None)
        if undivided_heads(launch.model, widths) is not None:
            whole = tuple(c for c in whole if c is not Component.ATTENTION)
        return odd_block(launch.model, widths, whole) is not None

    def message(launch: Launch) -> str:
        part = odd_block(launch.model, _widths(launch), components)
        assert part is not None
        run = launch.effective
        return (
            f"{_WHOSE[part.component]} {part.side} on one rank must be a multiple of the {part.block}-wide FP8 block, "
            f"but is {part.size} (tp_size={run.tp_size}, attn_tp_size={run.attn_tp_size}, "
            f"moe_dense_tp_size={launch.asked.moe_dense_tp_size})"
        )

    def text(launch: Launch) -> str:
        part = odd_block(launch.model, _widths(launch), components)
        assert part is not None
        return part.engine_text

    return Rule(
        id=rule_id,
        stage=Stage.MODEL,
        source="layers/quantization/fp8.py:606",
        broken=broken,
        message=message,
        exception="ValueError",
        engine_text=text,
        needs=_WITH_ATTENTION,
        cuda_only=True,
    )


BEFORE_EXPERTS = (
    Rule(
        id="cpu.a2a",
        stage=Stage.MODEL,
        source="layers/moe/token_dispatcher/",
        broken=lambda launch: launch.cluster.gpu.is_cpu and launch.effective.moe_a2a_backend != "none",
        message=lambda launch: f"--moe-a2a-backend {launch.effective.moe_a2a_backend} needs CUDA GPUs",
        exception="ImportError",
    ),
    Rule(
        id="vision.heads",
        stage=Stage.MODEL,
        source="layers/attention/vision.py:1133",
        broken=lambda launch: _splits_vision(launch) and _vision_heads(launch) % _vision_ranks(launch) != 0,
        message=lambda launch: (
            f"the vision tower's {_vision_heads(launch)} heads must divide over attention TP, but "
            f"{_vision_ranks(launch)} does not divide them (--mm-enable-dp-encoder replicates it)"
        ),
        exception="AssertionError",
        engine_text=lambda launch: f"{_vision_heads(launch)} is not divisible by {_vision_ranks(launch)}",
        needs=_WITH_ATTENTION,
        cuda_only=True,
    ),
    Rule(
        id="vision.attn_cp",
        stage=Stage.MODEL,
        source="layers/dp_attention.py:567",
        broken=_vision_reduces_too_widely,
        message=lambda launch: (
            "the vision tower's attention cannot be split by attn_cp_size alone: attention TP "
            f"{launch.effective.attn_tp_size} must be 1 or tp_size ({launch.effective.tp_size}), or attn_dp_size "
            "more than 1"
        ),
        exception="ValueError",
        engine_text=lambda launch: (
            f"{_vision_class(launch)} shards over the attention TP group "
            f"({launch.effective.attn_tp_size} ranks) but all-reduces over the full TP group "
            f"({launch.effective.tp_size} ranks), so it does not support --attn-cp-size "
            f"{launch.effective.attn_cp_size} yet."
        ),
        needs=_WITH_ATTENTION,
        cuda_only=True,
        since=release_0_5(22),
    ),
    Rule(
        id="pp.layers",
        stage=Stage.MODEL,
        source="utils/common.py:1635",
        broken=lambda launch: launch.effective.pp_size > launch.model.num_layers,
        message=lambda launch: (
            f"pp_size must not exceed the number of layers, but {launch.effective.pp_size} > {launch.model.num_layers}"
        ),
        exception="AssertionError",
        needs=_SIZED,
    ),
    Rule(
        id="linear_heads.divide",
        stage=Stage.MODEL,
        source="layers/attention/mamba/mamba.py:249, layers/linear.py:693",
        broken=lambda launch: undivided_linear_heads(launch.model, _widths(launch)) is not None,
        message=_linear_heads_text,
        exception="AssertionError",
        engine_text=_linear_heads_engine_text,
        needs=_WITH_ATTENTION,
        cuda_only=True,
    ),
    Rule(
        id="heads.divide",
        stage=Stage.MODEL,
        source="models/qwen3_moe.py:506, glm4_moe.py:237, gpt_oss.py:394, mixtral.py:139, deepseek_v2.py:2057",
        broken=lambda launch: undivided_heads(launch.model, _widths(launch)) is not None,
        message=_heads_text,
        exception="AssertionError",
        engine_text=_heads_engine_text,
        needs=_WITH_ATTENTION,
        cuda_only=True,
    ),
    Rule(
        id="kv_heads.divide",
        stage=Stage.MODEL,
        source="models/qwen3_moe.py:512",
        broken=lambda launch: undivided_kv_heads(launch.model, _widths(launch)) is not None,
        message=_kv_heads_text,
        exception="AssertionError",
        needs=_WITH_ATTENTION,
        cuda_only=True,
    ),
    _width_rule("dense.divides", Component.DENSE),
    _block_rule("quant.fp8_block.linear", Component.ATTENTION, Component.DENSE),
)


def _beside_routed(rule: Rule) -> Rule:
    """The rule, where shared experts are a part of their own."""
    return replace(rule, broken=lambda launch: not fuses_shared_experts(launch) and rule.broken(launch))


AFTER_EXPERTS = (
    _beside_routed(_width_rule("shared.divides", Component.SHARED)),
    _beside_routed(_block_rule("quant.fp8_block.shared", Component.SHARED)),
    Rule(
        id="pp.supported",
        stage=Stage.MODEL,
        source="model_executor/model_runner.py:514",
        broken=lambda launch: (
            launch.effective.pp_size > 1 and not ARCHITECTURES[launch.model.architecture].has_pipeline
        ),
        message=lambda launch: (
            f"{launch.model.architecture} does not run in pipeline stages, so pp_size must be 1 "
            f"(pp_size={launch.effective.pp_size})"
        ),
        exception="AssertionError",
        engine_text=says("Pipeline Parallel is not compatible with this model."),
        needs=_SIZED,
    ),
    Rule(
        id="attn_cp.moe_dp_with_attn_dp",
        stage=Stage.MODEL,
        source="layers/layer_boundary/factories.py:86",
        broken=_cp_meets_attention_dp,
        message=lambda launch: (
            "moe_dp_size must be 1 where attention is laid out as both DP and CP "
            f"(moe_dp_size={launch.effective.moe_dp_size}, attn_dp_size={launch.effective.attn_dp_size}, "
            f"attn_cp_size={launch.effective.attn_cp_size})"
        ),
        exception="NotImplementedError",
        engine_text=says("a MoE on the TP group with moe_dp_size == attn_cp_size under attention DP and attention CP"),
        since=release_0_5(21),
    ),
    Rule(
        id="attn_cp.architecture",
        stage=Stage.MODEL,
        source="layers/layer_boundary/factories.py:553",
        broken=lambda launch: (
            _updates_at_exit(launch)
            and launch.model.is_moe
            and launch.effective.attn_cp_size > launch.effective.moe_dp_size
            and launch.effective.moe_a2a_backend == "none"
        ),
        message=lambda launch: (
            f"{launch.model.architecture}'s experts cannot be gathered over attention CP, so attn_cp_size must be 1 "
            f"(attn_cp_size={launch.effective.attn_cp_size}, moe_dp_size={launch.effective.moe_dp_size})"
        ),
        exception="NotImplementedError",
        engine_text=says("an update applied at the stage's exit with a MoE gathered over the MoE-CP group"),
        needs=_SIZED,
        since=release_0_5(21),
    ),
)
