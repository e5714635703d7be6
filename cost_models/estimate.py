"""What a layout would do on a cluster under a load: the cost model as one function."""

from __future__ import annotations

from cost_models.compute import rank_of
from cost_models.constants import DEFAULT, Constants
from cost_models.memory import fit
from cost_models.prediction import DoesNotFit, Prediction, StepTime
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
    if isinstance(held, DoesNotFit):
        return held
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
