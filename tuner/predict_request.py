"""What `tune predict` was asked, and the measurements that were named with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from search_spaces.errors import MalformedError
from search_spaces.sglang.versions import EngineVersion
from search_spaces.workload import Workload
from tuner import asking
from tuner.checking import Server
from tuner.objective import Objective
from tuner.predict_evidence import Evidence, gathered
from tuner.predict_left_out import NOTHING_LEFT_OUT
from tuner.predict_trials import NO_TRIALS


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictRequest:
    """What was typed. None: left open. limit: layouts to show; None for all. measured, study: what to calibrate by.
    asked: concurrencies to show; `workload` holds 1 as well. Empty: all of them. Of a single one, nothing is said of
    other concurrencies.
    """

    words: tuple[str, ...]
    model: str | None = None
    cluster: str | None = None
    version: EngineVersion | None = None
    workload: Workload = field(default_factory=Workload)
    asked: tuple[int, ...] = ()
    objective: Objective = Objective.PEAK_THROUGHPUT
    pins: Mapping[str, int | float | str] = field(default_factory=dict)
    all_reduce_paths: bool = False
    limit: int | None = None
    plot: Path | None = None
    measured: tuple[str, ...] = ()
    study: str | None = None
    storage: str | None = None


def evidence_of(request: PredictRequest, server: Server) -> Evidence | None:
    """None where no measurements were named. Raises UserError."""
    if not request.measured and request.study is None:
        return None
    facts = (server.model, server.cluster, request.workload)
    is_simulated, trials, left_out = False, NO_TRIALS, NOTHING_LEFT_OUT
    if request.measured:
        from tuner.predict_measured import measured_in_files  # noqa: PLC0415

        lines = measured_in_files(request.measured, server, request.workload)
        found, left_out = lines.observations, lines.left_out
        origin = " and ".join("the lines on stdin" if word == "-" else word for word in request.measured)
    else:
        from tuner.commands.search import DEFAULT_STORE  # noqa: PLC0415
        from tuner.predict_study import measured_in_study  # noqa: PLC0415

        name = asking.study_name(request.study or "")
        storage, _ = asking.stores(Path.cwd() / DEFAULT_STORE, request.storage, None)
        model, cluster, workload = facts
        study = measured_in_study(storage, name, model, cluster, workload)
        found, is_simulated, trials = study.observations, study.is_simulated, study.trials
        origin = f"study {name}"
    return gathered(
        *facts,
        server.setting,
        found,
        origin=origin,
        is_simulated=is_simulated,
        trials=trials,
        left_out=left_out,
    )


def ladder_of(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """`--concurrency`, in any order: what was asked for, rising, and the same with 1, which a workload always holds.

    Raises UserError.
    """
    asked = tuple(sorted(set(asking.concurrencies_of(text))))
    if asked[0] < 1:
        raise MalformedError(f"--concurrency counts requests in flight, from 1 on (got {asked[0]})")
    return asked, tuple(sorted({1, *asked}))
