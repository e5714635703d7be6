"""A real SGLang 0.5.23 that judges launches for a GPU which this machine doesn't have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files

from search_spaces.hardware import Gpu
from tests.engine_support.environment import ENVIRONMENT, HERE
from tuner.installed_engine import InstalledEngine, asked_process


@contextmanager
def engine_on(gpu: Gpu, python: str) -> Iterator[InstalledEngine]:
    """It goes on to construct the model. python: of an environment with SGLang (install.sh)."""
    facts = {"name": gpu.name, "sm": gpu.sm, "memory_mib": gpu.memory_mib}
    side = str(files("tuner").joinpath("installed_engine_side.py"))
    command = [python, "-W", "ignore", str(HERE / "judge_side.py"), side, json.dumps(facts)]
    with asked_process(command, {**ENVIRONMENT, "SGLANG_USE_CPU_ENGINE": "0"}) as engine:
        yield engine
