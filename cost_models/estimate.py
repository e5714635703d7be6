"""What layouts would do on a cluster under a load: the cost model as one function."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cost_models.channels import Channels, channels_of
from cost_models.constants import DEFAULT, Constants
from cost_models.fleet import Fleet
from cost_models.limit import limits
from cost_models.memory import fit, memory
from cost_models.memory_types import DoesNotFit, Memory
from cost_models.posterior import NO_CALIBRATION, Calibration
from cost_models.prediction import AS_MANY, Interval, Limit, Prediction, ServingPoint, StepTime
from cost_models.routing import Floats
from cost_models.serving import Steady, steady
from cost_models.setting import Setting
from cost_models.step import Parts, decode_step, prefill_pass
from cost_models.sweep import Sweep
from cost_models.uncertainty import (
    Deviations,
    Trait,
    Z,
    collectives_deviation,
    faster_collectives,
    layout_deviation,
    reasons,
    slower_collectives,
    traits_of,
)
from cost_models.weights import attention_tp_size
from cost_models.work import Work, work_of
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.sglang.all_reduce import AllReducePath, all_reduce_path, attention_all_reduce_path
from search_spaces.workload import Workload

_USUAL = Setting()


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """The steady state of many layouts that fit, at every concurrency of a workload.

    steady: arrays of shape (layouts, concurrencies), with `calibration` applied. *_deviation: of the same shape, the
    standard deviation of the logarithm of measured over predicted. *_fast_deviation: the same for measurements below
    the prediction: a slow link can cost many times what a fast one can save. run_deviation: of rates, on top of what
    follows from the two times.
    """

    layouts: tuple[Layout, ...]
    memories: tuple[Memory, ...]
    paths: tuple[AllReducePath, ...]
    fleet: Fleet
    sweeps: tuple[Sweep, ...]
    steady: Steady
    tpot_deviation: Floats
    tpot_fast_deviation: Floats
    ttft_deviation: Floats
    ttft_fast_deviation: Floats
    run_deviation: Floats

    def intervals(self, row: int, column: int, request_tokens: int) -> tuple[Interval, Interval, Interval]:
        """Of TTFT, TPOT and output rate, for requests of `request_tokens` output tokens."""
        place = row, column
        ttft, tpot, rate = (float(values[place]) for values in self.steady[:3])
        slow, fast = float(self.tpot_deviation[place]), float(self.tpot_fast_deviation[place])
        slow_first, fast_first = float(self.ttft_deviation[place]), float(self.ttft_fast_deviation[place])
        # A request that waits for a place waits for others to be served: by the time per token, and no longer for a
        # slower first token. How many are served in a second does not hang on that wait.
        queued = float(self.steady.queued_s[place])
        share = (ttft - queued) / (ttft - queued + (request_tokens - 1) * tpot)
        run = float(self.run_deviation[place])
        sides = ((slow_first, slow), (fast_first, fast))
        slower, faster = (math.exp(Z * math.hypot(share * first, (1 - share) * own, run)) for first, own in sides)
        waited = queued / ttft
        later, sooner = (math.exp(Z * math.hypot((1 - waited) * first, waited * own)) for first, own in sides)
        return (
            Interval(low=ttft / sooner, high=ttft * later),
            Interval(low=tpot * math.exp(-Z * fast), high=tpot * math.exp(Z * slow)),
            Interval(low=rate / slower, high=rate * faster),
        )


def predict(
    model: Model,
    cluster: Cluster,
    layout: Layout,
    workload: Workload,
    *,
    setting: Setting = _USUAL,
    calibration: Calibration = NO_CALIBRATION,
    constants: Constants = DEFAULT,
) -> Prediction | DoesNotFit:
    """The steady state at every concurrency of `workload`, or why the layout does not fit.

    `layout` must be effective (`search_spaces.sglang.resolution`) and legal.
    """
    return predict_all(
        model, cluster, (layout,), workload, setting=setting, calibration=calibration, constants=constants
    )[0]


def predict_all(
    model: Model,
    cluster: Cluster,
    layouts: Sequence[Layout],
    workload: Workload,
    *,
    setting: Setting = _USUAL,
    calibration: Calibration = NO_CALIBRATION,
    constants: Constants = DEFAULT,
) -> tuple[Prediction | DoesNotFit, ...]:
    """`predict` for many effective layouts in one pass, in their order."""
    answers = predict_for_comparison(
        model, cluster, layouts, workload, setting=setting, calibration=calibration, constants=constants
    )
    return tuple(answer if isinstance(answer, DoesNotFit) else answer[0] for answer in answers)


def predict_for_comparison(
    model: Model,
    cluster: Cluster,
    layouts: Sequence[Layout],
    workload: Workload,
    *,
    setting: Setting = _USUAL,
    calibration: Calibration = NO_CALIBRATION,
    constants: Constants = DEFAULT,
) -> tuple[tuple[Prediction, Sweep] | DoesNotFit, ...]:
    """As `predict_all`, each with what `Calibration.ratio_deviation` compares two of them by."""
    answers = [fit(model, cluster, layout, workload, version=setting.version) for layout in layouts]
    fitting = [(layout, held) for layout, held in zip(layouts, answers, strict=True) if isinstance(held, Memory)]
    if not fitting:
        return tuple(held for held in answers if isinstance(held, DoesNotFit))
    found = surface(model, cluster, fitting, workload, setting=setting, calibration=calibration, constants=constants)
    predictions = _predictions(model, cluster, workload, setting, constants, found)
    predicted = iter(zip(predictions, found.sweeps, strict=True))
    return tuple(held if isinstance(held, DoesNotFit) else next(predicted) for held in answers)


def predict_if_it_fits(
    model: Model,
    cluster: Cluster,
    layout: Layout,
    workload: Workload,
    *,
    setting: Setting = _USUAL,
    calibration: Calibration = NO_CALIBRATION,
    constants: Constants = DEFAULT,
) -> Prediction:
    """The steady state of a layout that is to be tried whatever the memory model says of it.

    Its KV pool is taken to hold one request at least.
    """
    held = memory(model, cluster, layout, version=setting.version)
    held = replace(held, kv_tokens=max(held.kv_tokens, workload.tokens_per_request))
    found = surface(
        model, cluster, ((layout, held),), workload, setting=setting, calibration=calibration, constants=constants
    )
    return _predictions(model, cluster, workload, setting, constants, found)[0]


def surface(
    model: Model,
    cluster: Cluster,
    fitting: Sequence[tuple[Layout, Memory]],
    workload: Workload,
    *,
    setting: Setting = _USUAL,
    calibration: Calibration = NO_CALIBRATION,
    constants: Constants = DEFAULT,
) -> Surface:
    """All of it as arrays: for effective layouts, each with its memory."""
    shapes = [layout.changed(mem_fraction_static=None) for layout, _ in fitting]
    # Layouts that differ only in the memory fraction differ only in how many requests they run at once.
    keys = [tuple(vars(shape).values()) for shape in shapes]  # Compared faster than layouts are.
    shared = {
        key: _shape(model, cluster, shape, workload, setting)
        for key, shape in dict(zip(keys, shapes, strict=True)).items()
    }
    facts = [shared[key] for key in keys]
    paths = tuple(each.path for each in facts)
    members = [
        (each.work._replace(most_running=max(1, held.max_concurrency(workload) // layout.dp_size)), each.channels)
        for each, (layout, held) in zip(facts, fitting, strict=True)
    ]
    fleet = Fleet(members)
    found = steady(fleet, np.array(workload.concurrencies, dtype=np.float64)[None, :], constants)
    layouts = tuple(layout for layout, _ in fitting)
    deviations = np.array([[each.collectives_deviation] for each in facts])
    shares = found.collectives_share, found.ttft_collectives_share
    slow, slow_first = (slower_collectives(share, deviations) for share in shares)
    fast, fast_first = (faster_collectives(share, deviations) for share in shares)
    sweeps = [
        Sweep(
            layout=shape,
            path=each.path,
            lengths=(workload.input_tokens, workload.output_tokens),
            traits=each.traits,
            concurrencies=workload.concurrencies,
            running=running,
            collectives=(slow[row], slow_first[row]),
            saved=(fast[row], fast_first[row]),
        )
        for row, (shape, each, running) in enumerate(zip(shapes, facts, found.running, strict=True))
    ]
    tpot, ttft = calibration.applied(sweeps)
    tpot_s, queued_s = found.tpot_s * tpot.factor, found.queued_s * tpot.factor
    ttft_s = (found.ttft_s - found.queued_s) * ttft.factor + queued_s
    run_factor, run_deviation = calibration.runs.applied(sweeps)
    request_s = ttft_s + (workload.output_tokens - 1) * tpot_s
    return Surface(
        layouts=layouts,
        memories=tuple(held for _, held in fitting),
        paths=paths,
        fleet=fleet,
        sweeps=tuple(sweeps),
        steady=found._replace(
            tpot_s=tpot_s,
            ttft_s=ttft_s,
            queued_s=queued_s,
            output_tok_per_s=np.array(workload.concurrencies) * workload.output_tokens / request_s * run_factor,
        ),
        tpot_deviation=tpot.deviation,
        tpot_fast_deviation=tpot.deviation * tpot.fast_share,
        ttft_deviation=ttft.deviation,
        ttft_fast_deviation=ttft.deviation * ttft.fast_share,
        run_deviation=run_deviation,
    )


class _Shape(NamedTuple):
    """What layouts that differ only in the memory fraction have in common."""

    work: Work[float]
    channels: Channels
    path: AllReducePath
    traits: Mapping[Trait, Deviations]
    collectives_deviation: float


def _shape(model: Model, cluster: Cluster, layout: Layout, workload: Workload, setting: Setting) -> _Shape:
    environment = dict(setting.environment)
    path = all_reduce_path(model, cluster, layout, setting.version, environment=environment)
    return _Shape(
        work=work_of(model, cluster, layout, workload, setting, 1),
        channels=channels_of(
            model,
            cluster,
            layout,
            attention_tp_size(model, layout),
            path,
            attention_all_reduce_path(model, cluster, layout, setting.version, environment=environment),
        ),
        path=path,
        traits=traits_of(model, cluster, layout, setting),
        collectives_deviation=collectives_deviation(cluster, layout, path),
    )


def _predictions(
    model: Model, cluster: Cluster, workload: Workload, setting: Setting, constants: Constants, found: Surface
) -> list[Prediction]:
    one = np.ones((len(found.layouts), 1))
    alone = decode_step(found.fleet, one, constants)
    prompt = prefill_pass(found.fleet, one, constants)
    rate = found.steady.output_tok_per_s
    peak = np.argmax(rate >= AS_MANY * rate.max(axis=1, keepdims=True), axis=1)
    at_peak = decode_step(found.fleet, np.take_along_axis(found.steady.running, peak[:, None], axis=1), constants)
    stalled_s = np.take_along_axis(found.steady.stalled_s, peak[:, None], axis=1)
    at_peak["others' prompts"] = stalled_s * found.fleet.work.accepted
    plain = limits(model, cluster, replace(workload, acceptance_length=1.0))
    drafting = plain if workload.acceptance_length == 1.0 else limits(model, cluster, workload)
    return [
        Prediction(
            layout=layout,
            memory=found.memories[row],
            all_reduce=found.paths[row],
            step=_step_time(alone, row),
            peak_step=_step_time(at_peak, row),
            prefill=_step_time(prompt, row),
            points=_points(found, row, workload, bounds := drafting if layout.speculative_algorithm else plain),
            limits=bounds,
            unproven=reasons(model, cluster, layout, setting, found.paths[row]),
            unproven_deviation=layout_deviation(found.sweeps[row].traits),
        )
        for row, layout in enumerate(found.layouts)
    ]


def _step_time(parts: Parts, row: int) -> StepTime:
    return StepTime(parts=tuple((name, float(seconds[row, 0])) for name, seconds in parts.items()))


def _points(found: Surface, row: int, workload: Workload, limits: Sequence[Limit]) -> tuple[ServingPoint, ...]:
    """No interval of a rate reaches beyond what the box can do."""
    points = []
    for column, limit in enumerate(limits):
        ttft, tpot, rate = (float(values[row, column]) for values in found.steady[:3])
        ttft_interval, tpot_interval, rate_interval = found.intervals(row, column, workload.output_tokens)
        most = max(rate, min(rate_interval.high, limit.output_tok_per_s))
        points.append(
            ServingPoint(
                concurrency=limit.concurrency,
                ttft_s=ttft,
                tpot_s=tpot,
                output_tok_per_s=rate,
                ttft_interval_s=ttft_interval,
                tpot_interval_s=tpot_interval,
                output_tok_per_s_interval=replace(rate_interval, high=most),
            )
        )
    return tuple(points)
