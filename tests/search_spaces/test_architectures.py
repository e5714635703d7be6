"""Every architecture under many layouts, as the engine's own model classes take or refuse them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from search_spaces.catalogue import load_gpu, load_model
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.sglang.rules import judge
from search_spaces.verdict import Stage, Verdict

GOLDEN = Path(__file__).parents[1] / "golden" / "architectures.json"
CASES = json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]

UP_TO_CONSTRUCTION = {Stage.PARSE, Stage.RESOLVE, Stage.CHECK, Stage.PUBLISH, Stage.INIT, Stage.MODEL}


def judged(case) -> Verdict:
    layout = Layout(**case["layout"])
    cluster = Cluster(gpu=load_gpu(case["gpu"]), gpus_per_node=layout.num_gpus)
    return judge(layout, load_model(case["model"]), cluster, suggest=False)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['id']}-{case['model']}")
def test_a_model_is_built_or_refused_as_the_engine_builds_or_refuses_it(case):
    stopped = [rule for rule in judged(case).violations if rule.stage in UP_TO_CONSTRUCTION]
    if "error" not in case:
        assert not stopped, [rule.message for rule in stopped]
        return
    assert stopped, case["error"]
    exception, _, text = case["error"].partition(": ")
    assert exception in {rule.exception for rule in stopped}
    # Which width is named depends on the projection that happens to come first.
    if text and "is not divisible by" not in text:
        assert any(rule.engine_text and rule.engine_text.startswith(text[:40]) for rule in stopped), case["error"]


@pytest.mark.parametrize(
    ("model", "layout", "rule"),
    [
        # 16 heads of the vision tower, 32 ranks; model_executor/model_runner.py:514; models/llama.py:181
        ("qwen3-vl-235b-a22b", {"tp_size": 32}, "vision.heads"),
        ("llama-4-scout", {"tp_size": 4, "pp_size": 2}, "pp.supported"),
        ("llama-3.1-70b", {"tp_size": 8, "attn_dp_size": 2}, "attn_dp.architecture"),
        ("nemotron-3-super-fp8", {"tp_size": 16}, "linear_heads.divide"),
        ("qwen3.5-397b-a17b", {"tp_size": 3}, "heads.divide"),
        ("minimax-m2.5", {"tp_size": 32}, "quant.fp8_block.experts"),
        ("step-3.7-flash-fp8", {"tp_size": 4}, "quant.fp8_block.shared"),
    ],
)
def test_a_refusal_names_the_part_that_does_not_divide(model, layout, rule):
    verdict = judged({"model": model, "gpu": "h200", "layout": layout})
    assert rule in {violation.rule for violation in verdict.violations}


def test_a_dense_model_knows_no_rule_of_experts():
    verdict = judged({"model": "qwen3-32b", "gpu": "h200", "layout": {"tp_size": 8, "ep_size": 8}})
    assert not verdict.violations
