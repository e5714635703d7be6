"""What fits: reported token counts, the engine's own failures, and laws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.kv_cache import kv_bytes_per_token_layer
from cost_models.memory import fit, memory
from cost_models.prediction import DoesNotFit, Memory
from search_spaces.catalogue import load_gpu, load_model, parse_cluster
from search_spaces.layout import Layout
from search_spaces.verdict import Stage
from search_spaces.workload import Workload

WORKLOAD = Workload()
KIMI = load_model("kimi-k2.6")
EIGHT_RTX = parse_cluster("8xrtx-pro-6000")
GIB = 2**30


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
    assert [kv_bytes_per_token_layer(latent, h200, ranks) for ranks in (1, 8)] == [1152, 1152]
    grouped = load_model("qwen3-30b-a3b")
    # 4 KV heads of 128, keys and values, 2 bytes; never less than one head
    assert [kv_bytes_per_token_layer(grouped, h200, ranks) for ranks in (1, 4, 8)] == [2048, 512, 512]


def test_sparse_attention_keeps_an_fp8_indexer_and_fp8_latents_on_blackwell():
    # 132 bytes of indexer keys and scale a layer (sglang 0.5.23, model_executor/pool_configurator.py:567)
    model = load_model("deepseek-v32")
    assert kv_bytes_per_token_layer(model, load_gpu("h200"), 8) == 1152 + 132
    assert kv_bytes_per_token_layer(model, load_gpu("b200"), 8) == 576 + 132


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


@given(fraction=fractions, pp_size=st.sampled_from([1, 2, 4, 8]))
def test_the_parts_of_the_memory_sum_to_the_card(fraction, pp_size):
    held = memory(KIMI, EIGHT_RTX, Layout(tp_size=8 // pp_size, pp_size=pp_size, mem_fraction_static=fraction))
    parts = held.reserve_bytes + held.weight_bytes + held.kv_pool_bytes + held.headroom_bytes
    assert parts == held.total_bytes == EIGHT_RTX.gpu.memory_bytes


def test_a_draft_layer_has_its_own_share_of_the_kv_cache():
    # model_executor/pool_configurator.py:264: one more layer beside DeepSeek-V3's 61.
    model, cluster = load_model("deepseek-v3"), parse_cluster("8xh200")
    plain = Layout(tp_size=8, mem_fraction_static=0.82)
    drafting = plain.changed(speculative_algorithm="EAGLE")
    without, with_draft = memory(model, cluster, plain), memory(model, cluster, drafting)
    per_token = [held.kv_pool_bytes / held.kv_tokens for held in (without, with_draft)]
    assert per_token[1] / per_token[0] == pytest.approx(62 / 61, rel=1e-4)
    assert with_draft.weight_bytes - without.weight_bytes == pytest.approx(1.661e9, rel=1e-3)
