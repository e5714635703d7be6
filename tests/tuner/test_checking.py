"""The whole verdict on one launch: rules, memory, suggestions that work."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.layout import Layout
from search_spaces.sglang.rule_ids import RULES_OF_TOPIC
from search_spaces.sglang.versions import EngineVersion
from search_spaces.verdict import Status
from tuner.check_document import argv_text, document
from tuner.checking import Checked, Server, check_flags, check_layout


def server(model: str = "kimi-k2.6", cluster: str = "8xrtx-pro-6000", version: str = "0.5.23") -> Server:
    return Server(model=load_model(model), cluster=parse_cluster(cluster), version=EngineVersion.parse(version))


def check(flags: str, *where: str) -> Checked:
    return check_flags(shlex.split(flags), server(*where))


def suggested(checked: Checked) -> list[str]:
    return [argv_text(near, checked.server.version) for near in checked.verdict.suggestions]


def test_a_layout_that_fits_says_how_much_room_it_leaves() -> None:
    checked = check("--tp 8 --mem-fraction-static 0.94")
    assert (checked.verdict.status, checked.fits) == (Status.LEGAL, True)
    assert checked.memory is not None
    assert checked.memory.kv_tokens > 10_000


def test_a_layout_that_is_too_large_is_illegal_though_the_arguments_pass() -> None:
    checked = check("--tp 4 --ep 2")
    assert (checked.verdict.status, checked.argument_stages, checked.fits) == (Status.ILLEGAL, Status.LEGAL, False)
    assert checked.verdict.violations[0].rule == "memory.weights"


def test_what_the_engine_refuses_early_is_not_weighed() -> None:
    checked = check("--tp 8 --ep 3")
    assert (checked.memory, checked.fits, checked.weight_bytes_rank0) == (None, None, None)


def test_fp8_blocks_that_do_not_divide_lead_to_expert_parallelism() -> None:
    found = suggested(check("--tp 8", "qwen3-30b-a3b-fp8", "8xh100"))
    assert found[:2] == ["--tp-size 8 --ep-size 4", "--tp-size 8 --ep-size 8"]


def test_plain_tp32_of_deepseek_leads_to_a_spanning_backend_with_whole_dense_layers() -> None:
    found = suggested(check("--tp 32 --nnodes 4", "deepseek-v3", "4x8xh100"))
    assert "--tp-size 32 --moe-a2a-backend deepep --moe-dense-tp-size 1 --nnodes 4" in found


def test_a_memory_fraction_that_leaves_nothing_leads_to_a_larger_one() -> None:
    found = suggested(check("--tp 8 --mem-fraction-static 0.5", "deepseek-v3", "8xh200"))
    assert found[0] in {"--tp-size 8", "--tp-size 8 --mem-fraction-static 0.9"}


def test_a_model_that_fits_nowhere_on_these_gpus_gets_no_suggestion_for_its_size() -> None:
    checked = check("--tp 8", "deepseek-v3", "8xh100")
    assert checked.verdict.violations[0].rule == "memory.weights"
    assert checked.verdict.suggestions == ()


def test_a_mistyped_flag_is_answered_with_the_launch_that_was_meant() -> None:
    checked = check("--tp-sizee 8 --mem-fraction-static 0.9")
    assert checked.verdict.violations[0].engine_text.startswith("unrecognized arguments: --tp-sizee")
    assert suggested(checked) == ["--tp-size 8 --mem-fraction-static 0.9"]


def test_more_experts_than_tensor_parallel_ranks_divided_by_zero_before_0_5_21() -> None:
    old = check("--tp-size 2 --ep-size 4", "kimi-k2.6", "8xh200", "0.5.20").verdict.violations[0]
    new = check("--tp-size 2 --ep-size 4", "kimi-k2.6", "8xh200", "0.5.23").verdict.violations[0]
    assert (old.exception, new.exception) == ("ZeroDivisionError", "ValueError")
    assert "2 // 1 // 4 = 0" in old.message


SIZE = st.sampled_from([0, 1, 2, 3, 4, 8, 16])


@settings(max_examples=30, deadline=None)
@given(
    st.builds(
        Layout,
        tp_size=SIZE,
        pp_size=SIZE,
        attn_dp_size=SIZE,
        ep_size=SIZE,
        moe_a2a_backend=st.sampled_from(["none", "deepep", "flashinfer", "pplx"]),
        mem_fraction_static=st.sampled_from([None, 0.5, 0.9]),
    ),
    st.sampled_from(["kimi-k2.6", "qwen3-30b-a3b-fp8", "deepseek-v3"]),
    st.sampled_from(["8xh200", "8xrtx-pro-6000"]),
)
def test_every_suggestion_is_legal_and_fits_by_the_same_judge(layout: Layout, model: str, cluster: str) -> None:
    on = server(model, cluster)
    checked = check_layout(layout, on)
    for near in checked.verdict.suggestions:
        again = check_layout(near, on, suggest=False)
        assert again.verdict.is_legal
        assert again.fits or not checked.suggestions_fit


def test_a_document_has_what_a_script_needs() -> None:
    told = document(check("--tp 8 --dp 8 --enable-dp-attention", "deepseek-v3", "8xh200"))
    assert told["verdict"] == "adjusted"
    assert told["adjustments"]["attn_dp_size"] == "default 1 -> 8"
    assert told["effective"]["attn_tp_size"] == 1
    assert told["weight_bytes_per_gpu"] >= told["weight_bytes_rank0"] * 0.9
    assert (told["fits"], told["suggestions"], told["stage"]) == (True, [], None)


@pytest.mark.parametrize("flags", ["--tp 8 --ep 3", "--tp 8 --mem-fraction-static 0.98", "--pp 2"])
def test_every_violation_says_rule_stage_source_and_how_it_is_known(flags: str) -> None:
    for broken in document(check(flags, "deepseek-v3", "8xh200"))["violations"]:
        assert all(broken[key] for key in ("rule", "stage", "message", "source", "evidence"))


GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "legality.json").read_text())["cases"]
REFUSED = [case for case in GOLDEN if case["verdict"] == "illegal" and "topic" in case]


@pytest.mark.parametrize("case", REFUSED, ids=[case["id"] for case in REFUSED])
def test_a_recorded_refusal_is_stopped_first_by_a_rule_of_its_topic(case: dict[str, Any]) -> None:
    words = shlex.split(case["argv"])
    nodes = int(words[words.index("--nnodes") + 1]) if "--nnodes" in words else 1
    where = Server(
        model=load_model(case["model"]),
        cluster=parse_cluster(f"{nodes}x{max(-(-case['num_gpus'] // nodes), 1)}x{case['gpu']}"),
        env=case.get("env") or {},
    )
    assert check_flags(words, where, suggest=False).verdict.violations[0].rule in RULES_OF_TOPIC[case["topic"]]


def test_most_topics_are_shown_by_a_recorded_refusal() -> None:
    assert len({case["topic"] for case in REFUSED}) > 60


def test_what_check_advises_is_what_space_lists_and_no_suggestion_is_at_the_edge() -> None:
    checked = check("--tp 8")
    assert checked.verdict.violations[0].message.endswith("raise --mem-fraction-static to at least 0.775")
    for near in checked.verdict.suggestions:
        again = check_layout(near, checked.server, suggest=False)
        assert again.fits
        assert not again.is_at_the_edge
    edge = check("--tp 8 --mem-fraction-static 0.765")
    assert edge.fits
    assert edge.is_at_the_edge


def test_a_fraction_that_was_meant_in_percent_is_not_weighed_and_leads_to_the_fraction() -> None:
    checked = check("--tp 8 --mem-fraction-static 88", "deepseek-v3", "8xh200")
    (broken,) = checked.verdict.violations
    assert (broken.rule, broken.exception) == ("mem_fraction.below_one", "torch.OutOfMemoryError")
    assert (checked.memory, checked.fits) == (None, None)
    assert checked.weight_bytes_rank0 is not None
    assert suggested(checked)[0] == "--tp-size 8 --mem-fraction-static 0.88"


def test_replicas_for_which_there_are_no_gpus_lead_to_attention_data_parallelism() -> None:
    assert suggested(check("--tp 8 --dp 8", "deepseek-v32", "8xh200"))[0] == "--tp-size 8 --attn-dp-size 8"
    old = check("--tp 8 --dp 8", "deepseek-v32", "16xh200", "0.5.9")
    assert all("--attn-dp-size" not in flags for flags in suggested(old))


def test_a_draft_that_is_not_counted_leaves_open_whether_it_fits() -> None:
    flags = "--tp 8 --speculative-algorithm EAGLE"
    assert check(flags, "deepseek-v3", "8xh200").fits is True
    other = check(f"{flags}3 --speculative-draft-model-path /draft", "deepseek-v3", "8xh200")
    assert (other.verdict.is_legal, other.fits, other.leaves_draft_out) == (True, None, True)
    assert (document(other)["fits"], document(other)["kv_tokens"]) == (None, None)
    too_large = check(f"{flags}3 --speculative-draft-model-path /draft", "deepseek-v3", "8xh100")
    assert too_large.fits is False
