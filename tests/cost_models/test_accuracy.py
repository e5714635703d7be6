"""How far predictions lie from measured serving points of SGLang; `pytest -s` prints the table.

Rows marked `is_fitted` were used to choose constants. The others are other layouts, versions or GPUs. None had
speculative decoding on or is known to have stalled, but two of B300 with tp 4 are three times slower than their
like. `is_random_length`: the campaign drew lengths between 0.8 and 1.0 of the stated ones. GLM-4.6 has the shape
of GLM-4.5, DeepSeek-R1 that of V3. No row states its memory fraction; the largest that every layout can start
with is assumed.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from cost_models.estimate import predict
from cost_models.prediction import Prediction, ServingPoint
from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.layout import Layout
from search_spaces.workload import Workload

GOLDEN = Path(__file__).parents[1] / "golden" / "serving_sweeps.jsonl"
MEM_FRACTION_STATIC = 0.95
MEAN_OF_RANDOM_LENGTHS = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    row: dict
    predicted: ServingPoint
    tpot_error: float
    ttft_error: float | None
    tok_per_s_error: float | None

    @property
    def campaign(self) -> tuple[str, str]:
        row = self.row
        label = f"{row['model']} {row['gpu']} tp{row['tp_size']} ep{row['ep_size']}"
        return ("fitted" if row["is_fitted"] else "held out", f"{label} {row['engine_version']}")


def compare(row: dict) -> Comparison:
    scale = MEAN_OF_RANDOM_LENGTHS if row["is_random_length"] else 1.0
    workload = Workload(
        input_tokens=round(scale * row["input_tokens"]),
        output_tokens=round(scale * row["output_tokens"]),
        concurrencies=tuple(sorted({1, row["concurrency"]})),
    )
    layout = Layout(
        tp_size=row["tp_size"],
        ep_size=row["ep_size"],
        mem_fraction_static=MEM_FRACTION_STATIC,
        chunked_prefill_size=8192 if row["gpu"] == "h200" else 16384,
    )
    answer = predict(load_model(row["model"]), parse_cluster(f"{row['tp_size']}x{row['gpu']}"), layout, workload)
    assert isinstance(answer, Prediction), answer.message
    point = answer.points[-1]
    tpot_s = row["tpot_ms"] / 1e3
    ttft_s = row["ttft_ms"] / 1e3 if row["ttft_ms"] else None
    tok_per_s = None
    if ttft_s is not None:
        tok_per_s = row["concurrency"] * workload.output_tokens / (ttft_s + (workload.output_tokens - 1) * tpot_s)
    return Comparison(
        row=row,
        predicted=point,
        tpot_error=point.tpot_s / tpot_s - 1,
        ttft_error=None if ttft_s is None else point.ttft_s / ttft_s - 1,
        tok_per_s_error=None if tok_per_s is None else point.output_tok_per_s / tok_per_s - 1,
    )


@cache
def comparisons() -> tuple[Comparison, ...]:
    lines = GOLDEN.read_text(encoding="utf-8").splitlines()
    return tuple(compare(json.loads(line)) for line in lines)


def held_out() -> list[Comparison]:
    return [comparison for comparison in comparisons() if not comparison.row["is_fitted"]]


def sizes(errors) -> list[float]:
    return sorted(abs(error) for error in errors if error is not None)


def summary(errors) -> str:
    known = sizes(errors)
    if not known:
        return f"{'-':>27s}"
    p90 = known[round(0.9 * (len(known) - 1))]
    bias = statistics.median(error for error in errors if error is not None)
    return f"{statistics.median(known):6.1%}{statistics.mean(known):7.1%}{p90:7.1%}{bias:+7.1%}"


def table() -> str:
    groups = defaultdict(list)
    for comparison in comparisons():
        groups[comparison.campaign].append(comparison)
        groups[comparison.campaign[0], "all"].append(comparison)
    lines = [
        f"{'predicted against measured: median, mean, P90, bias':56s}{'n':>4s}  {'TPOT':>27s}  {'tok/s':>27s}  {'TTFT':>27s}"
    ]
    for (part, name), rows in sorted(groups.items()):
        columns = [
            summary([getattr(row, kind) for row in rows]) for kind in ("tpot_error", "tok_per_s_error", "ttft_error")
        ]
        lines.append(f"{part:9s}{name:47s}{len(rows):4d}  " + "  ".join(columns))
    return "\n".join(lines)


def test_time_per_token_of_held_out_rows_is_within_the_target():
    sys.stdout.write(f"\n{table()}\n")
    errors = sizes(comparison.tpot_error for comparison in held_out())
    assert len(errors) == 38
    assert statistics.median(errors) <= 0.10
    assert statistics.mean(errors) <= 0.15
    assert errors[round(0.9 * (len(errors) - 1))] <= 0.25


def test_throughput_of_held_out_rows_is_within_the_target():
    assert statistics.median(sizes(comparison.tok_per_s_error for comparison in held_out())) <= 0.12


@pytest.mark.parametrize("part", ["tpot_s", "output_tok_per_s"])
def test_points_of_one_campaign_come_in_the_measured_order(part):
    """Within a campaign, share of pairs that differ by over a tenth and are ordered as measured."""
    rows = defaultdict(list)
    for comparison in comparisons():
        rows[comparison.campaign].append(comparison)
    right = wrong = 0
    for group in rows.values():
        for index, a in enumerate(group):
            for b in group[index + 1 :]:
                if part == "tpot_s":
                    measured = a.row["tpot_ms"] / b.row["tpot_ms"]
                elif a.row["ttft_ms"] and b.row["ttft_ms"]:
                    measured = (a.predicted.output_tok_per_s / (1 + a.tok_per_s_error)) / (
                        b.predicted.output_tok_per_s / (1 + b.tok_per_s_error)
                    )
                else:
                    continue
                if 1 / 1.1 < measured < 1.1:
                    continue
                predicted = getattr(a.predicted, part) / getattr(b.predicted, part)
                right += (predicted > 1) == (measured > 1)
                wrong += (predicted > 1) != (measured > 1)
    assert right + wrong > 200
    assert right / (right + wrong) >= 0.95
