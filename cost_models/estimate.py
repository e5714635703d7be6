"""What a layout would do on a cluster under a load: the cost model as one function."""

from __future__ import annotations

from dataclasses import replace

from cost_models.compute import rank_of
from cost_models.constants import DEFAULT, Constants
from cost_models.memory import fit, memory
from cost_models.prediction import DoesNotFit, Memory, Prediction, StepTime
from cost_models.serving import serving_point
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.workload import Workload


def predict(
    model: Model, cluster: Cluster, layout: Layout, workload: Workload, constants: Constants = DEFAULT
) -> Prediction | DoesNotFit:
    """The steady state at every concurrency of `workload`, or why the layout does not fit.

    `layout` must be effective (`search_spaces.sglang.resolution`) and legal.
    """
    held = fit(model, cluster, layout, workload)
    return held if isinstance(held, DoesNotFit) else _steady(model, cluster, layout, workload, held, constants)


def predict_if_it_fits(
    model: Model, cluster: Cluster, layout: Layout, workload: Workload, constants: Constants = DEFAULT
) -> Prediction:
    """The steady state of a layout that is to be tried whatever the memory model says of it.

    Its KV pool is taken to hold one request at least.
    """
    held = memory(model, cluster, layout)
    held = replace(held, kv_tokens=max(held.kv_tokens, workload.tokens_per_request))
    return _steady(model, cluster, layout, workload, held, constants)


def _steady(
    model: Model, cluster: Cluster, layout: Layout, workload: Workload, held: Memory, constants: Constants
) -> Prediction:
    rank = rank_of(model, cluster, layout, constants)
    step = rank.decode(1, workload.input_tokens + workload.output_tokens / 2)
    return Prediction(
        layout=layout,
        memory=held,
        step=StepTime(parts=tuple(step.items())),
        points=tuple(
            serving_point(rank, workload, held.kv_tokens, concurrency) for concurrency in workload.concurrencies
        ),
    )
