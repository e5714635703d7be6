"""Verdicts on launches that SGLang 0.5.9 to 0.5.22 themselves judged (tests/golden/legality_versions.json)."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path

import pytest

from search_spaces.catalogue import load_gpu, load_model
from search_spaces.hardware import Cluster
from search_spaces.sglang.flags import FlagError, from_argv
from search_spaces.sglang.rules import judge
from search_spaces.sglang.versions import NEWEST, OLDEST, EngineVersion, release_0_5
from search_spaces.verdict import Stage

CASES = json.loads((Path(__file__).parents[1] / "golden" / "legality_versions.json").read_text())["cases"]

NOT_IN_A_LAYOUT = {
    "--tp-size 8 --enable-dp-attention": (
        "until 0.5.21 the fraction is sized before the switch is dropped for want of groups (0.5.21 "
        "arg_groups/pipeline.py:205, :262), and a Layout cannot say that it was given"
    ),
}

JUDGED_STAGES = {Stage.PARSE, Stage.RESOLVE, Stage.CHECK, Stage.PUBLISH}


def verdict_on(model, argv, gpu, version):
    layout = from_argv(shlex.split(argv), version).layout
    nodes = max(layout.nnodes, 1)
    gpus_per_node = max(math.ceil(max(layout.num_gpus, 1) / nodes), 1)
    cluster = Cluster(gpu=load_gpu(gpu), gpus_per_node=gpus_per_node, num_nodes=nodes)
    return judge(layout, load_model(model), cluster, version, suggest=False)


def assert_resolved(effective, resolved):
    ours = {name: getattr(effective, name) for name in resolved}
    assert ours == pytest.approx(resolved, abs=1e-6)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['release']} {case['model']} {case['argv']}")
def test_a_launch_is_judged_as_the_release_itself_judges_it(case):
    version = EngineVersion.parse(case["release"])
    if case.get("stage") == "PARSE":
        with pytest.raises(FlagError) as refused:
            from_argv(shlex.split(case["argv"]), version)
        assert refused.value.engine_text[:160] == case["error"]
        return
    verdict = verdict_on(case["model"], case["argv"], case["gpu"], version)
    early = [violation for violation in verdict.violations if violation.stage in JUDGED_STAGES]
    if "stage" not in case:
        assert early == []
        resolved = dict(case["resolved"])
        if case["argv"] in NOT_IN_A_LAYOUT and version < release_0_5(22):
            assert resolved.pop("mem_fraction_static") < verdict.effective.mem_fraction_static
        assert_resolved(verdict.effective, resolved)
    else:
        first = early[0]
        assert (first.stage.name, first.exception) == (case["stage"], case["exception"])
        assert case["error"].startswith(first.engine_text[:60])
        assert first.engine_text or not case["error"]


def test_every_release_before_the_newest_was_asked():
    asked = {EngineVersion.parse(case["release"]) for case in CASES}
    assert asked == {release_0_5(patch) for patch in range(OLDEST.patch, NEWEST.patch)}


GLM5 = ("glm-5-nvfp4", "--tp-size 8 --moe-a2a-backend flashinfer --moe-runner-backend flashinfer_cutlass", "b200")


def test_flashinfer_all_to_all_was_ep8_in_its_time():
    verdict = verdict_on(*GLM5, release_0_5(12))
    assert verdict.violations == ()
    assert (verdict.effective.ep_size, verdict.effective.moe_tp_size) == (8, 1)


@pytest.mark.parametrize("patch", [13, 22, 23])
def test_and_is_refused_since_without_attention_dp(patch):
    assert verdict_on(*GLM5, release_0_5(patch)).violations[0].rule == "flashinfer.attn_dp"
