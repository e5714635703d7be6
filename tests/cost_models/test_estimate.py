"""Predictions over the launch space: laws that hold for every layout, and the story's order."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cost_models.constants import DEFAULT, Constants
from cost_models.estimate import predict, predict_all, predict_if_it_fits
from cost_models.memory_types import DoesNotFit
from cost_models.prediction import Prediction
from cost_models.setting import Client, ServingEngine, Setting
from search_spaces.catalogue import load_model, model_names, parse_cluster
from search_spaces.errors import CannotRunError
from search_spaces.hardware import Fabric, Route
from search_spaces.layout import Layout
from search_spaces.sglang.versions import NEWEST
from search_spaces.space import enumerate_space
from search_spaces.workload import Workload

MODELS = ["kimi-k2.6", "deepseek-v3", "deepseek-v32", "qwen3-235b-a22b-fp8", "gpt-oss-120b", "glm-4.5-air"]
CLUSTERS = ["8xrtx-pro-6000", "8xh200", "8xb200", "2x8xh100", "8xa100"]


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Layouts whose sizes multiply to 8 GPUs and divide each other as the engine demands."""
    tp_size = draw(st.sampled_from([1, 2, 4, 8]))
    pp_size = draw(st.sampled_from([size for size in (1, 2, 4, 8) if tp_size * size <= 8]))
    divisors = [size for size in (1, 2, 4, 8) if tp_size % size == 0]
    backend = draw(st.sampled_from(["none", "none", "deepep"])) if tp_size > 1 else "none"
    return Layout(
        tp_size=tp_size,
        pp_size=pp_size,
        dp_size=8 // tp_size // pp_size,
        attn_dp_size=draw(st.sampled_from(divisors)),
        ep_size=tp_size if backend != "none" else draw(st.sampled_from(divisors)),
        moe_a2a_backend=backend,
        mem_fraction_static=draw(st.sampled_from([0.8, 0.85, 0.9, 0.94])),
        chunked_prefill_size=draw(st.sampled_from([512, 2048, 8192])),
        max_running_requests=draw(st.sampled_from([None, 8, 256])),
    )


workloads = st.builds(
    Workload,
    input_tokens=st.integers(1, 16384),
    output_tokens=st.integers(2, 4096),
    concurrencies=st.sets(st.integers(2, 1024), max_size=6).map(lambda rest: (1, *sorted(rest))),
)


@given(model=st.sampled_from(MODELS), cluster=st.sampled_from(CLUSTERS), layout=layouts(), workload=workloads)
def test_every_answer_is_finite_and_sound(model, cluster, layout, workload):
    answer = predict(load_model(model), parse_cluster(cluster), layout, workload)
    if isinstance(answer, DoesNotFit):
        assert answer.shortfall_bytes > 0
        assert "GiB" in answer.message
        return
    assert [point.concurrency for point in answer.points] == list(workload.concurrencies)
    assert_sound(answer)
    # Nothing waits at concurrency 1, so the step by cause is the time per token; at the peak, what waits is a part.
    assert answer.step.total_s == pytest.approx(answer.points[0].tpot_s)
    assert answer.peak_step.total_s == pytest.approx(answer.peak.tpot_s)


def assert_sound(answer: Prediction) -> None:
    for point in answer.points:
        for value, interval in (
            (point.tpot_s, point.tpot_interval_s),
            (point.ttft_s, point.ttft_interval_s),
            (point.output_tok_per_s, point.output_tok_per_s_interval),
        ):
            assert math.isfinite(interval.high)
            assert 0 < interval.low < value < interval.high
    for step in (answer.step, answer.peak_step, answer.prefill):
        assert all(math.isfinite(seconds) and seconds >= 0 for _, seconds in step.parts)
    for point, limit in zip(answer.points, answer.limits, strict=True):
        assert limit.concurrency == point.concurrency
        assert point.output_tok_per_s < limit.output_tok_per_s < math.inf


@given(model=st.sampled_from(MODELS), cluster=st.sampled_from(CLUSTERS), layout=layouts(), workload=workloads)
def test_more_requests_never_lower_the_time_per_token(model, cluster, layout, workload):
    answer = predict(load_model(model), parse_cluster(cluster), layout, workload)
    if isinstance(answer, Prediction):
        tpot = [point.tpot_s for point in answer.points]
        assert all(a <= b * (1 + 1e-9) for a, b in pairwise(tpot))


RATES = ("memory_bytes_per_s", "bf16_flop_per_s", "fp8_flop_per_s", "fp4_flop_per_s", "link_bytes_per_s")


@given(
    model=st.sampled_from(MODELS),
    box=st.sampled_from(CLUSTERS),
    layout=layouts(),
    workload=workloads,
    rate=st.sampled_from(RATES),
    factor=st.floats(1, 4),
)
def test_nothing_is_slower_on_a_faster_card(model, box, layout, workload, rate, factor):
    served, cluster = load_model(model), parse_cluster(box)
    assume(getattr(cluster.gpu, rate) is not None)
    # A bf16 rate above that of a narrower format would turn what is a gain into a loss.
    faster = {name: factor * getattr(cluster.gpu, name) for name in RATES if getattr(cluster.gpu, name) is not None}
    changed = faster if "flop" in rate else {rate: faster[rate]}
    fast = replace(cluster, gpu=replace(cluster.gpu, **changed))
    before, after = (predict(served, each, layout, workload) for each in (cluster, fast))
    assert isinstance(before, Prediction) == isinstance(after, Prediction)
    if isinstance(before, Prediction) and isinstance(after, Prediction):
        for slow, quick in zip(before.points, after.points, strict=True):
            assert quick.tpot_s <= slow.tpot_s * (1 + 1e-9)
            assert quick.ttft_s <= slow.ttft_s * (1 + 1e-9)
            assert quick.output_tok_per_s >= slow.output_tok_per_s * (1 - 1e-9)


@given(
    model=st.sampled_from(MODELS),
    cluster=st.sampled_from(CLUSTERS),
    some=st.lists(layouts(), min_size=2, max_size=6),
    workload=workloads,
)
def test_layouts_predicted_together_get_what_each_gets_alone(model, cluster, some, workload):
    facts = load_model(model), parse_cluster(cluster)
    together = predict_all(*facts, some, workload)
    for layout, answer in zip(some, together, strict=True):
        alone = predict(*facts, layout, workload)
        if isinstance(answer, DoesNotFit):
            assert answer == alone
            continue
        assert isinstance(alone, Prediction)
        assert (answer.memory, answer.all_reduce, answer.unproven) == (alone.memory, alone.all_reduce, alone.unproven)
        assert dict(answer.step.parts) == pytest.approx(dict(alone.step.parts), rel=1e-12)
        for one, other in zip(answer.points, alone.points, strict=True):
            assert (one.tpot_s, one.ttft_s, one.tpot_interval_s.high) == pytest.approx(
                (other.tpot_s, other.ttft_s, other.tpot_interval_s.high), rel=1e-12
            )


COLLECTIVES = ("attention all-reduce", "MLP all-reduce", "expert exchange", "pipeline hops")


@given(model=st.sampled_from(model_names()), workload=workloads)
def test_a_layout_on_one_gpu_sends_nothing(model, workload):
    layout = Layout(mem_fraction_static=0.85, chunked_prefill_size=8192)
    alone = predict_if_it_fits(load_model(model), parse_cluster("1xb300"), layout, workload)
    for step in (alone.step, alone.peak_step, alone.prefill):
        assert [dict(step.parts)[name] for name in COLLECTIVES] == [0, 0, 0, 0]


def test_who_waits_for_a_place_does_not_raise_the_rate():
    """Little's law: beyond the requests that the KV cache holds, throughput stays and the wait grows."""
    model, cluster = load_model("kimi-k2.6"), parse_cluster("8xrtx-pro-6000")
    layout = Layout(tp_size=8, ep_size=8, mem_fraction_static=0.9, chunked_prefill_size=8192)
    full = predict(model, cluster, layout, Workload()).memory.max_concurrency(Workload())
    answer = predict(model, cluster, layout, Workload(concurrencies=(1, full, 2 * full, 8 * full)))
    assert isinstance(answer, Prediction)
    at_most, twice, eightfold = answer.points[1:]
    assert twice.output_tok_per_s == pytest.approx(at_most.output_tok_per_s)
    assert eightfold.output_tok_per_s == pytest.approx(at_most.output_tok_per_s)
    assert eightfold.ttft_s > 4 * twice.ttft_s > 4 * at_most.ttft_s


def test_a_sparse_indexer_costs_time_on_long_prompts():
    """DeepSeek V3.2 scores each of 128k tokens with 64 heads of 128: 8.2 Pflop in 61 layers, on every rank."""
    cluster, layout = parse_cluster("8xh200"), Layout(tp_size=8, mem_fraction_static=0.85, chunked_prefill_size=8192)
    answer = predict(load_model("deepseek-v32"), cluster, layout, Workload(input_tokens=131072, concurrencies=(1,)))
    assert isinstance(answer, Prediction)
    assert answer.points[0].ttft_s > 64 * 128 * 2 * 131072**2 / 2 * 61 / cluster.gpu.fp8_flop_per_s


def test_each_way_of_splitting_sends_in_its_own_way():
    """Which messages a layout has, by the kind of split."""

    def sent(**sizes):
        layout = Layout(mem_fraction_static=0.85, chunked_prefill_size=8192, **sizes)
        answer = predict(load_model("qwen3-235b-a22b-fp8"), parse_cluster("8xh200"), layout, Workload())
        assert isinstance(answer, Prediction)
        return {name for name in COLLECTIVES if dict(answer.step.parts)[name] > 0}

    assert sent(tp_size=8) == {"attention all-reduce", "MLP all-reduce"}
    assert sent(tp_size=8, attn_dp_size=8) == {"MLP all-reduce"}
    assert sent(tp_size=8, attn_dp_size=8, ep_size=8, moe_a2a_backend="deepep") == {"expert exchange"}
    assert sent(tp_size=4, pp_size=2) == {"attention all-reduce", "MLP all-reduce", "pipeline hops"}
    assert sent(tp_size=4, dp_size=2) == {"attention all-reduce", "MLP all-reduce"}


@pytest.mark.parametrize(
    ("model", "cluster"),
    [
        ("kimi-k2.6", "8xrtx-pro-6000"),
        ("deepseek-v3", "2x8xh100"),
        ("gpt-oss-120b", "8xb200"),
        ("qwen3-30b-a3b", "4xcpu"),
    ],
)
def test_every_legal_layout_gets_an_answer_and_more_memory_never_costs_throughput(model, cluster):
    served, machines = load_model(model), parse_cluster(cluster)
    effective = [candidate.effective for candidate in enumerate_space(served, machines, NEWEST).candidates]
    best: dict[Layout, list[tuple[float, float]]] = {}
    for layout, answer in zip(effective, predict_all(served, machines, effective, Workload()), strict=True):
        if isinstance(answer, Prediction):
            assert_sound(answer)
            same = replace(layout, mem_fraction_static=None)
            best.setdefault(same, []).append((answer.memory.mem_fraction_static, answer.peak.output_tok_per_s))
    assert len(best) > 5
    for points in best.values():
        assert all(a <= b * (1 + 1e-9) for (_, a), (_, b) in pairwise(sorted(points)))


def test_replicas_share_the_requests():
    model, cluster = load_model("qwen3-30b-a3b"), parse_cluster("8xh100")
    one = predict(model, cluster, Layout(tp_size=2, mem_fraction_static=0.85), Workload(concurrencies=(1, 16)))
    four = predict(
        model, cluster, Layout(tp_size=2, dp_size=4, mem_fraction_static=0.85), Workload(concurrencies=(1, 64))
    )
    assert isinstance(one, Prediction)
    assert isinstance(four, Prediction)
    assert four.points[1].tpot_s == one.points[1].tpot_s
    assert four.points[1].output_tok_per_s == pytest.approx(4 * one.points[1].output_tok_per_s)


def test_a_full_kv_cache_makes_requests_wait_but_not_tokens():
    model, cluster = load_model("deepseek-v3"), parse_cluster("8xh200")
    workload = Workload(input_tokens=32768, output_tokens=1024, concurrencies=(1, 16, 64))
    answer = predict(model, cluster, Layout(tp_size=8, mem_fraction_static=0.8), workload)
    assert isinstance(answer, Prediction)
    holds = answer.memory.kv_tokens // workload.tokens_per_request
    assert holds < 16
    assert answer.points[1].tpot_s == answer.points[2].tpot_s
    assert answer.points[2].ttft_s > 2 * answer.points[1].ttft_s


def test_every_constant_matters_to_some_prediction():
    """A constant that nothing reads would be fitted in vain."""
    layout = Layout(tp_size=8, ep_size=8, mem_fraction_static=0.8)
    workload = Workload(input_tokens=8192, output_tokens=1024, concurrencies=(1, 64, 1024))
    cases = [
        ("8xh200", Setting(release=9)),
        ("8xb200", Setting(client=Client.INFERENCEX)),
        ("8xh200", Setting(engine=ServingEngine.VLLM)),
        ("8xh200", Setting(engine=ServingEngine.TRTLLM)),
    ]

    def answers(constants):
        return [
            predict(
                load_model("deepseek-v3"),
                parse_cluster(cluster),
                layout,
                workload,
                setting=setting,
                constants=constants,
            )
            for cluster, setting in cases
        ]

    usual = answers(DEFAULT)
    for name in (each.name for each in fields(Constants)):
        assert answers(replace(DEFAULT, **{name: 1.1 * getattr(DEFAULT, name)})) != usual, name


def test_speculative_decoding_gains_what_is_accepted_and_pays_for_what_is_verified():
    model, cluster = load_model("deepseek-v3"), parse_cluster("8xh200")
    plain = Layout(tp_size=8, mem_fraction_static=0.8)
    drafting = replace(
        plain,
        speculative_algorithm="EAGLE",
        speculative_num_steps=3,
        speculative_eagle_topk=1,
        speculative_num_draft_tokens=4,
    )
    for accepted in (1.0, 2.6):
        workload = Workload(concurrencies=(1, 16), acceptance_length=accepted)
        one, other = (predict(model, cluster, layout, workload) for layout in (plain, drafting))
        assert isinstance(one, Prediction)
        assert isinstance(other, Prediction)
        assert dict(other.step.parts)["drafting"] > 0
        assert other.step.total_s > one.step.total_s
        assert other.points[0].tpot_s == pytest.approx(other.step.total_s / accepted)
        # A plain layout gains nothing from an acceptance length.
        assert one.points[0].tpot_s == pytest.approx(one.step.total_s)
        assert any("speculative decoding" in reason for reason in other.unproven)


BOXES = ("8xb200", "8xrtx-pro-6000", "2x8xh100", "4xh200", "8xb300", "1xb200")


@pytest.mark.parametrize(("place", "name"), list(enumerate(model_names())))
def test_every_legal_layout_of_every_model_has_a_sound_prediction_or_does_not_fit(place, name):
    model = load_model(name)
    for box in (BOXES[place % len(BOXES)], BOXES[(place + 1) % len(BOXES)]):
        cluster = parse_cluster(box)
        try:
            space = enumerate_space(model, cluster, NEWEST, mem_fractions=(0.9,))
        except CannotRunError:
            continue
        legal = [candidate.effective for candidate in space.candidates]
        for answer in predict_all(model, cluster, legal, Workload()):
            if isinstance(answer, Prediction):
                assert_sound(answer)
            else:
                assert answer.shortfall_bytes > 0


@pytest.mark.parametrize("width", [2, 4, 8])
def test_context_parallelism_shares_a_prompt_only_where_prefill_is_told_to(width):
    """Without `--enable-prefill-cp` every rank computes the whole prompt, with fewer ranks a head (layers/cp/base.py)."""
    model, cluster = load_model("deepseek-v3"), parse_cluster("8xh200")
    load = Workload(input_tokens=8000, concurrencies=(1, 64))
    plain = Layout(tp_size=8, mem_fraction_static=0.85, chunked_prefill_size=8192)
    copied = replace(plain, attn_cp_size=width)
    shared = replace(copied, enable_prefill_cp=True, cp_strategy="interleave")
    one, copies, shares = (answer.points for answer in predict_all(model, cluster, (plain, copied, shared), load))
    for alone, copy, share in zip(one, copies, shares, strict=True):
        assert copy.ttft_s > alone.ttft_s
        assert copy.output_tok_per_s < alone.output_tok_per_s
        assert share.ttft_s < copy.ttft_s


@pytest.mark.parametrize(
    ("name", "box", "stages"),
    [("kimi-k2.6", "8xrtx-pro-6000", 8), ("gpt-oss-120b", "4xh100", 4), ("qwen3-30b-a3b", "4xh100", 4)],
    ids=["61 layers in 8 stages", "36 layers in 4", "48 layers in 4"],
)
def test_every_micro_batch_of_a_full_pipeline_passes_the_head_of_its_last_stage(name, box, stages):
    model, cluster = load_model(name), parse_cluster(box)
    pipeline = Layout(pp_size=stages, mem_fraction_static=0.9, chunked_prefill_size=8192)
    answer = predict(model, cluster, pipeline, Workload(concurrencies=(1, 32 * stages)))
    assert isinstance(answer, Prediction)
    alone, crowded = dict(answer.step.parts)["LM head"], dict(answer.peak_step.parts)["LM head"]
    assert crowded >= stages * alone


def test_the_peak_is_at_the_fewest_requests_beyond_which_the_others_only_wait():
    model, cluster = load_model("kimi-k2.6"), parse_cluster("8xrtx-pro-6000")
    layout = Layout(tp_size=8, ep_size=8, mem_fraction_static=0.9, chunked_prefill_size=8192)
    load = Workload(input_tokens=8000, output_tokens=1000, concurrencies=(1, 8, 64, 256, 1024))
    answer = predict(model, cluster, layout, load)
    assert answer.memory.max_concurrency(load) < 64
    assert answer.peak.concurrency == 64
    assert answer.points[-1].output_tok_per_s == pytest.approx(answer.peak.output_tok_per_s)


@pytest.mark.parametrize("route", [Route.SWITCH, Route.SOCKETS])
def test_a_time_to_first_token_is_as_sure_as_the_link_that_prompts_travel_over(route):
    model = load_model("kimi-k2.6")
    layout = Layout(tp_size=8, mem_fraction_static=0.9, chunked_prefill_size=8192)
    unknown = parse_cluster("8xrtx-pro-6000")
    known = replace(unknown, fabric=Fabric(source="a test", route=route))
    before, after = (
        predict(model, cluster, layout, Workload()).points[0].ttft_interval_s for cluster in (unknown, known)
    )
    assert (after.factor < before.factor) == (route is Route.SWITCH)
