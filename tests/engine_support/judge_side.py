"""The product's questions to SGLang, asked under the facts of a named GPU and on to the constructed model.

    python judge_side.py INSTALLED_ENGINE_SIDE.py '{"name": "NVIDIA H200", "sm": 90, "memory_mib": 143771}'

Run by the Python that has SGLang, on a machine with no GPU, with the shim on its PYTHONPATH.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from types import ModuleType
from typing import Any

import sglang_on_cpu
from sglang_on_cpu import gpus


def product(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("installed_engine_side", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(path: str, facts: str) -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Ranks that don't exist would be waited for.
    os.environ["SGLANG_USE_MESSAGE_QUEUE_BROADCASTER"] = "0"
    side = product(path)
    card = gpus.properties(**json.loads(facts))

    def hello() -> dict[str, Any]:
        sglang_on_cpu.install_with_gpus(card)
        side.import_engine()
        side.repeat_gpus([card] * gpus.COUNT, float(card.total_memory >> 20))
        importlib.import_module("sglang_on_cpu.construction")
        return dict(side.platform())

    def stages() -> Any:
        construction = importlib.import_module("sglang_on_cpu.construction")
        return [*side.stages(), ("init", construction.start_scheduler), ("model", construction.construct_model)]

    side.serve(hello, stages)


main(*sys.argv[1:])
