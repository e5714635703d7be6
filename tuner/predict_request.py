"""What `tune predict` was asked, and the measurements that were named with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from search_spaces.sglang.versions import EngineVersion
from search_spaces.workload import Workload
from tuner import asking
from tuner.checking import Server
from tuner.objective import Objective
from tuner.predict_evidence import Evidence, gathered


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictRequest:
    """What was typed. None: left open. limit: layouts to show; None for all. measured, study: what to calibrate by."""

    words: tuple[str, ...]
    model: str | None = None
    cluster: str | None = None
    version: EngineVersion | None = None
    workload: Workload = field(default_factory=Workload)
    objective: Objective = Objective.PEAK_THROUGHPUT
    pins: Mapping[str, int | float | str] = field(default_factory=dict)
    all_reduce_paths: bool = False
    limit: int | None = None
    plot: Path | None = None
    measured: str | None = None
    study: str | None = None
    storage: str | None = None


def evidence_of(request: PredictRequest, server: Server) -> Evidence | None:
    """None where no measurements were named. Raises UserError."""
    if request.measured is None and request.study is None:
        return None
    facts = (server.model, server.cluster, request.workload)
    is_simulated = False
    if request.measured is not None:
        from tuner.predict_measured import measured_in_file  # noqa: PLC0415

        found = measured_in_file(request.measured, server)
        origin = "the lines on stdin" if request.measured == "-" else request.measured
    else:
        from tuner.commands.search import DEFAULT_STORE  # noqa: PLC0415
        from tuner.predict_study import measured_in_study  # noqa: PLC0415

        name = asking.study_name(request.study or "")
        storage, _ = asking.stores(Path.cwd() / DEFAULT_STORE, request.storage, None)
        model, cluster, workload = facts
        found, is_simulated = measured_in_study(storage, name, model, cluster, workload)
        origin = f"study {name}"
    return gathered(*facts, server.version, found, origin=origin, is_simulated=is_simulated)
