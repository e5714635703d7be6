from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from search_spaces.catalogue import load_gpu, load_model
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.sglang.choices import moe_a2a_backends
from search_spaces.sglang.resolution import EP_SPANNING_BACKENDS, resolve
from search_spaces.sglang.versions import NEWEST

MODELS = st.sampled_from(["kimi-k2.6", "deepseek-v3", "qwen3-30b-a3b", "gpt-oss-120b", "mixtral-8x7b"])
GPUS = st.sampled_from(["rtx-pro-6000", "h100", "b200", "cpu"])
SIZE = st.sampled_from([1, 2, 3, 4, 8])
LAYOUTS = st.builds(
    Layout,
    tp_size=SIZE,
    pp_size=SIZE,
    attn_dp_size=SIZE,
    attn_cp_size=SIZE,
    ep_size=SIZE,
    moe_dp_size=SIZE,
    moe_a2a_backend=st.sampled_from(moe_a2a_backends(NEWEST)),
    mem_fraction_static=st.none() | st.floats(0.5, 0.95),
    chunked_prefill_size=st.none() | st.sampled_from([-1, 512, 8192]),
    enable_dp_lm_head=st.booleans(),
)


def resolved(layout, model="deepseek-v3", gpu="h200"):
    return resolve(layout, load_model(model), Cluster(gpu=load_gpu(gpu), gpus_per_node=8))


@given(LAYOUTS, MODELS, GPUS)
def test_an_effective_layout_leaves_nothing_open(layout, model, gpu):
    effective, _ = resolved(layout, model, gpu)
    assert None not in (
        effective.mem_fraction_static,
        effective.chunked_prefill_size,
        effective.page_size,
        effective.cuda_graph_max_bs_decode,
    )


@given(LAYOUTS, MODELS, GPUS)
def test_an_all_to_all_backend_spreads_the_experts_over_tp(layout, model, gpu):
    effective, adjustments = resolved(layout, model, gpu)
    if layout.moe_a2a_backend in EP_SPANNING_BACKENDS:
        assert effective.ep_size == layout.tp_size
        assert ("ep_size" in {a.name for a in adjustments}) == (layout.ep_size != layout.tp_size)
    else:
        assert effective.ep_size == layout.ep_size


@given(LAYOUTS, MODELS, GPUS)
def test_the_layout_itself_is_never_resized(layout, model, gpu):
    effective, _ = resolved(layout, model, gpu)
    for name in ("tp_size", "pp_size", "dp_size", "attn_dp_size", "attn_cp_size", "moe_dp_size", "nnodes"):
        assert getattr(effective, name) == getattr(layout, name)


def test_scripts_named_tp8_ep8_get_ep8_from_the_backend_they_pass():
    effective, adjustments = resolved(Layout(tp_size=8, moe_a2a_backend="flashinfer"), "kimi-k2.6", "rtx-pro-6000")
    assert effective.ep_size == 8
    assert [(a.before, a.after) for a in adjustments if a.name == "ep_size"] == [("default 1", "8")]


def test_attention_dp_divides_the_chunk_and_may_switch_it_off():
    assert resolved(Layout(tp_size=8, attn_dp_size=8))[0].chunked_prefill_size == 1024
    assert resolved(Layout(tp_size=8, attn_dp_size=8, chunked_prefill_size=4))[0].chunked_prefill_size == 0


def test_pipeline_parallelism_turns_overlap_off():
    _, adjustments = resolved(Layout(tp_size=4, pp_size=2))
    assert {a.name for a in adjustments} == {"disable_overlap_schedule", "prefill_cuda_graph"}


def test_a_plain_launch_changes_nothing():
    assert resolved(Layout(tp_size=8))[1] == ()


def test_sparse_attention_pages_64_tokens_whatever_is_asked():
    effective, adjustments = resolved(Layout(tp_size=8, page_size=16), "deepseek-v32")
    assert effective.page_size == 64
    assert [(a.name, a.before, a.after) for a in adjustments] == [("page_size", "16", "64")]


def test_prefill_context_parallelism_takes_the_whole_tp_group_for_latent_attention():
    effective, _ = resolved(Layout(tp_size=8, enable_prefill_cp=True, cp_strategy="zigzag"))
    assert (effective.attn_cp_size, effective.ep_size, effective.moe_dense_tp_size) == (8, 8, 1)
    assert effective.moe_a2a_backend == "deepep"


def test_sparse_attention_keeps_a_context_group_that_is_asked_for():
    asked = Layout(tp_size=8, enable_prefill_cp=True, cp_strategy="interleave", attn_cp_size=4)
    assert resolved(asked, "deepseek-v32")[0].attn_cp_size == 4


def test_weight_data_parallelism_widens_attention_and_experts():
    effective, _ = resolved(Layout(tp_size=8, dwdp_size=8), "deepseek-v3-nvfp4", "b200")
    assert (effective.attn_dp_size, effective.ep_size, effective.enable_dp_lm_head) == (8, 8, True)
    assert effective.cuda_graph_backend_decode == "disabled"


def test_speculation_limits_the_requests_and_fills_in_its_drafts():
    effective, adjustments = resolved(Layout(tp_size=8, speculative_algorithm="nextn"))
    drafts = (
        effective.speculative_num_steps,
        effective.speculative_eagle_topk,
        effective.speculative_num_draft_tokens,
    )
    assert (effective.speculative_algorithm, drafts) == ("EAGLE", (3, 1, 4))
    assert [(a.name, a.after) for a in adjustments] == [("max_running_requests", "48")]


def test_a_deprecated_attention_backend_keeps_what_it_implied():
    effective, _ = resolved(Layout(tp_size=8, attention_backend="tokenspeed_mla"), gpu="b200")
    assert (effective.attention_backend, effective.kv_cache_dtype) == ("cutedsl_mla", "fp8_e4m3")


def test_an_nvfp4_cache_brings_its_readers():
    effective, _ = resolved(Layout(tp_size=8, kv_cache_dtype="nvfp4"), "qwen3-30b-a3b", "b200")
    assert (effective.prefill_attention_backend, effective.decode_attention_backend) == ("trtllm_mha", "trtllm_mha")


@given(LAYOUTS, MODELS, GPUS)
def test_what_is_effective_stays_so(layout, model, gpu):
    """The engine would not change what it has settled.

    But for what attention data parallelism divides each time, and for `ascend_tp`, which is dropped after the
    experts' runner was chosen for it.
    """
    effective, _ = resolved(layout, model, gpu)
    if effective.attn_dp_size == 1 and layout.moe_a2a_backend != "ascend_tp" and gpu != "cpu":
        assert (
            resolved(effective, model, gpu)[0].changed(cuda_graph_max_bs_decode=effective.cuda_graph_max_bs_decode)
            == effective
        )
