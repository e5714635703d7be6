"""What names a study is the same in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

KEYS = """
from search_spaces.catalogue import load_model, model_names
from tuner.request import _facts_key
print(*(_facts_key(load_model(name)) for name in model_names()))
"""


def keys(hash_seed: str) -> list[str]:
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", KEYS], env=env, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_no_model_s_facts_depend_on_the_order_of_a_set() -> None:
    first = keys("1")
    assert len(first) > 50
    assert first == keys("2")
