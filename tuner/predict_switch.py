"""What a variable of the server's environment would change that chooses the way of the all-reduces."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from cost_models.calibration import NO_CALIBRATION, Calibration
from cost_models.estimate import predict
from cost_models.prediction import Prediction
from cost_models.setting import Setting
from search_spaces.hardware import Cluster
from search_spaces.model import Model
from search_spaces.sglang.all_reduce import PCIE_IPC_SWITCH, AllReducePath, all_reduce_path
from search_spaces.workload import Workload
from tuner.predict_words import time_unit

_VALUE = "1"
_ALIKE = 1.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Switched:
    """variable: with its value. tpot_s: at concurrency 1 with it; usual_tpot_s: without."""

    variable: str
    path: AllReducePath
    tpot_s: float
    usual_tpot_s: float

    @property
    def matters(self) -> bool:
        """Whether a measurement could tell the two apart."""
        return not 1 / _ALIKE < self.tpot_s / self.usual_tpot_s < _ALIKE

    @property
    def told(self) -> str:
        if not self.matters:
            return f"with {self.variable}: no other time per token at concurrency 1"
        unit = time_unit((self.tpot_s, self.usual_tpot_s))
        return (
            f"with {self.variable}: {unit.shown(self.tpot_s)} {unit.name} instead of {unit.shown(self.usual_tpot_s)} "
            "at concurrency 1"
        )

    @property
    def document(self) -> dict[str, Any]:
        return {"variable": self.variable, "path": str(self.path), "tpot_ms": self.tpot_s * 1e3}


def switched(
    model: Model,
    cluster: Cluster,
    usual: Prediction,
    workload: Workload,
    *,
    setting: Setting,
    calibration: Calibration = NO_CALIBRATION,
) -> Switched | None:
    """usual: the launch without it. None where the variable changes nothing of it."""
    layout = usual.layout
    environment = {**dict(setting.environment), PCIE_IPC_SWITCH: _VALUE}
    path = all_reduce_path(model, cluster, layout, setting.version, environment=environment)
    if path is usual.all_reduce:
        return None
    other = predict(
        model,
        cluster,
        layout,
        replace(workload, concurrencies=(1,)),
        setting=replace(setting, environment=tuple(sorted(environment.items()))),
        calibration=calibration,
    )
    if not isinstance(other, Prediction):
        return None
    return Switched(
        variable=f"{PCIE_IPC_SWITCH}={_VALUE}",
        path=path,
        tpot_s=other.points[0].tpot_s,
        usual_tpot_s=usual.points[0].tpot_s,
    )
