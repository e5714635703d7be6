"""Public reports of launches that engineers lost hours to, each with its address (tests/golden)."""

from __future__ import annotations

import copy
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from search_spaces.catalogue import load_model, model_files, parse_cluster
from search_spaces.config_json import model_from_config
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.notation import read_notation
from search_spaces.sglang.flags import from_argv, to_argv
from search_spaces.sglang.versions import EngineVersion
from search_spaces.space import enumerate_space
from search_spaces.verdict import Stage
from tuner.check_document import document
from tuner.checking import Server, check_flags, check_layout
from tuner.diagnosis import Ended, diagnose
from tuner.outcome import OutOfMemory

CASES = json.loads((Path(__file__).parents[1] / "golden" / "field_reports_legality.json").read_text())["cases"]


def model_of(word: str | dict[str, Any]) -> Model:
    """A catalogue model, one whose config.json differs from its, or one that is written out."""
    if isinstance(word, str):
        return load_model(word)
    if "config" in word:
        return model_from_config(word["config"], name="written-out", source="written out for a test")
    config = copy.deepcopy(dict(model_files(word["config_of"])["config.json"])) | word.get("changes", {})
    for key in word.get("without", ()):
        del config[key]
    return model_from_config(config, name=word["config_of"], source="changed for a test")


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_reported_launch_gets_the_right_verdict_and_a_way_out(case: dict[str, Any]) -> None:
    server = Server(
        model=model_of(case["model"]),
        cluster=parse_cluster(case["cluster"]),
        version=EngineVersion.parse(case["engine_version"]),
        env=case.get("env", {}),
    )
    told = document(check_flags(shlex.split(case["flags"]), server))
    assert told["verdict"] == case["verdict"], told["violations"]
    assert set(case.get("rules", ())) <= {broken["rule"] for broken in told["violations"]}
    assert case.get("adjustments", {}).items() <= told["adjustments"].items()
    offered = [set(shlex.split(argv)) for argv in told["suggestions"]]
    for wanted in case.get("suggests", ()):
        assert any(set(shlex.split(wanted)) <= words for words in offered), (wanted, told["suggestions"])


def test_no_layout_is_enumerated_that_has_no_flags() -> None:
    """https://github.com/ai-dynamo/aiconfigurator/pull/705: tp 1, dp 2, moe_tp 2, ep 1 has no spelling."""
    for candidate in enumerate_space(load_model("deepseek-v3"), parse_cluster("8xh200")).candidates:
        asked, run = candidate.requested, candidate.effective
        assert from_argv(to_argv(asked)).layout == asked
        assert run.tp_size == run.moe_dp_size * run.ep_size * run.moe_tp_size


def test_two_way_experts_under_two_way_attention_data_parallelism_need_two_ranks() -> None:
    """The same report's layout, as SGLang would spell it."""
    layout = read_notation("attn_tp1 attn_dp2 moe_tp2 ep1").literal
    assert layout == Layout(tp_size=2, attn_dp_size=2)
    server = Server(model=load_model("qwen3-30b-a3b"), cluster=parse_cluster("2xh200"))
    assert check_layout(layout, server).verdict.is_legal


@pytest.mark.parametrize(
    ("exception", "url"),
    [
        ("RuntimeError: shape mismatch: value tensor cannot be broadcast", "sgl-project/sglang/issues/5335"),
        (
            "RuntimeError: Failed: CUDA error deep_ep.cpp:200 'peer access is not supported between these two devices'",
            "sgl-project/sglang/issues/19033",
        ),
        (
            "RuntimeError: Failed: Assertion error deep_ep.cpp:1233 'x.size(0) == topk_idx.size(0) and x.size(0) <= "
            "num_max_dispatch_tokens_per_rank'",
            "NVIDIA/srt-slurm/issues/44",
        ),
    ],
)
def test_a_crash_at_capture_is_none_of_memory_however_little_of_it_is_free(exception: str, url: str) -> None:
    log = (
        "[2026-04-01 10:00:00 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=0.21 GB\n"
        "[2026-04-01 10:00:08 TP3] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/x/sglang/srt/managers/scheduler.py", line 4021, in run_scheduler_process\n'
        f"{exception}\n"
    )
    outcome = diagnose(Ended(exit_code=137, log=log, stage=Stage.GRAPHS))
    assert not isinstance(outcome, OutOfMemory), url
    assert exception[:30] in outcome.summary


def test_what_the_old_check_let_through_is_refused_by_exact_division_in_every_version() -> None:
    """https://github.com/sgl-project/sglang/pull/11702"""
    for patch in range(9, 24):
        server = Server(
            model=load_model("qwen3-30b-a3b-fp8"), cluster=parse_cluster("8xh100"), version=EngineVersion(0, 5, patch)
        )
        assert not check_flags(("--tp-size", "8", "--ep-size", "7"), server).verdict.is_legal
