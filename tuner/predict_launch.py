"""One launch, judged and, where it is legal, predicted: what `tune predict` tells of flags, a command or a notation."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.calibration import NO_CALIBRATION
from cost_models.estimate import predict
from cost_models.fractions import workable_fractions
from cost_models.memory import fit
from cost_models.memory_types import DoesNotFit
from cost_models.memory_verdict import SMALLEST_REQUEST
from cost_models.prediction import Prediction
from cost_models.setting import Setting
from search_spaces.layout import Layout
from search_spaces.sglang.all_reduce import AllReduceChoice, all_reduce_choice
from search_spaces.sglang.rules import launch_of
from search_spaces.sglang.target import Target
from search_spaces.workload import Workload
from tuner.checked_launch import CheckedLaunch
from tuner.checking import Checked, Server
from tuner.predict_evidence import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Fractions:
    """`mem_fraction_static`: the engine's own choice, and the range in which the launch works; None: it has none."""

    own: float | None
    smallest: float | None
    largest: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedLaunch:
    """estimate: None where the launch is illegal. all_reduce: None on one GPU, or where nothing is predicted."""

    launch: CheckedLaunch
    workload: Workload
    estimate: Prediction | DoesNotFit | None
    fractions: Fractions
    all_reduce: AllReduceChoice | None = None
    evidence: Evidence | None = None

    @property
    def server(self) -> Server:
        return self.launch.checked.server

    @property
    def layout(self) -> Layout:
        """As it runs."""
        return self.launch.checked.verdict.effective

    @property
    def max_concurrency(self) -> int:
        """Requests that run at once; 0 where nothing runs."""
        return self.estimate.memory.max_concurrency(self.workload) if isinstance(self.estimate, Prediction) else 0


def too_large(checked: Checked) -> DoesNotFit | None:
    """How a launch lacks memory that `tune check` already says is too large; None where it does not."""
    if checked.ended is None:
        return None
    server = checked.server
    found = fit(server.model, server.cluster, checked.verdict.effective, SMALLEST_REQUEST, version=server.version)
    return found if isinstance(found, DoesNotFit) else None


def predict_launch(launch: CheckedLaunch, workload: Workload, evidence: Evidence | None = None) -> PredictedLaunch:
    """No performance is told of what is illegal or does not fit. Raises UserError for a load that the model refuses."""
    server, verdict = launch.checked.server, launch.checked.verdict
    model, cluster, layout = server.model, server.cluster, verdict.effective
    if verdict.violations:
        return PredictedLaunch(launch=launch, workload=workload, estimate=None, fractions=NO_FRACTIONS)
    workload.check_against(model)
    calibration = NO_CALIBRATION if evidence is None else evidence.calibration
    estimate = predict(
        model, cluster, layout, workload, setting=Setting(version=server.version), calibration=calibration
    )
    return PredictedLaunch(
        launch=launch,
        workload=workload,
        estimate=estimate,
        fractions=_fractions(server, verdict.requested, layout, workload),
        all_reduce=all_reduce_choice(model, cluster, layout, server.version) if layout.tp_size > 1 else None,
        evidence=evidence,
    )


NO_FRACTIONS = Fractions(own=None, smallest=None, largest=None)


def _fractions(server: Server, requested: Layout, run_as: Layout, workload: Workload) -> Fractions:
    open_launch = launch_of(
        requested.changed(mem_fraction_static=None),
        Target(model=server.model, gpu=server.cluster.gpu),
        server.cluster,
        server.version,
        server.env,
    )
    low, high = _range(server, run_as, workload)
    return Fractions(own=open_launch.effective.mem_fraction_static, smallest=low, largest=high)


def _range(server: Server, run_as: Layout, workload: Workload) -> tuple[float, float] | tuple[None, None]:
    found = workable_fractions(server.model, server.cluster, run_as, workload, version=server.version)
    return (None, None) if found is None else found
