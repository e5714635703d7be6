"""Launches that run out of memory, and where: the three ends of DeepSeek-V3 FP8 on eight GPUs."""

from __future__ import annotations

import pytest

from cost_models.memory_verdict import MEMORY_RULES, memory_violation
from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.layout import Layout
from search_spaces.sglang.rules import judge
from search_spaces.verdict import Evidence, Stage


def ended(model, cluster, **flags):
    model, cluster = load_model(model), parse_cluster(cluster)
    effective = judge(Layout(**flags), model, cluster, suggest=False).effective
    return memory_violation(model, cluster, effective)


@pytest.mark.parametrize(
    ("cluster", "fraction", "rule", "text"),
    [
        ("8xh100", None, "memory.weights", "CUDA out of memory."),
        ("8xh200", 0.5, "memory.kv_pool", "Loaded weights leave no GPU memory for the KV cache under "),
        ("8xh200", 0.98, "memory.graphs", "Capture cuda graph failed: CUDA out of memory."),
    ],
)
def test_memory_runs_out_where_the_engine_would_notice(cluster, fraction, rule, text):
    violation = ended("deepseek-v3", cluster, tp_size=8, mem_fraction_static=fraction)
    assert violation.rule == rule
    assert violation.stage is MEMORY_RULES[rule]
    assert violation.engine_text.startswith(text)
    assert violation.evidence is Evidence.PREDICTED
    assert "GiB" in violation.message


@pytest.mark.parametrize("fraction", [None, 0.9, 0.94])
def test_what_fits_breaks_nothing(fraction):
    assert ended("deepseek-v3", "8xh200", tp_size=8, mem_fraction_static=fraction) is None


def test_four_way_tensor_parallel_kimi_does_not_fit_four_cards():
    assert ended("kimi-k2.6", "8xrtx-pro-6000", tp_size=4, ep_size=2).stage is Stage.WEIGHTS
