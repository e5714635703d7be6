from __future__ import annotations

import pytest

from search_spaces.catalogue import load_gpu, load_model
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.sglang.rules import judge

LAYOUT = Layout(enable_single_batch_overlap=True)


@pytest.mark.parametrize(
    ("model", "is_refused"),
    [
        # Answers of 0.5.23's own code: its scheduler sets experts up where the text config has a field that counts
        # experts per token (managers/scheduler.py:1007), as Qwen3.5's and Gemma 4's have without experts too.
        ("llama-3.1-8b", False),
        ("qwen3-32b", False),
        ("qwen3.5-27b", True),
        ("gemma-4-26b-a4b", True),
        ("qwen3-30b-a3b", True),
    ],
)
def test_on_hopper_it_is_refused_where_the_scheduler_sets_experts_up(model, is_refused):
    for gpu, is_hopper in (("h200", True), ("b200", False)):
        cluster = Cluster(gpu=load_gpu(gpu), gpus_per_node=8)
        verdict = judge(LAYOUT, load_model(model), cluster, suggest=False)
        broken = {violation.rule for violation in verdict.violations}
        assert ("overlap.single_batch_gpu" in broken) is (is_refused and is_hopper)
