"""Rules that stop the construction of a model's layers, except the experts'."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from search_spaces.model import Component, Scheme
from search_spaces.sglang.rule import ATTENTION, CHOICES, SIZES, Launch, Rule, says
from search_spaces.verdict import Stage

_SIZED = frozenset({CHOICES, SIZES})

_WITH_ATTENTION = frozenset({CHOICES, SIZES, ATTENTION})

_KIMI_VISION_HEADS = 16


def _attention_width(launch: Launch) -> int:
    """Ranks that attention heads are split over; Mixtral ignores attention DP and CP (models/mixtral.py:137)."""
    if launch.model.architecture == "MixtralForCausalLM":
        return launch.effective.tp_size
    return launch.effective.attn_tp_size


def _heads_do_not_split(launch: Launch) -> bool:
    return launch.model.num_attention_heads % _attention_width(launch) != 0


def _kv_heads_do_not_split(launch: Launch) -> bool:
    if launch.model.mla is not None:
        return False
    width, heads = _attention_width(launch), launch.model.num_kv_heads
    return heads % width != 0 if heads >= width else width % heads != 0


def _vision_reduces_too_widely(launch: Launch) -> bool:
    run = launch.effective
    return launch.target.is_multimodal and run.attn_dp_size == 1 and 1 < run.attn_tp_size < run.tp_size


def _cp_meets_attention_dp(launch: Launch) -> bool:
    run = launch.effective
    return (
        run.attn_cp_size > 1
        and run.attn_dp_size > 1
        and run.moe_dp_size == run.attn_cp_size
        and run.moe_a2a_backend == "none"
    )


class _Mlp(NamedTuple):
    """A plain MLP, split over `ranks`."""

    what: str
    component: Component
    width: int
    ranks: int

    @property
    def divides(self) -> bool:
        return self.width % self.ranks == 0


def _dense(launch: Launch) -> _Mlp | None:
    model = launch.model
    if not model.num_dense_layers:
        return None
    ranks = launch.asked.moe_dense_tp_size or launch.effective.tp_size
    return _Mlp("the dense layers'", Component.DENSE, model.dense_intermediate_size, ranks)


def _shared(launch: Launch) -> _Mlp | None:
    """Every all-to-all backend makes each rank hold the shared experts whole (models/deepseek_v2.py:874)."""
    if not launch.model.shared_intermediate_size:
        return None
    ranks = launch.effective.tp_size if launch.effective.moe_a2a_backend == "none" else 1
    return _Mlp("the shared experts'", Component.SHARED, launch.model.shared_intermediate_size, ranks)


def _mlp_rule(rule_id: str, mlp_of: Callable[[Launch], _Mlp | None]) -> Rule:
    """The MLP's width divides over its ranks."""

    def broken(launch: Launch) -> bool:
        mlp = mlp_of(launch)
        return mlp is not None and not mlp.divides

    def message(launch: Launch) -> str:
        mlp = mlp_of(launch)
        assert mlp is not None
        return f"{mlp.what} width must divide over its ranks, but {mlp.ranks} does not divide {mlp.width}"

    return Rule(
        id=rule_id,
        stage=Stage.MODEL,
        source="layers/linear.py:693",
        broken=broken,
        message=message,
        exception="AssertionError",
        needs=_SIZED,
        cuda_only=True,
    )


def _attention_parts(launch: Launch) -> Iterator[tuple[str, int]]:
    """(what, size on one rank) of each attention projection along its split side."""
    model, width = launch.model, _attention_width(launch)
    heads = model.num_attention_heads // width
    if model.mla is None:
        yield "output", heads * model.head_dim
        yield "output", max(1, model.num_kv_heads // width) * model.head_dim
        yield "input", heads * model.head_dim
        return
    if width == 1:
        return
    yield "output", heads * (model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim)
    yield "output", heads * (model.mla.qk_nope_head_dim + model.mla.v_head_dim)
    yield "input", heads * model.mla.v_head_dim


class _Part(NamedTuple):
    """One rank's part of a projection along its split side."""

    what: str
    side: str
    size: int


def _mlp_part(launch: Launch, mlp: _Mlp | None) -> Iterator[_Part]:
    if mlp is not None and mlp.divides and mlp.component in launch.model.quantization.components:
        yield _Part(mlp.what, "output", mlp.width // mlp.ranks)


def _early_parts(launch: Launch) -> Iterator[_Part]:
    """Projections that the first layer builds before its experts."""
    if Component.ATTENTION in launch.model.quantization.components and not _heads_do_not_split(launch):
        for side, size in _attention_parts(launch):
            yield _Part("an attention projection's", side, size)
    yield from _mlp_part(launch, _dense(launch))


def _late_parts(launch: Launch) -> Iterator[_Part]:
    yield from _mlp_part(launch, _shared(launch))


def _block_rule(rule_id: str, parts: Callable[[Launch], Iterator[_Part]]) -> Rule:
    """Parts of block-FP8 projections are whole blocks (layers/quantization/fp8.py:568)."""

    def first_odd(launch: Launch) -> _Part | None:
        quantization = launch.model.quantization
        if quantization.scheme is not Scheme.FP8_BLOCK:
            return None
        return next((part for part in parts(launch) if part.size % quantization.group_size != 0), None)

    def message(launch: Launch) -> str:
        part = first_odd(launch)
        assert part is not None
        return (
            f"{part.what} {part.side} on one rank must be a multiple of the "
            f"{launch.model.quantization.group_size}-wide FP8 block, but is {part.size} "
            f"(tp_size={launch.effective.tp_size}, attn_tp_size={launch.effective.attn_tp_size}, "
            f"moe_dense_tp_size={launch.asked.moe_dense_tp_size})"
        )

    def text(launch: Launch) -> str:
        part = first_odd(launch)
        assert part is not None
        block = launch.model.quantization.group_size
        if part.side == "input":
            return (
                f"Weight input_size_per_partition = {part.size} is not divisible by weight quantization "
                f"block_k = {block}."
            )
        return f"Weight output_partition_size = {part.size} is not divisible by weight quantization block_n = {block}."

    return Rule(
        id=rule_id,
        stage=Stage.MODEL,
        source="layers/quantization/fp8.py:606",
        broken=lambda launch: first_odd(launch) is not None,
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
        broken=lambda launch: launch.target.is_multimodal and _KIMI_VISION_HEADS % launch.effective.attn_tp_size != 0,
        message=lambda launch: (
            f"the vision tower's {_KIMI_VISION_HEADS} heads must divide over attention TP, but "
            f"{launch.effective.attn_tp_size} does not divide them (--mm-enable-dp-encoder replicates it)"
        ),
        exception="AssertionError",
        engine_text=lambda launch: f"{_KIMI_VISION_HEADS} is not divisible by {launch.effective.attn_tp_size}",
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
            "VisionAttention shards over the attention TP group "
            f"({launch.effective.attn_tp_size} ranks) but all-reduces over the full TP group "
            f"({launch.effective.tp_size} ranks), so it does not support --attn-cp-size "
            f"{launch.effective.attn_cp_size} yet."
        ),
        needs=_WITH_ATTENTION,
        cuda_only=True,
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
        id="heads.divide",
        stage=Stage.MODEL,
        source="models/qwen3_moe.py:506, glm4_moe.py:237, gpt_oss.py:394, mixtral.py:139, deepseek_v2.py:2057",
        broken=_heads_do_not_split,
        message=lambda launch: (
            "the attention heads must divide over attention TP, but "
            f"{_attention_width(launch)} does not divide {launch.model.num_attention_heads} "
            f"(tp_size={launch.effective.tp_size}, attn_dp_size={launch.effective.attn_dp_size}, "
            f"attn_cp_size={launch.effective.attn_cp_size})"
        ),
        exception="AssertionError",
        needs=_WITH_ATTENTION,
        cuda_only=True,
    ),
    Rule(
        id="kv_heads.divide",
        stage=Stage.MODEL,
        source="models/qwen3_moe.py:512",
        broken=_kv_heads_do_not_split,
        message=lambda launch: (
            "the KV heads must divide over attention TP or attention TP over them, but "
            f"{launch.model.num_kv_heads} KV heads and {_attention_width(launch)} ranks do not"
        ),
        exception="AssertionError",
        needs=_WITH_ATTENTION,
        cuda_only=True,
    ),
    _mlp_rule("dense.divides", _dense),
    _block_rule("quant.fp8_block.linear", _early_parts),
)

AFTER_EXPERTS = (
    _mlp_rule("shared.divides", _shared),
    _block_rule("quant.fp8_block.shared", _late_parts),
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
    ),
)
