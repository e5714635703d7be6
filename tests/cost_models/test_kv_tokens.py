"""KV tokens, pools and weights that public logs tell, against the memory model."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import pytest

from cost_models.fractions import workable_fractions
from cost_models.kv_cache import kv_bytes_per_token
from cost_models.memory import memory
from cost_models.memory_verdict import SMALLEST_REQUEST
from search_spaces.catalogue import load_gpu, load_model, parse_cluster
from search_spaces.layout import Layout
from search_spaces.sglang.resolution import resolve
from search_spaces.sglang.versions import NEWEST, EngineVersion

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "golden" / "kv_tokens.jsonl").read_text(encoding="utf-8").splitlines()
]
GIB = 2**30


def rows(kind):
    return [row for row in ROWS if row["kind"] == kind]


def predicted(row):
    model, cluster = load_model(row["model"]), parse_cluster(row["cluster"])
    version = EngineVersion.parse(row["version"]) if "version" in row else NEWEST
    layout = resolve(Layout(**row["flags"]), model, cluster, version)[0]
    return model, cluster, layout, version


def held(row):
    model, cluster, layout, version = predicted(row)
    return memory(model, cluster, layout, version=version)


def pool_tokens(row):
    """What a pool of a logged size holds."""
    model = load_model(row["model"])
    each = kv_bytes_per_token(model, load_gpu(row["gpu"]), row["attn_tp"], model.blocks, dtype=row["kv_cache_dtype"])
    return row["pool_gib"] * GIB / each


def told(title, lines):
    sys.stdout.write(f"\n{title}\n" + "".join(f"  {line}\n" for line in lines))


def test_tokens_of_logged_launches_are_within_three_percent_in_the_median():
    errors, lines = [], []
    for row in rows("tokens"):
        tokens = held(row).kv_tokens
        error = tokens / row["tokens"] - 1
        judged = row.get("is_judged", True)
        lines.append(
            f"{row['id']:28} {tokens:>9} predicted {row['tokens']:>9} logged {error:+7.2%}{'' if judged else ' (not judged)'}"
        )
        if judged:
            errors.append(abs(error))
    told(f"KV tokens of a pool from flags: median {statistics.median(errors):.2%}", lines)
    assert statistics.median(errors) < 0.03
    assert max(errors) < 0.03


def test_a_pool_of_a_logged_size_holds_the_logged_tokens():
    errors = {row["id"]: pool_tokens(row) / row["tokens"] - 1 for row in rows("pool")}
    told(
        f"KV tokens of a pool from its size: median {statistics.median(map(abs, errors.values())):.2%}",
        [f"{name:28} {error:+7.2%}" for name, error in errors.items()],
    )
    assert statistics.median(map(abs, errors.values())) < 0.001
    # vLLM's own rounds to blocks of tokens for each layer.
    assert max(map(abs, errors.values())) < 0.015


def test_logged_weights_are_met():
    errors = {row["id"]: held(row).weight_bytes / GIB / row["weight_gib"] - 1 for row in rows("weights")}
    told("weights of a GPU", [f"{name:28} {error:+7.2%}" for name, error in errors.items()])
    assert statistics.median(map(abs, errors.values())) < 0.005
    assert max(map(abs, errors.values())) < 0.01


@pytest.mark.parametrize("row", rows("least fraction"), ids=lambda row: row["id"])
def test_the_least_fraction_is_the_one_that_the_engine_tells(row):
    model, cluster, layout, version = predicted(row)
    assert held(row).weight_bytes / GIB == pytest.approx(row["weight_gib"], rel=0.01)
    low, _ = workable_fractions(model, cluster, layout, SMALLEST_REQUEST, version=version)
    assert low == pytest.approx(row["fraction"], abs=0.005)


def test_every_row_has_a_public_source():
    assert all(row["source"].startswith("https://") for row in ROWS)
    assert len({row["id"] for row in ROWS}) == len(ROWS)
