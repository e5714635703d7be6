from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.layout import Layout
from search_spaces.sglang.rules import RULES, judge
from search_spaces.sglang.versions import NEWEST, OLDEST, EngineVersion
from search_spaces.verdict import Stage, Status

KIMI = load_model("kimi-k2.6")
EIGHT_PRO = parse_cluster("8xrtx-pro-6000")


def kimi(version="0.5.23", **sizes):
    return judge(Layout(**sizes), KIMI, EIGHT_PRO, EngineVersion.parse(version), suggest=False)


def judged(model, cluster, **sizes):
    return judge(Layout(**sizes), load_model(model), parse_cluster(cluster), suggest=False)


def first(verdict):
    return verdict.violations[0].rule if verdict.violations else None


class TestTheStory:
    """Eight RTX PRO 6000 serving Kimi K2.6."""

    def test_tp4_ep2_is_legal_and_uses_four_gpus(self):
        verdict = kimi(tp_size=4, ep_size=2)
        assert verdict.status is Status.LEGAL
        assert verdict.effective.num_gpus == 4

    @pytest.mark.parametrize("version", ["0.5.9", "0.5.20"])
    def test_tp2_ep4_divides_by_zero_before_0_5_21(self, version):
        verdict = kimi(version, tp_size=2, ep_size=4)
        [violation] = verdict.violations
        assert violation.exception == "ZeroDivisionError"
        assert violation.engine_text == "integer division or modulo by zero"
        assert "2 // 1 // 4 = 0" in violation.message

    @pytest.mark.parametrize("version", ["0.5.21", "0.5.23"])
    def test_tp2_ep4_is_an_inconsistent_topology_since_0_5_21(self, version):
        [violation] = kimi(version, tp_size=2, ep_size=4).violations
        assert violation.exception == "ValueError"
        assert violation.engine_text == (
            "parallel topology is inconsistent (set by override_permanently):\n"
            "tp_size == moe_ep_size * moe_dp_size * moe_tp_size\n"
            "  2 != 4 * 1 * 0 (= 0)"
        )

    def test_tp4_ep3_was_rounded_down_in_silence_before_0_5_21(self):
        [violation] = kimi("0.5.20", tp_size=4, ep_size=3).violations
        assert (violation.rule, violation.stage, violation.exception) == ("ep.floored", Stage.UNDETECTED, "")

    @pytest.mark.parametrize("sizes", [{"tp_size": 8}, {"pp_size": 8}, {"tp_size": 8, "ep_size": 8}])
    @pytest.mark.parametrize("version", ["0.5.9", "0.5.23"])
    def test_the_layouts_that_were_measured_are_accepted(self, sizes, version):
        assert kimi(version, **sizes).is_legal

    def test_the_scripts_named_tp8_ep8_got_there_through_the_backend(self):
        verdict = kimi("0.5.12", tp_size=8, moe_a2a_backend="flashinfer", moe_runner_backend="flashinfer_cutlass")
        assert verdict.status is Status.ADJUSTED
        assert verdict.effective.ep_size == 8

    def test_the_same_scripts_are_refused_since_0_5_13(self):
        verdict = kimi("0.5.13", tp_size=8, moe_a2a_backend="flashinfer", moe_runner_backend="flashinfer_cutlass")
        assert first(verdict) == "flashinfer.attn_dp"

    def test_the_vision_tower_cannot_follow_context_parallelism(self):
        # Executed on 0.5.23: ValueError of layers/dp_attention.py:567.
        assert first(kimi(tp_size=8, attn_cp_size=2)) == "vision.attn_cp"
        assert kimi(tp_size=8, attn_cp_size=2, attn_dp_size=2).is_legal
        assert kimi(tp_size=8, attn_cp_size=8).is_legal

    def test_int4_experts_have_no_kernel_behind_deepep(self):
        violation = kimi(tp_size=8, moe_a2a_backend="deepep").violations[0]
        assert violation.stage is Stage.MODEL
        assert violation.engine_text == (
            "Runner backend MoeRunnerBackend.MARLIN requires a fused func for a2a backend deepep, "
            "but none is registered."
        )


def test_a_layout_larger_than_the_cluster_is_refused():
    assert first(judged("qwen3-30b-a3b", "8xh100", tp_size=8, dp_size=2)) == "cluster.too_small"
    assert first(judged("qwen3-30b-a3b", "2x4xh100", tp_size=8)) == "cluster.too_small"
    assert first(judged("qwen3-30b-a3b", "8xh100", tp_size=8, nnodes=2)) == "cluster.too_small"
    assert judged("qwen3-30b-a3b", "2x4xh100", tp_size=8, nnodes=2).is_legal


def test_every_rule_whose_inputs_are_sound_is_reported_the_engines_first():
    verdict = judged("qwen3-30b-a3b-fp8", "8xh100", tp_size=8, moe_dense_tp_size=4, page_size=3)
    assert [v.rule for v in verdict.violations] == [
        "moe_dense_tp.choice",
        "page.divides_chunk",
        "quant.fp8_block.experts",
    ]


def test_a_rule_is_not_asked_where_its_inputs_make_no_sense():
    verdict = judged("qwen3-30b-a3b", "8xh100", tp_size=8, attn_dp_size=3)
    assert [v.rule for v in verdict.violations] == ["attn_dp.divides"]


def test_capacity_limits_are_read_from_the_environment():
    layout = Layout(tp_size=8, attn_dp_size=8, moe_a2a_backend="deepep")
    model, cluster = load_model("deepseek-v3"), parse_cluster("8xh200")
    variable = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
    assert first(judge(layout, model, cluster, suggest=False)) == "deepep.graph_tokens"
    assert judge(layout, model, cluster, suggest=False, env={variable: "512"}).is_legal
    assert first(judge(layout, model, cluster, suggest=False, env={variable: "2048"})) == "deepep.limit"
    assert first(judge(layout, model, cluster, suggest=False, env={variable: "many"})) == "deepep.graph_tokens"


def test_a_backend_is_unknown_to_versions_before_it():
    layout = Layout(tp_size=8, attn_dp_size=8, moe_a2a_backend="pplx")
    model, cluster = load_model("deepseek-v3"), parse_cluster("8xh200")
    old = judge(layout, model, cluster, EngineVersion(0, 5, 16), suggest=False)
    assert (first(old), old.violations[0].stage) == ("a2a.choice", Stage.PARSE)
    assert "'pplx'" not in old.violations[0].engine_text.split("choose from")[1]
    assert first(judge(layout, model, cluster, EngineVersion(0, 5, 17), suggest=False)) == "pplx.budget"


class TestCpuServers:
    def test_heads_are_padded_so_that_any_tp_is_legal(self):
        # Executed on 0.5.23: a model with 8 heads served at TP3 on a CPU, correctly.
        assert first(judged("qwen3-30b-a3b", "3xh100", tp_size=3)) == "heads.divide"
        assert judged("qwen3-30b-a3b", "3xcpu", tp_size=3).is_legal

    def test_expert_parallelism_still_has_to_divide(self):
        assert first(judged("qwen3-30b-a3b", "4xcpu", tp_size=4, ep_size=3)) == "ep.divides"
        assert first(judged("qwen3-60experts", "8xcpu", tp_size=8, ep_size=8)) == "ep.divides_experts"

    def test_all_to_all_backends_need_gpus(self):
        assert first(judged("qwen3-30b-a3b", "2xcpu", tp_size=2, moe_a2a_backend="deepep")) == "cpu.a2a"

    def test_sparse_attention_needs_gpus(self):
        assert first(judged("deepseek-v32", "1xcpu")) == "cpu.sparse_attention"

    def test_no_memory_tier_sets_the_sizes(self):
        effective = judged("qwen3-30b-a3b", "4xcpu", tp_size=4).effective
        assert (effective.chunked_prefill_size, effective.mem_fraction_static) == (4096, 0.95)


SIZE = st.integers(-1, 9)
LAYOUTS = st.builds(
    Layout,
    tp_size=SIZE,
    pp_size=SIZE,
    dp_size=SIZE,
    attn_dp_size=SIZE,
    attn_cp_size=SIZE,
    ep_size=SIZE,
    moe_dp_size=SIZE,
    moe_a2a_backend=st.sampled_from(["none", "deepep", "flashinfer", "pplx", "megamoe", "mori", "nonsense"]),
    moe_runner_backend=st.sampled_from(["auto", "deep_gemm", "marlin", "flashinfer_cutlass", "nonsense"]),
    mem_fraction_static=st.none() | st.floats(allow_nan=True),
    chunked_prefill_size=st.none() | SIZE,
    page_size=st.none() | SIZE,
    max_running_requests=st.none() | SIZE,
    cuda_graph_max_bs_decode=st.none() | SIZE,
    moe_dense_tp_size=st.none() | SIZE,
    enable_dp_lm_head=st.booleans(),
    ep_num_redundant_experts=SIZE,
    nnodes=SIZE,
)
MODELS = st.sampled_from(
    ["kimi-k2.6", "deepseek-v3", "deepseek-v3-nvfp4", "qwen3-30b-a3b-fp8", "gpt-oss-120b", "mixtral-8x7b"]
)
CLUSTERS = st.sampled_from(["8xrtx-pro-6000", "2x8xh200", "8xb200", "8xa100", "4xcpu"])
VERSIONS = st.builds(EngineVersion, st.just(0), st.just(5), st.integers(OLDEST.patch, NEWEST.patch))


@given(LAYOUTS, MODELS, CLUSTERS, VERSIONS)
def test_no_layout_is_beyond_judgement(layout, model, cluster, version):
    verdict = judge(layout, load_model(model), parse_cluster(cluster), version, suggest=False)
    for violation in verdict.violations:
        assert violation.message


@given(LAYOUTS, MODELS, CLUSTERS, VERSIONS)
def test_a_legal_layout_fills_its_groups_and_fits_its_cluster(layout, model, cluster, version):
    verdict = judge(layout, load_model(model), parse_cluster(cluster), version, suggest=False)
    run = verdict.effective
    if verdict.is_legal:
        assert run.tp_size == run.attn_dp_size * run.attn_cp_size * run.attn_tp_size
        assert run.tp_size == run.ep_size * run.moe_dp_size * run.moe_tp_size
        assert 1 <= run.num_gpus <= parse_cluster(cluster).num_gpus
        assert 0 < run.mem_fraction_static < 1


@given(LAYOUTS, MODELS, CLUSTERS)
def test_violations_come_in_the_order_of_the_table(layout, model, cluster):
    position = {rule.id: place for place, rule in reversed(list(enumerate(RULES)))}
    verdict = judge(layout, load_model(model), parse_cluster(cluster), suggest=False)
    places = [position[violation.rule] for violation in verdict.violations]
    assert places == sorted(places)


def test_only_versions_tell_rules_of_one_name_apart():
    for rule in RULES:
        twins = [other for other in RULES if other.id == rule.id and other is not rule]
        assert all(twin.since > rule.until or twin.until < rule.since for twin in twins)
        assert rule.source


class TestDrafts:
    """A launch with speculative decoding that names no draft model."""

    @pytest.mark.parametrize("model", ["deepseek-v3", "glm-4.5", "glm-5-fp8", "mimo-v2-flash", "qwen3.5-35b-a3b"])
    def test_a_model_with_a_layer_of_its_own_needs_none(self, model):
        assert first(judged(model, "8xb200", tp_size=8, ep_size=8, speculative_algorithm="EAGLE")) is None

    @pytest.mark.parametrize("algorithm", ["EAGLE", "nextn", "STANDALONE"])
    @pytest.mark.parametrize("model", ["qwen3-235b-a22b-fp8", "kimi-k2.6", "minimax-m2"])
    def test_a_model_without_one_would_be_its_own_draft(self, model, algorithm):
        layout = {"tp_size": 8, "ep_size": 8, "speculative_algorithm": algorithm}
        assert first(judged(model, "8xh200", **layout)) == "speculation.no_draft"
        assert first(judged(model, "8xh200", **layout, speculative_draft_model_path="/draft")) is None

    def test_deepseeks_class_without_the_layer_in_the_checkpoint_dies_while_it_loads(self):
        violation = judged("kimi-k2", "8xh200", tp_size=8, speculative_algorithm="EAGLE").violations[0]
        assert (violation.rule, violation.stage) == ("speculation.draft_layer", Stage.WEIGHTS)
        assert violation.engine_text == "Only 1 nextn layer is supported"

    def test_ngrams_need_no_draft_model(self):
        assert first(judged("kimi-k2.6", "8xh200", tp_size=8, speculative_algorithm="NGRAM")) is None
