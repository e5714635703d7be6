"""Which memory fractions a layout works with: from where on its KV cache holds a request, up to where graphs and
activations have room.
"""

from __future__ import annotations

import math

from cost_models.memory_shape import pool_need_bytes, shape_of
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.sglang.versions import NEWEST, EngineVersion
from search_spaces.workload import Workload


def workable_fractions(
    model: Model, cluster: Cluster, layout: Layout, workload: Workload, *, version: EngineVersion = NEWEST
) -> tuple[float, float] | None:
    """The smallest and the largest `mem_fraction_static`, in thousandths, with which an effective layout is expected to
    serve `workload`; None where no fraction does both.

    Smallest: each KV pool holds one request. Largest: what is expected to be needed outside stays free. A real server
    may work a little beyond either: `fit` refuses only what fails under the most favourable assumptions.
    """
    shape = shape_of(model, cluster.gpu, layout, version)
    usable = cluster.gpu.memory_bytes - shape.reserve_bytes
    lowest = pool_need_bytes(layout, shape, workload.tokens_per_request) / usable
    highest = 1 - (shape.needs.activations + shape.needs.graphs + shape.exchange_bytes) / usable
    low = max(math.ceil(lowest * 1000) / 1000, 0.001)
    high = min(math.floor(highest * 1000) / 1000, 0.999)
    return (low, high) if low <= high else None
