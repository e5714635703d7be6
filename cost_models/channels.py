"""The collectives of a layout: each message that its ranks exchange, as a curve of time over size."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from cost_models.communication import all_gather, all_reduce, hop, reduce_scatter
from cost_models.curves import Curve
from cost_models.exchange import combine, dispatch
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.sglang.all_reduce import AllReducePath


class Channels(NamedTuple):
    """The collectives of one layout; None where it has none of that kind.

    exchange curves in decode and in prefill: backends have a mode for few tokens and one for many.
    """

    after_attention: Curve | None
    after_mlp: Curve | None
    gather: Curve | None
    scatter: Curve | None
    decode_dispatch: Curve | None
    decode_combine: Curve | None
    prefill_dispatch: Curve | None
    prefill_combine: Curve | None
    hop: Curve | None


def channels_of(
    model: Model,
    cluster: Cluster,
    layout: Layout,
    attn_tp: int,
    path: AllReducePath,
    attention_path: AllReducePath,
) -> Channels:
    """The collectives of an effective layout whose all-reduces take `path`, and those of a smaller attention group
    `attention_path`.
    """
    tp, backend = layout.tp_size, layout.moe_a2a_backend
    gathers = layout.attn_dp_size > 1
    exchanges = backend != "none"
    copies = max(1, model.experts_per_token)
    spans_nodes = tp * layout.pp_size > cluster.gpus_per_node

    def exchanged(way: Callable[..., Curve | None], *, is_low_latency: bool) -> Curve | None:
        return way(cluster, layout.ep_size, backend, is_low_latency=is_low_latency, experts_per_token=copies)

    return Channels(
        after_attention=all_reduce(cluster, attn_tp, path if attn_tp == tp else attention_path),
        after_mlp=None if gathers else all_reduce(cluster, tp, path),
        gather=all_gather(cluster, tp) if gathers else None,
        scatter=reduce_scatter(cluster, tp) if gathers else None,
        decode_dispatch=exchanged(dispatch, is_low_latency=True) if exchanges else None,
        decode_combine=exchanged(combine, is_low_latency=True) if exchanges else None,
        prefill_dispatch=exchanged(dispatch, is_low_latency=False) if exchanges else None,
        prefill_combine=exchanged(combine, is_low_latency=False) if exchanges else None,
        hop=hop(cluster, crosses_nodes=spans_nodes) if layout.pp_size > 1 else None,
    )
