"""Writes random launches with the engine's verdicts, for the tests that have no engine to ask.

python -m tests.engine_support.judged_launches /tmp/engine/bin/python > tests/golden/legality_judged.json
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from search_spaces.catalogue import load_gpu, model_files, model_names
from search_spaces.layout import Layout
from tests.engine_support.judging import engine_on
from tests.engine_support.launches import RandomLaunch, launches
from tuner.installed_engine import Answer, InstalledEngine, Question, folder_of

GPUS = ("a100", "l40s", "h100", "h200", "b200", "rtx-pro-6000")
LAUNCHES_PER_GPU = 70
_LONG = frozenset({"cuda_graph_bs_decode", "cuda_graph_bs_prefill"})
SEED = 20
SOURCE = (
    "SGLang 0.5.23: random launches judged by its own code (parsing, resolution, checks, topology of every rank, "
    "scheduler start, model construction on the meta device) on a CPU with the named GPU's facts injected "
    "(tests/engine_support/judged_launches.py)."
)


def drawn(count: int, seed_value: int) -> list[RandomLaunch]:
    found: dict[str, RandomLaunch] = {}

    @seed(seed_value)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(launches(model_names()))
    def draw(launch: RandomLaunch) -> None:
        found[repr(launch)] = launch

    draw()
    return list(found.values())


def judged(gpu: str, chosen: list[RandomLaunch], engine: InstalledEngine) -> Iterator[dict[str, Any]]:
    for launch in chosen:
        with folder_of(model_files(launch.model)) as folder:
            (answer,) = engine.ask([Question(argv=("--model-path", str(folder), *launch.argv), env=launch.env)])
        yield {
            "model": launch.model,
            "gpu": gpu,
            "argv": shlex.join(launch.argv),
            **({"env": dict(launch.env)} if launch.env else {}),
            **_verdict(launch, answer),
        }


def _verdict(launch: RandomLaunch, answer: Answer) -> dict[str, Any]:
    """Only what resolution changed is kept of the resolved values, without the long lists of graphs' sizes."""
    resolved = {
        f.name: answer.resolved[f.name]
        for f in fields(Layout)
        if f.name in answer.resolved
        and f.name not in _LONG
        and answer.resolved[f.name] != getattr(launch.layout, f.name)
    }
    said = {} if answer.stage is None else {"stage": answer.stage.name, "exception": answer.exception}
    error = {"error": answer.error[:200]} if answer.error else {}
    return {"verdict": "legal" if answer.is_legal else "illegal", **said, **error, "resolved": resolved}


def main(python: str) -> None:
    lines: list[str] = []
    for number, gpu in enumerate(GPUS):
        with engine_on(load_gpu(gpu), python) as engine:
            for case in judged(gpu, drawn(LAUNCHES_PER_GPU, SEED + number), engine):
                lines.append(json.dumps({"id": f"E{len(lines):03d}", **case}))
    sys.stdout.write(f'{{"source": {json.dumps(SOURCE)},\n "cases": [\n  ' + ",\n  ".join(lines) + "\n ]}\n")


if __name__ == "__main__":
    main(sys.argv[1])
