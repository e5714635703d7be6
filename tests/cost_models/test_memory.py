"""What fits: reported token counts, the engine's own failures, and laws."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cost_models.kv_cache import layer_kv_bytes
from cost_models.memory import fit, memory
from cost_models.memory_types import DoesNotFit, Memory, Remedy
from search_spaces.catalogue import gpu_keys, load_gpu, load_model, model_names, parse_cluster
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.parts import Component
from search_spaces.sglang.rules import judge
from search_spaces.sglang.versions import release_0_5
from search_spaces.verdict import Stage
from search_spaces.workload import Workload

WORKLOAD = Workload()
KIMI = load_model("kimi-k2.6")
EIGHT_RTX = parse_cluster("8xrtx-pro-6000")
GIB = 2**30


def full_layer_bytes(model, gpu, attn_tp, dtype="auto"):
    """One token in one full-attention layer on one rank."""
    caches = [block.kv for block in model.block_kinds if block.kv is not None]
    full = [cache for cache in caches if not cache.window] or caches
    return max(sum(layer_kv_bytes(model, gpu, cache, attn_tp, dtype)) for cache in full)


def test_deepseek_r1_on_eight_h200_holds_the_reported_tokens():
    # github.com/SemiAnalysisAI/InferenceX/issues/870: tp 8, fraction 0.82, bf16 KV cache, "about 509,000"
    held = memory(load_model("deepseek-v3"), parse_cluster("8xh200"), Layout(tp_size=8, mem_fraction_static=0.82))
    assert held.kv_tokens == pytest.approx(509_000, rel=0.01)


def test_kimi_on_four_cards_dies_while_its_weights_load():
    # The story: --tp-size 4 --ep-size 2 on eight cards ran out of memory; tp_size is the world size.
    verdict = fit(KIMI, EIGHT_RTX, Layout(tp_size=4, ep_size=2, mem_fraction_static=0.9), WORKLOAD)
    assert isinstance(verdict, DoesNotFit)
    assert verdict.stage is Stage.WEIGHTS
    assert verdict.shortfall_bytes > 40 * GIB
    assert "140.55 GiB" in verdict.message
    assert "at least 8 instead of 4" in verdict.message


@pytest.mark.parametrize(
    "layout",
    [
        Layout(tp_size=8, mem_fraction_static=0.9),
        Layout(tp_size=8, ep_size=8, mem_fraction_static=0.9),
        Layout(pp_size=8, mem_fraction_static=0.9),
    ],
    ids=lambda layout: layout.label,
)
def test_kimi_on_eight_cards_fits_as_it_did_when_it_was_measured(layout):
    assert isinstance(fit(KIMI, EIGHT_RTX, layout, WORKLOAD), Memory)


def test_weights_that_fill_the_card_fail_at_weight_load():
    # sglang 0.5.23 on 8x H100: 79.29 of 79.65 GiB are weights, torch runs out of memory while loading.
    verdict = fit(
        load_model("deepseek-v3"), parse_cluster("8xh100"), Layout(tp_size=8, mem_fraction_static=0.9), WORKLOAD
    )
    assert isinstance(verdict, DoesNotFit)
    assert verdict.stage is Stage.WEIGHTS


def test_a_low_fraction_leaves_no_pool_and_the_advice_cures_it():
    # The engine: "Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.5."
    model, cluster = load_model("deepseek-v3"), parse_cluster("8xh200")
    verdict = fit(model, cluster, Layout(tp_size=8, mem_fraction_static=0.5), WORKLOAD)
    assert isinstance(verdict, DoesNotFit)
    assert verdict.stage is Stage.KV_POOL
    advised = float(verdict.message.rpartition(" ")[2])
    assert advised == verdict.least_fraction
    assert isinstance(fit(model, cluster, Layout(tp_size=8, mem_fraction_static=advised), WORKLOAD), Memory)

    def held(fraction):
        return memory(model, cluster, Layout(tp_size=8, mem_fraction_static=fraction)).kv_tokens

    # By the reserve that is expected, not the smallest one: what is advised is not at the edge.
    assert held(advised) >= WORKLOAD.tokens_per_request > held(round(advised - 0.002, 3))


def test_a_pool_smaller_than_one_request_is_refused():
    long = Workload(input_tokens=150_000, output_tokens=512)
    verdict = fit(KIMI, EIGHT_RTX, Layout(tp_size=8, mem_fraction_static=0.8), long)
    assert isinstance(verdict, DoesNotFit)
    assert verdict.stage is Stage.KV_POOL
    assert "one request of 150512 tokens" in verdict.message


def test_a_fraction_near_one_leaves_nothing_for_graphs_and_the_advice_cures_it():
    layout = Layout(tp_size=8, mem_fraction_static=0.995, chunked_prefill_size=8192)
    verdict = fit(KIMI, EIGHT_RTX, layout, WORKLOAD)
    assert isinstance(verdict, DoesNotFit)
    assert verdict.stage is Stage.GRAPHS
    advised = float(verdict.message.rpartition(" ")[2])
    cured = Layout(tp_size=8, mem_fraction_static=advised, chunked_prefill_size=8192)
    assert isinstance(fit(KIMI, EIGHT_RTX, cured, WORKLOAD), Memory)


def test_latents_are_kept_whole_on_every_rank_and_kv_heads_are_divided():
    h200 = load_gpu("h200")
    latent = load_model("deepseek-v3")
    # (512 + 64) values of 2 bytes, whatever the attention-TP
    assert [full_layer_bytes(latent, h200, ranks) for ranks in (1, 8)] == [1152, 1152]
    grouped = load_model("qwen3-30b-a3b")
    # 4 KV heads of 128, keys and values, 2 bytes; never less than one head
    assert [full_layer_bytes(grouped, h200, ranks) for ranks in (1, 4, 8)] == [2048, 512, 512]


def test_sparse_attention_keeps_an_fp8_indexer_and_fp8_latents_on_blackwell():
    # 132 bytes of indexer keys and scale a layer (sglang 0.5.23, model_executor/pool_configurator.py:567)
    model = load_model("deepseek-v32")
    assert full_layer_bytes(model, load_gpu("h200"), 8) == 1152 + 132
    assert full_layer_bytes(model, load_gpu("b200"), 8) == 576 + 132


def test_attention_dp_and_replicas_each_keep_a_pool():
    model, cluster = load_model("qwen3-30b-a3b"), parse_cluster("8xh100")
    held = memory(model, cluster, Layout(tp_size=4, dp_size=2, attn_dp_size=2, mem_fraction_static=0.85))
    assert held.kv_replicas == 4
    assert held.kv_tokens_total == 4 * held.kv_tokens


def test_a_gpu_layout_without_a_fraction_is_not_effective():
    with pytest.raises(ValueError, match="mem_fraction_static"):
        memory(KIMI, EIGHT_RTX, Layout(tp_size=8))


def test_a_host_needs_no_fraction():
    held = memory(load_model("qwen3-30b-a3b"), parse_cluster("4xcpu"), Layout(tp_size=4))
    assert held.mem_fraction_static == 0.8
    assert held.reserve_bytes == 0


fractions = st.floats(0.6, 0.99)


@given(lower=fractions, higher=fractions, tp_size=st.sampled_from([4, 8]), page_size=st.sampled_from([1, 64]))
def test_kv_tokens_never_fall_with_the_fraction(lower, higher, tp_size, page_size):
    model, cluster = load_model("qwen3-235b-a22b-fp8"), parse_cluster("8xh200")
    tokens = [
        memory(model, cluster, Layout(tp_size=tp_size, mem_fraction_static=fraction, page_size=page_size)).kv_tokens
        for fraction in sorted((lower, higher))
    ]
    assert tokens == sorted(tokens)
    assert all(count % page_size == 0 for count in tokens)


def test_a_draft_layer_has_its_own_share_of_the_kv_cache():
    # model_executor/pool_configurator.py:264: one more layer beside DeepSeek-V3's 61.
    model, cluster = load_model("deepseek-v3"), parse_cluster("8xh200")
    plain = Layout(tp_size=8, mem_fraction_static=0.82)
    drafting = plain.changed(speculative_algorithm="EAGLE")
    without, with_draft = memory(model, cluster, plain), memory(model, cluster, drafting)
    per_token = [held.kv_pool_bytes / held.kv_tokens for held in (without, with_draft)]
    assert per_token[1] / per_token[0] == pytest.approx(62 / 61, rel=1e-4)
    assert with_draft.weight_bytes - without.weight_bytes == pytest.approx(1.661e9, rel=1e-3)


def test_the_weights_are_told_by_component_with_scales_and_padding_apart():
    held = memory(KIMI, EIGHT_RTX, Layout(tp_size=8, ep_size=8, mem_fraction_static=0.9))
    parts = dict(held.parts)
    # 48 of 384 experts a layer, 60 layers, three matrices of 7168 x 2048 in INT4, one BF16 scale for 32 weights.
    plain = 60 * 48 * 3 * 7168 * 2048 / 2
    assert parts["routed"] == pytest.approx(plain, rel=1e-6)
    assert parts["scales and padding"] == pytest.approx(plain / 8, rel=1e-3)
    assert {"attention", "dense", "router", "shared", "embed", "lm_head", "vision"} <= parts.keys()
    assert dict(held.weights)[Component.ROUTED] == pytest.approx(plain * 9 / 8, rel=1e-3)


def test_padding_of_a_kernel_counts_as_padding():
    # 128 wide slices instead of 96 (layers/moe/fused_moe_triton/layer.py:512)
    model, cluster = load_model("qwen3-30b-a3b"), parse_cluster("8xb200")
    plain = Layout(tp_size=8, mem_fraction_static=0.8, moe_runner_backend="triton")
    padded = plain.changed(moe_runner_backend="flashinfer_trtllm")
    scales = [dict(memory(model, cluster, layout).parts)["scales and padding"] for layout in (plain, padded)]
    assert scales[1] - scales[0] == pytest.approx(48 * 128 * 3 * 2048 * 32 * 2, rel=1e-3)


def test_a_fraction_that_leaves_less_than_is_expected_to_be_needed_is_tight_and_still_fits():
    """The engine reserves 1.5 GiB for captured prefill of latent attention; that it is needed is not proven."""
    layout = Layout(
        tp_size=8,
        mem_fraction_static=0.96,
        chunked_prefill_size=8192,
        cuda_graph_backend_prefill="breakable",
        cuda_graph_max_bs_prefill=8192,
        cuda_graph_backend_decode="full",
        cuda_graph_max_bs_decode=512,
    )
    held = fit(KIMI, EIGHT_RTX, layout, WORKLOAD)
    assert isinstance(held, Memory)
    assert held.risk == "tight"
    assert held.least_need_bytes < held.headroom_bytes < held.need_bytes
    assert fit(KIMI, EIGHT_RTX, layout.changed(mem_fraction_static=0.88), WORKLOAD).risk == ""


def test_short_requests_need_less_beside_the_static_fraction_than_a_whole_chunk():
    layout = Layout(tp_size=8, mem_fraction_static=0.99, chunked_prefill_size=16384)
    assert isinstance(fit(KIMI, EIGHT_RTX, layout, WORKLOAD), DoesNotFit)
    short = Workload(input_tokens=16, output_tokens=16, concurrencies=(1,))
    assert isinstance(fit(KIMI, EIGHT_RTX, layout, short), Memory)


def test_the_request_limit_and_the_pools_bound_the_concurrency():
    model, cluster = load_model("qwen3-30b-a3b"), parse_cluster("8xh200")
    layout = Layout(tp_size=4, dp_size=2, attn_dp_size=2, mem_fraction_static=0.85)
    held = memory(model, cluster, layout)
    long, short = Workload(input_tokens=30_000, output_tokens=2_000), Workload(input_tokens=8, output_tokens=8)
    assert held.max_concurrency(long) == 4 * (held.kv_tokens // 32_000)
    # By default 2048 to 4096 a pool: tokens / context * 512 (mem_cache/kv_cache_configurator.py:3123).
    assert held.max_running_requests == max(2048, min(4096, int(held.kv_tokens / 40960 * 512)))
    assert held.max_concurrency(short) == 4 * held.max_running_requests
    limited = memory(model, cluster, layout.changed(max_running_requests=100))
    assert limited.max_running_requests == 50


def test_states_of_linear_attention_bound_the_requests_that_run():
    held = memory(load_model("qwen3.5-397b-a17b"), parse_cluster("8xh200"), Layout(tp_size=8, mem_fraction_static=0.8))
    states = held.kv_pool_bytes * 0.9 / 1.9
    assert dict(held.parts)["states"] == held.state_bytes == int(states)
    assert held.max_running_requests == int(states // 24_007_680) // 3


def test_a_cap_on_tokens_caps_the_pool_and_leaves_the_rest_free():
    model, cluster = load_model("qwen3-30b-a3b"), parse_cluster("8xh200")
    layout = Layout(tp_size=8, mem_fraction_static=0.85)
    whole, capped = (memory(model, cluster, each) for each in (layout, layout.changed(max_total_tokens=10_000)))
    assert capped.kv_tokens == 10_000
    assert capped.kv_pool_bytes == pytest.approx(10_000 * 24576, rel=1e-3)
    assert dict(capped.parts)["free"] > dict(whole.parts)["free"]


def test_a_multimodal_model_keeps_its_feature_cache_out_of_the_pool():
    # 100 MiB (mem_cache/kv_cache_configurator.py:202), not yet in older releases
    layout = Layout(tp_size=8, mem_fraction_static=0.9)
    new, old = memory(KIMI, EIGHT_RTX, layout), memory(KIMI, EIGHT_RTX, layout, version=release_0_5(15))
    assert old.kv_pool_bytes - new.kv_pool_bytes == new.buffer_bytes == 100 * 2**20


@pytest.mark.parametrize(
    ("flags", "remedy", "words"),
    [
        ({"tp_size": 4, "mem_fraction_static": 0.9}, Remedy.SPREAD, "--tp-size times --pp-size of at least 8"),
        ({"tp_size": 8, "mem_fraction_static": 0.7}, Remedy.RAISE_FRACTION, "raise --mem-fraction-static to at least"),
        ({"tp_size": 8, "mem_fraction_static": 0.995}, Remedy.LOWER_FRACTION, "lower --mem-fraction-static to at most"),
        (
            {"tp_size": 8, "mem_fraction_static": 0.9, "max_total_tokens": 100},
            Remedy.NO_FRACTION,
            "raise --max-total-tokens to at least 1536",
        ),
    ],
)
def test_what_does_not_fit_says_what_would_make_it_fit(flags, remedy, words):
    verdict = fit(KIMI, EIGHT_RTX, Layout(**flags, chunked_prefill_size=8192), WORKLOAD)
    assert isinstance(verdict, DoesNotFit)
    assert verdict.remedy is remedy
    assert words in verdict.message


def test_where_no_fraction_works_it_says_so():
    """DeepSeek-V3 on eight H100-size slices of 88 GiB: weights and one long request leave nothing for 64k chunks."""
    gpu = replace(load_gpu("h200"), memory_bytes=88 * GIB)
    cluster = Cluster(gpu=gpu, gpus_per_node=8)
    layout = Layout(tp_size=8, mem_fraction_static=0.97, chunked_prefill_size=131072, moe_runner_backend="triton")
    verdict = fit(load_model("deepseek-v3"), cluster, layout, Workload(input_tokens=40_000, output_tokens=100))
    assert isinstance(verdict, DoesNotFit)
    assert verdict.remedy in {Remedy.NO_FRACTION, Remedy.SPREAD}
    assert verdict.least_fraction is None


legal_sizes = st.sampled_from([(1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (2, 2), (4, 2), (1, 8)])


@st.composite
def effective_layouts(draw):
    """Any legal layout of any catalogue model on any GPU, as it would run."""
    model = load_model(draw(st.sampled_from(model_names())))
    tp_size, pp_size = draw(legal_sizes)
    cluster = Cluster(gpu=load_gpu(draw(st.sampled_from(gpu_keys()))), gpus_per_node=tp_size * pp_size)
    attn_dp = draw(st.sampled_from([size for size in (1, 2, 4, 8) if tp_size % size == 0]))
    ep = draw(st.sampled_from([size for size in (1, 2, 4, 8) if tp_size % size == 0]))
    asked = Layout(
        tp_size=tp_size,
        pp_size=pp_size,
        attn_dp_size=attn_dp,
        ep_size=ep,
        moe_a2a_backend=draw(st.sampled_from(["none", "none", "deepep", "flashinfer", "megamoe"])),
        kv_cache_dtype=draw(st.sampled_from(["auto", "auto", "fp8_e4m3", "bfloat16"])),
        max_total_tokens=draw(st.sampled_from([None, None, 5000])),
        mem_fraction_static=draw(st.one_of(st.none(), st.floats(0.01, 0.99))),
    )
    verdict = judge(asked, model, cluster, suggest=False)
    assume(verdict.is_legal)
    return model, cluster, verdict.effective


@given(drawn=effective_layouts())
def test_the_parts_sum_to_the_card_and_nothing_is_negative_but_what_does_not_fit(drawn):
    model, cluster, layout = drawn
    held = memory(model, cluster, layout)
    assert sum(size for _, size in held.parts) == held.total_bytes == cluster.gpu.memory_bytes
    names = [name for name, _ in held.parts]
    assert len(names) == len(set(names))
    for name, size in held.parts:
        assert math.isfinite(size)
        assert size >= 0 or name == "free", (name, size)
    if isinstance(fit(model, cluster, layout, WORKLOAD), Memory):
        assert dict(held.parts)["free"] >= 0
        assert (held.missing_bytes > 0) == held.is_tight
    assert held.kv_tokens >= 0
    assert 0 <= held.max_running_requests <= 4096
    assert 0 <= held.least_need_bytes <= held.need_bytes or cluster.gpu.is_cpu


@given(drawn=effective_layouts(), more=st.integers(0, 200 * GIB))
def test_more_memory_never_unfits(drawn, more):
    model, cluster, layout = drawn
    larger = replace(cluster, gpu=replace(cluster.gpu, memory_bytes=cluster.gpu.memory_bytes + more))
    if isinstance(fit(model, cluster, layout, WORKLOAD), Memory):
        assert isinstance(fit(model, larger, layout, WORKLOAD), Memory)
    assert memory(model, larger, layout).kv_tokens >= memory(model, cluster, layout).kv_tokens


@given(drawn=effective_layouts(), lower=fractions, higher=fractions)
def test_a_larger_fraction_never_lowers_the_tokens(drawn, lower, higher):
    model, cluster, layout = drawn
    tokens = [
        memory(model, cluster, layout.changed(mem_fraction_static=fraction)).kv_tokens
        for fraction in sorted((lower, higher))
    ]
    assert tokens == sorted(tokens)


@given(drawn=effective_layouts(), fraction=fractions)
def test_what_is_remembered_of_a_shape_does_not_depend_on_what_was_asked_before(drawn, fraction):
    model, cluster, layout = drawn
    memory(model, cluster, layout.changed(mem_fraction_static=fraction))
    fresh = replace(cluster, gpu=replace(cluster.gpu, key="another-name"))
    assert memory(model, cluster, layout) == memory(model, fresh, layout)


@given(drawn=effective_layouts())
def test_a_refusal_is_of_something_that_is_missing(drawn):
    model, cluster, layout = drawn
    verdict = fit(model, cluster, layout, WORKLOAD)
    if isinstance(verdict, DoesNotFit):
        assert verdict.shortfall_bytes > 0
        assert verdict.message
        assert (verdict.least_fraction is not None) == (verdict.remedy is Remedy.RAISE_FRACTION)
        assert (verdict.most_fraction is not None) == (verdict.remedy is Remedy.LOWER_FRACTION)
