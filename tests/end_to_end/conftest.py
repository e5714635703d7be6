"""What the tests against the real SGLang share: where it is, and a checkpoint small enough for a CPU."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engine_support.environment import HERE

WHERE = "LAYOUT_TUNE_ENGINE_PYTHON"
REQUIRED = "LAYOUT_TUNE_REQUIRE_ENGINE"


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyCheckpoint:
    folder: Path
    input_ids: list[int]
    output_ids: list[int]
    """What transformers adds to `input_ids`, greedily."""


@pytest.fixture(scope="session")
def engine_python() -> str:
    """The Python of an environment in which SGLang is installed."""
    python = os.environ.get(WHERE)
    if python is None:
        reason = f"set {WHERE} to the Python of an environment with SGLang, see CONTRIBUTING"
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(f"{reason} ({REQUIRED}=1 makes this a failure)")
        pytest.skip(reason)
    return python


@pytest.fixture(scope="session")
def tiny_checkpoint(engine_python: str, tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoint:
    """A random Qwen3-MoE of 16 experts; each worker of a parallel run makes the same one for itself."""
    folder = tmp_path_factory.mktemp("tiny-checkpoint")
    made = subprocess.run(
        [engine_python, HERE / "make_checkpoint.py", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    return TinyCheckpoint(folder=folder, **json.loads((folder / "greedy_reference.json").read_text()))
