"""Vision towers, as far as they divide over ranks and take memory."""

from __future__ import annotations

from search_spaces.architectures.reading import DEEPEST, Fields
from search_spaces.parts import Component, Part, Projection, Ranks, Split, Tensor, Vision

_KIMI = {
    "KimiK25ForConditionalGeneration": {
        "vt_hidden_size": 1152, "vt_intermediate_size": 4304, "vt_num_attention_heads": 16, "vt_num_hidden_layers": 27,
    },
}  # fmt: skip
"""What a config.json leaves out (configs/kimi_k25.py)."""

_UNNAMED_LAYERS = 24
"""What the engine's memory default takes for a tower that calls its layers `depth` (arg_groups/memory_hook.py:405)."""

_UNNAMED_WIDTH = 1024
"""And for the width of one whose config stays a plain dictionary."""


def vision_of(fields: Fields, hidden_size: int, bytes_each: int) -> Vision | None:
    """The vision tower of a multimodal class; None where the engine builds none."""
    architecture = fields.architecture()
    build = _TOWERS.get(architecture)
    if build is None:
        return None
    config = fields.inner("vision_config", _KIMI.get(architecture))
    return None if config is None else build(config, hidden_size, bytes_each)


class _Tower:
    """Collects the parts of a tower whose layers are alike."""

    def __init__(self, width: int, bytes_each: int, ranks: Ranks = Ranks.VISION) -> None:
        self._width = width
        self._ranks = ranks
        self._bytes = bytes_each
        self.parts: list[Part] = []

    def linear(self, outputs: int, inputs: int, split: Split | None = None, count: int = 1) -> None:
        self.parts += [
            Projection(
                component=Component.VISION,
                outputs=(outputs,),
                inputs=inputs,
                ranks=Ranks.ONE if split is None else self._ranks,
                split=split or Split.OUTPUTS,
                has_bias=True,
                element_bytes=self._bytes,
            )
        ] * count

    def attention(self, count: int, inner: int = 0) -> None:
        inner = inner or self._width
        self.linear(3 * inner, self._width, Split.OUTPUTS, count)
        self.linear(self._width, inner, Split.INPUTS, count)

    def plain(self, size: int) -> None:
        self.parts.append(Tensor(component=Component.VISION, size=size, element_bytes=self._bytes))


def _kimi(config: Fields, hidden_size: int, bytes_each: int) -> Vision:
    """models/kimi_k25.py: attention over attention-TP ranks, the MLPs whole."""
    width, inner, layers = (
        config.count("vt_hidden_size"),
        config.count("vt_intermediate_size"),
        config.count("vt_num_hidden_layers", most=DEEPEST),
    )
    tower = _Tower(width, bytes_each)
    tower.attention(layers)
    tower.linear(inner, width, count=layers)
    tower.linear(width, inner, count=layers)
    merged = 4 * width
    tower.linear(merged, merged)
    tower.linear(hidden_size, merged)
    tower.plain(64 * 64 * width + 3 * 14 * 14 * width)
    return Vision(
        num_layers=layers, hidden_size=width, num_heads=config.count("vt_num_attention_heads"), parts=tuple(tower.parts)
    )


def _kimi_k3(config: Fields, hidden_size: int, bytes_each: int) -> Vision:
    """models/kimi_k3_vl.py: the whole tower on every rank."""
    width, inner = config.count("vt_hidden_size", default=1024), config.count("vt_intermediate_size", default=4096)
    layers, heads = (
        config.count("vt_num_hidden_layers", default=27, most=DEEPEST),
        config.count("vt_num_attention_heads", default=12),
    )
    attention = config.count("qkv_hidden_size", default=1536)
    tower = _Tower(width, bytes_each)
    for outputs, inputs in ((3 * attention, width), (width, attention), (inner, width), (width, inner)):
        tower.plain(outputs * inputs * layers)
    merged = 4 * width
    tower.plain(merged * merged + merged * hidden_size + 64 * 64 * width + 3 * 14 * 14 * width)
    return Vision(num_layers=layers, hidden_size=width, num_heads=heads, parts=tuple(tower.parts), is_whole=True)


def _qwen(config: Fields, hidden_size: int, bytes_each: int) -> Vision:
    """models/qwen3_vl.py: everything over attention-TP ranks; one more merger for each deep-stack level."""
    width, inner, layers = (
        config.count("hidden_size"),
        config.count("intermediate_size"),
        config.count("depth", most=DEEPEST),
    )
    tower = _Tower(width, bytes_each)
    tower.attention(layers)
    tower.linear(inner, width, Split.OUTPUTS, layers)
    tower.linear(width, inner, Split.INPUTS, layers)
    merged = config.count("spatial_merge_size", default=2) ** 2 * width
    mergers = 1 + len(config.listed("deepstack_visual_indexes"))
    tower.linear(merged, merged, Split.OUTPUTS, mergers)
    tower.linear(config.count("out_hidden_size", default=hidden_size), merged, Split.INPUTS, mergers)
    patch = 3 * config.count("temporal_patch_size", default=2) * config.count("patch_size", default=16) ** 2
    tower.plain(patch * width)
    positions = Tensor(
        component=Component.VISION,
        size=config.count("num_position_embeddings", default=2304) * width,
        element_bytes=bytes_each,
        ranks=Ranks.VISION,
    )
    return Vision(
        num_layers=_UNNAMED_LAYERS,
        hidden_size=width,
        num_heads=config.count("num_heads"),
        parts=(*tower.parts, positions),
    )


def _gemma(config: Fields, hidden_size: int, bytes_each: int) -> Vision:
    """models/gemma4_vision.py: over all ranks, whatever attention data parallelism says."""
    width, inner, layers = (
        config.count("hidden_size"),
        config.count("intermediate_size"),
        config.count("num_hidden_layers", most=DEEPEST),
    )
    tower = _Tower(width, bytes_each, Ranks.WORLD)
    tower.attention(layers)
    tower.linear(2 * inner, width, Split.OUTPUTS, layers)
    tower.linear(width, inner, Split.INPUTS, layers)
    tower.linear(hidden_size, width)
    positions = config.count("position_embedding_size", default=10240)
    tower.plain(2 * positions * width + 3 * config.count("patch_size", default=16) ** 2 * width)
    return Vision(
        num_layers=layers,
        hidden_size=width,
        num_heads=config.count("num_attention_heads"),
        parts=tuple(tower.parts),
        ranks=Ranks.WORLD,
    )


def _clip(config: Fields, hidden_size: int, bytes_each: int) -> Vision:
    """models/minimax_m3_vl.py."""
    width, inner, layers = (
        config.count("hidden_size"),
        config.count("intermediate_size"),
        config.count("num_hidden_layers", most=DEEPEST),
    )
    tower = _Tower(width, bytes_each)
    tower.attention(layers)
    tower.linear(inner, width, Split.OUTPUTS, layers)
    tower.linear(width, inner, Split.INPUTS, layers)
    out = config.count("projection_dim", default=hidden_size)
    for inputs in (width, 4 * out):
        tower.linear(out, inputs, Split.OUTPUTS)
        tower.linear(out, out, Split.INPUTS)
    tower.plain(2 * 3 * config.count("patch_size", default=14) ** 2 * width)
    return Vision(
        num_layers=layers,
        hidden_size=width,
        num_heads=config.count("num_attention_heads"),
        parts=tuple(tower.parts),
        layer_class="CLIPEncoderLayer",
    )


_TOWERS = {
    "Gemma4ForConditionalGeneration": _gemma,
    "KimiK25ForConditionalGeneration": _kimi,
    "KimiK3ForConditionalGeneration": _kimi_k3,
    "MiniMaxM3SparseForConditionalGeneration": _clip,
    "Qwen3VLForConditionalGeneration": _qwen,
    "Qwen3VLMoeForConditionalGeneration": _qwen,
    "Qwen3_5ForConditionalGeneration": _qwen,
    "Qwen3_5MoeForConditionalGeneration": _qwen,
}
