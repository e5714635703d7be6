"""Which GPUs share what: the groups of ranks that a layout makes, drawn compactly.

Ranks are numbered as the engine numbers them (sglang 0.5.23, srt/runtime_context.py:106-134): pipeline stages
outside, then attention data parallel, context parallel and tensor parallel ranks; the experts divide the same
ranks into data parallel, expert parallel and tensor parallel ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from search_spaces.layout import MOST_GPUS, Layout

_MOST_DRAWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroups:
    """Groups of one kind, each a tuple of GPU numbers within one replica. `shares`: what its members do together."""

    name: str
    shares: str
    groups: tuple[tuple[int, ...], ...]

    @property
    def is_trivial(self) -> bool:
        return all(len(group) == 1 for group in self.groups)

    @property
    def drawing(self) -> str:
        """`[0-3][4-7]`, `[0,2,4,6][1,3,5,7]`; of many groups the first and the last."""
        drawn = [f"[{_drawn(group)}]" for group in self.groups]
        if len(drawn) > _MOST_DRAWN:
            return f"{''.join(drawn[:3])}...{drawn[-1]} ({len(drawn)} groups)"
        return "".join(drawn)


def rank_groups(layout: Layout) -> tuple[RankGroups, ...]:
    """All groups of an effective layout's replica; empty where its sizes do not divide, or name more GPUs than there
    are in any cluster.
    """
    tp, pp = layout.tp_size, layout.pp_size
    if tp * pp > MOST_GPUS:
        return ()
    attn = (layout.attn_dp_size, layout.attn_cp_size, layout.attn_tp_size)
    moe = (layout.moe_dp_size, layout.ep_size, layout.moe_tp_size)
    if min(tp, pp, *attn, *moe) < 1 or attn[0] * attn[1] * attn[2] != tp or moe[0] * moe[1] * moe[2] != tp:
        return ()
    stages = [range(stage * tp, (stage + 1) * tp) for stage in range(pp)]
    return (
        RankGroups(
            name="pipeline stages",
            shares="one stage's layers",
            groups=tuple(tuple(stage) for stage in stages),
        ),
        _inner("attention TP", "the heads of one attention and its KV cache", stages, attn, 2),
        _inner("attention CP", "the tokens of one prompt", stages, attn, 1),
        _inner("expert TP", "each of their experts, a slice each", stages, moe, 2),
        _inner("expert parallel", "all experts, some each", stages, moe, 1),
        _inner("expert DP", "nothing: a copy of the experts each", stages, moe, 0),
    )


def _inner(name: str, shares: str, stages: Sequence[range], sizes: tuple[int, int, int], axis: int) -> RankGroups:
    """Ranks of a stage that differ in one coordinate alone; the last one changes fastest."""
    stride = (sizes[1] * sizes[2], sizes[2], 1)[axis]
    groups = []
    for stage in stages:
        firsts = [rank for rank in range(len(stage)) if rank // stride % sizes[axis] == 0]
        groups += [tuple(stage[first + stride * step] for step in range(sizes[axis])) for first in firsts]
    return RankGroups(name=name, shares=shares, groups=tuple(groups))


def _drawn(group: Iterable[int]) -> str:
    """Runs of three and more as `first-last`."""
    ranks = tuple(group)
    if len(ranks) > 2 and ranks == tuple(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    if len(ranks) > _MOST_DRAWN:
        return f"{ranks[0]},{ranks[1]},...,{ranks[-1]}"
    return ",".join(map(str, ranks))
