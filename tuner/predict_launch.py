"""One launch, judged and, where it is legal, predicted: what `tune predict` tells of flags, a command or a notation."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cost_models.calibration import NO_CALIBRATION
from cost_models.communication import MEASURED_HERE, all_reduce
from cost_models.estimate import predict_for_comparison
from cost_models.fractions import workable_fractions
from cost_models.memory import fit
from cost_models.memory_types import DoesNotFit, Remedy
from cost_models.memory_verdict import SMALLEST_REQUEST
from cost_models.prediction import Prediction, ServingPoint
from cost_models.sweep import Sweep
from search_spaces.layout import Layout
from search_spaces.sglang.all_reduce import AllReduceChoice, AllReducePath, all_reduce_choice
from search_spaces.sglang.rules import launch_of
from search_spaces.sglang.target import Target
from search_spaces.workload import Workload
from tuner.checked_launch import CheckedLaunch
from tuner.checking import Checked, Server, check_anew, may_be_freed
from tuner.predict_evidence import Evidence
from tuner.predict_switch import Switched, switched
from tuner.predict_trials import Died

USUAL_FRACTION = 0.9
"""What is suggested where it works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fractions:
    """`mem_fraction_static`: the engine's own choice, and the range in which the launch works; None: it has none."""

    own: float | None
    smallest: float | None
    largest: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedLaunch:
    """estimate: None where the launch is illegal, or where options that are not counted decide. sweep:
    what its intervals follow from. all_reduce: None on one GPU, or where nothing is predicted. switched: what another
    environment would change. works_as: the launch with a memory fraction that works, where its own is all that is
    wrong. asked: concurrencies to show; empty: all.
    """

    launch: CheckedLaunch
    workload: Workload
    estimate: Prediction | DoesNotFit | None
    fractions: Fractions
    sweep: Sweep | None = None
    all_reduce: AllReduceChoice | None = None
    switched: Switched | None = None
    evidence: Evidence | None = None
    works_as: Layout | None = None
    asked: tuple[int, ...] = ()

    @property
    def server(self) -> Server:
        return self.launch.checked.server

    def points_of(self, estimate: Prediction) -> tuple[ServingPoint, ...]:
        """Those that were asked for."""
        return tuple(point for point in estimate.points if not self.asked or point.concurrency in self.asked)

    @property
    def is_unjudged(self) -> bool:
        """Whether it is legal, and nothing is told since options that are not counted decide."""
        return self.estimate is None and not self.launch.checked.verdict.violations

    @property
    def layout(self) -> Layout:
        """As it runs."""
        return self.launch.checked.verdict.effective

    @property
    def all_reduce_times(self) -> str:
        """Where the times of its all-reduces come from; empty where there are none."""
        if self.all_reduce is None:
            return ""
        cluster = self.server.cluster
        curve = all_reduce(cluster, self.layout.tp_size, self.all_reduce.path)
        if curve is None:
            return ""
        here = cluster.fabric is not None and MEASURED_HERE in curve.source
        source = f"{curve.source} ({cluster.fabric.source})" if cluster.fabric is not None and here else curve.source
        if self.all_reduce.path is AllReducePath.SHARED_MEMORY:
            return f"estimated: {source}; the engine's own way through shared memory was not measured"
        if not curve.is_measured:
            return f"estimated: {source}"
        return source if here else f"measured elsewhere: {source}"

    @property
    def max_concurrency(self) -> int:
        """Requests that run at once; 0 where nothing runs."""
        return self.estimate.memory.max_concurrency(self.workload) if isinstance(self.estimate, Prediction) else 0

    @property
    def died(self) -> Died | None:
        """How it ended in the study that it is calibrated by."""
        return None if self.evidence is None else self.evidence.trials.how_it_died(self.layout)

    def peak_of(self, estimate: Prediction) -> ServingPoint:
        """Of the points that were asked for."""
        return replace(estimate, points=self.points_of(estimate)).peak

    def may_peak_above(self, estimate: Prediction) -> bool:
        """Whether more requests in flight than were asked for may give more tokens per second."""
        top = self.points_of(estimate)[-1].concurrency
        is_at_the_top = self.peak_of(estimate).concurrency == top < self.max_concurrency
        return is_at_the_top and len(self.asked) != 1


def is_unjudged(checked: Checked) -> bool:
    """Whether no time is told of it, though no rule is broken: options that are not counted may free what it lacks, or
    make it another server, or give its weights another size.
    """
    is_grown = any(each.least_growth > 1 for each in checked.uncounted)
    return checked.excused is not None or checked.is_another_server or is_grown


def too_large(checked: Checked) -> DoesNotFit | None:
    """How a launch lacks memory that `tune check` already says is too large; None where it does not."""
    if checked.ended is None:
        return None
    server = checked.server
    found = fit(server.model, server.cluster, checked.verdict.effective, SMALLEST_REQUEST, version=server.version)
    return found if isinstance(found, DoesNotFit) else None


def predict_launch(
    launch: CheckedLaunch, workload: Workload, evidence: Evidence | None = None, *, asked: tuple[int, ...] = ()
) -> PredictedLaunch:
    """No performance is told of what is illegal or does not fit. asked: concurrencies to show; empty: all.

    Raises UserError for a load that the model refuses.
    """
    server, verdict = launch.checked.server, launch.checked.verdict
    model, cluster, layout = server.model, server.cluster, verdict.effective
    if verdict.violations:
        lacking = too_large(launch.checked)
        return PredictedLaunch(
            launch=launch,
            workload=workload,
            estimate=None,
            fractions=NO_FRACTIONS,
            works_as=None if lacking is None else _with_another_fraction(launch.checked, lacking, workload),
        )
    workload.check_against(model)
    workload.check_drafts(layout)
    untold = PredictedLaunch(launch=launch, workload=workload, estimate=None, fractions=NO_FRACTIONS)
    if is_unjudged(launch.checked):
        return untold
    calibration = NO_CALIBRATION if evidence is None else evidence.calibration
    (found,) = predict_for_comparison(
        model, cluster, (layout,), workload, setting=server.setting, calibration=calibration
    )
    estimate, sweep = (found, None) if isinstance(found, DoesNotFit) else found
    if isinstance(estimate, DoesNotFit) and may_be_freed(launch.checked, estimate, workload):
        return untold
    return PredictedLaunch(
        launch=launch,
        workload=workload,
        estimate=estimate,
        fractions=_fractions(server, verdict.requested, layout, workload),
        sweep=sweep,
        all_reduce=all_reduce_choice(model, cluster, layout, server.version, environment=server.env)
        if layout.tp_size > 1
        else None,
        switched=None
        if isinstance(estimate, DoesNotFit)
        else switched(model, cluster, estimate, workload, setting=server.setting, calibration=calibration),
        evidence=evidence,
        works_as=_with_another_fraction(launch.checked, estimate, workload)
        if isinstance(estimate, DoesNotFit)
        else None,
        asked=asked,
    )


def _with_another_fraction(checked: Checked, lacking: DoesNotFit, workload: Workload) -> Layout | None:
    """The same launch with the memory fraction in the middle of those that work, or the usual one among them."""
    if lacking.remedy not in {Remedy.RAISE_FRACTION, Remedy.LOWER_FRACTION}:
        return None
    low, high = _range(checked.server, lacking.layout, workload)
    if low is None or high is None:
        return None
    fraction = USUAL_FRACTION if low <= USUAL_FRACTION <= high else round((low + high) / 2, 3)
    layout = checked.verdict.requested.changed(mem_fraction_static=fraction)
    return layout if check_anew(checked, layout).verdict.is_legal else None


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
