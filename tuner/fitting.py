"""Fits the cost model's constants to measured serving points.

The least squares of the logarithms of predicted over measured, for the time per output token and, with less weight,
to first token; large residuals count less (a campaign that stalled tells nothing of the others), and each constant
is held near its prior by one more residual, so that what the points cannot tell stays where physics puts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from cost_models.channels import channels_of
from cost_models.constants import PRIOR, Constants
from cost_models.fleet import Fleet
from cost_models.memory import memory
from cost_models.serving import Steady, steady
from cost_models.setting import ServingEngine
from cost_models.weights import attention_tp_size
from cost_models.work import work_of
from search_spaces.sglang.all_reduce import all_reduce_path, attention_all_reduce_path
from search_spaces.workload import Workload
from tuner.validate_rows import MeasuredRow

Floats = NDArray[np.float64]

FITTED = (
    "expert_bandwidth",
    "expert_flops",
    "dense_bandwidth",
    "kernel_hopper_s",
    "kernel_blackwell_s",
    "request_s",
    "release_gain",
    "eager_kernel_s",
    "eager_hidden",
    "ttft_queue",
    "ttft_steps",
    "inferencex_wait_s",
)
_OVERHEADS = {ServingEngine.VLLM: "vllm_overhead", ServingEngine.TRTLLM: "trtllm_overhead"}
_PRIOR_DEVIATION = 0.5
"""Of the logarithm of each constant: a factor 1.6 either way is likely."""
_TPOT_SCALE = 0.15
_TTFT_SCALE = 0.8
"""Residuals up to these sizes count in full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """spread: standard deviation of each fitted constant, as a share of it (curvature at the optimum)."""

    constants: Constants
    spread: dict[str, float]


class _Points:
    """Measured rows as one fleet with a point each."""

    def __init__(self, rows: Sequence[MeasuredRow]) -> None:
        members = []
        for row in rows:
            load = Workload(
                input_tokens=row.input_tokens,
                output_tokens=row.output_tokens,
                concurrencies=tuple(sorted({1, row.concurrency})),
            )
            held = memory(row.model, row.cluster, row.layout, version=row.setting.version)
            most = max(1, held.max_concurrency(load) // row.layout.dp_size)
            facts = row.model, row.cluster, row.layout, row.setting.version
            path, attention_path = all_reduce_path(*facts), attention_all_reduce_path(*facts)
            attn_tp = attention_tp_size(row.model, row.layout)
            work = work_of(row.model, row.cluster, row.layout, load, row.setting, most)
            members.append((work, channels_of(row.model, row.cluster, row.layout, attn_tp, path, attention_path)))
        self.fleet = Fleet(members)
        self.concurrency = np.array([[float(row.concurrency)] for row in rows])
        self.tpot_s = np.array([np.nan if row.tpot_s is None else row.tpot_s for row in rows])
        self.ttft_s = np.array([np.nan if row.ttft_s is None else row.ttft_s for row in rows])

    def predicted(self, constants: Constants) -> Steady:
        return steady(self.fleet, self.concurrency, constants)


def fit(rows: Sequence[MeasuredRow], names: Sequence[str] = FITTED, start: Constants = PRIOR) -> Fit:
    """The constants of `names` that suit `rows` best, from and near those of `start`.

    Rows without a time per output token are passed over. Raises ValueError without any other.
    """
    rows = [row for row in rows if row.tpot_s is not None]
    if not rows:
        raise ValueError("a fit needs at least one measured row")
    points = _Points(rows)
    prior = np.log([getattr(start, name) for name in names])

    def constants(logs: Floats) -> Constants:
        return replace(start, **dict(zip(names, np.exp(logs).tolist(), strict=True)))

    def residuals(logs: Floats) -> Floats:
        found = points.predicted(constants(logs))
        tpot = np.log(found.tpot_s[:, 0] / points.tpot_s) / _TPOT_SCALE
        ttft = np.log(found.ttft_s[:, 0] / points.ttft_s) / _TTFT_SCALE
        ttft = ttft[~np.isnan(ttft)]
        return np.concatenate([_soft(tpot), _hard(ttft), (logs - prior) / _PRIOR_DEVIATION])

    found = least_squares(residuals, prior, diff_step=[1e-3] * len(names))
    jacobian = np.asarray(found.jac, dtype=np.float64)
    spread = np.sqrt(np.diag(np.linalg.inv(jacobian.T @ jacobian)))
    return Fit(constants=constants(found.x), spread=dict(zip(names, spread.tolist(), strict=True)))


def fit_all(rows: Sequence[MeasuredRow]) -> Fit:
    """SGLang's rows fix the constants, and the times per token of each other engine one overhead factor more.

    Attention data parallelism is left out: its terms have constants of no others, and few rows.
    """
    rows = [row for row in rows if row.layout.attn_dp_size == 1]
    found = fit([row for row in rows if row.engine is ServingEngine.SGLANG])
    spread = dict(found.spread)
    constants = found.constants
    for engine, name in _OVERHEADS.items():
        of_engine = [replace(row, ttft_s=None) for row in rows if row.engine is engine]
        if of_engine:
            again = fit(of_engine, (name,), constants)
            constants = replace(constants, **{name: getattr(again.constants, name)})
            spread |= again.spread
    return Fit(constants=constants, spread=spread)


def _soft(residuals: Floats) -> Floats:
    """Square roots of the soft-L1 loss 2 (sqrt(1 + r^2) - 1)."""
    return np.asarray(np.sign(residuals) * np.sqrt(2 * (np.sqrt(1 + residuals**2) - 1)))


def _hard(residuals: Floats) -> Floats:
    """Square roots of the Cauchy loss ln(1 + r^2)."""
    return np.asarray(np.sign(residuals) * np.sqrt(np.log1p(residuals**2)))
