"""Predictions over the launch space: laws that hold for every layout, and the story's order."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.compute import roofline_s
from cost_models.constants import DEFAULT
from cost_models.estimate import predict
from cost_models.prediction import DoesNotFit, Prediction
from search_spaces.catalogue import load_model, model_names, parse_cluster
from search_spaces.layout import Layout
from search_spaces.sglang.rules import judge
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
    for point in answer.points:
        for value in (point.tpot_s, point.ttft_s, point.output_tok_per_s):
            assert math.isfinite(value)
            assert value > 0
    assert all(seconds >= 0 for _, seconds in answer.step.parts)
    # Nothing waits at concurrency 1, so the step by cause is the time per token.
    assert answer.step.total_s == pytest.approx(answer.points[0].tpot_s)


@given(model=st.sampled_from(MODELS), cluster=st.sampled_from(CLUSTERS), layout=layouts(), workload=workloads)
def test_more_requests_never_lower_the_time_per_token(model, cluster, layout, workload):
    answer = predict(load_model(model), parse_cluster(cluster), layout, workload)
    if isinstance(answer, Prediction):
        tpot = [point.tpot_s for point in answer.points]
        assert all(a <= b * (1 + 1e-9) for a, b in pairwise(tpot))


@given(layout=layouts(), workload=workloads, factor=st.floats(1, 4))
def test_faster_memory_never_makes_a_token_slower(layout, workload, factor):
    model, cluster = load_model("qwen3-235b-a22b-fp8"), parse_cluster("8xh200")
    fast = replace(cluster, gpu=replace(cluster.gpu, memory_bytes_per_s=factor * cluster.gpu.memory_bytes_per_s))
    before, after = (predict(model, each, layout, workload) for each in (cluster, fast))
    if isinstance(before, Prediction) and isinstance(after, Prediction):
        assert all(b.tpot_s <= a.tpot_s for a, b in zip(before.points, after.points, strict=True))


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
    best: dict[Layout, list[tuple[float, float]]] = {}
    for candidate in enumerate_space(served, machines, NEWEST).candidates:
        answer = predict(served, machines, candidate.effective, Workload())
        if isinstance(answer, Prediction):
            same = replace(candidate.effective, mem_fraction_static=None)
            peak = max(point.output_tok_per_s for point in answer.points)
            best.setdefault(same, []).append((answer.memory.mem_fraction_static, peak))
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


def test_the_norm_of_a_roofline_lies_between_the_longer_part_and_the_sum():
    assert roofline_s(3.0, 4.0, 1.0) == pytest.approx(7.0)
    assert roofline_s(3.0, 4.0, 2.0) == pytest.approx(5.0)
    assert 4.0 <= roofline_s(3.0, 4.0, 50.0) < 4.01


def test_every_constant_matters_to_some_prediction():
    """A constant that nothing reads would be calibrated in vain."""
    model, cluster = load_model("deepseek-v3"), parse_cluster("8xh200")
    layout = Layout(tp_size=8, ep_size=8, mem_fraction_static=0.8)
    workload = Workload(input_tokens=8192, output_tokens=1024, concurrencies=(1, 64, 256))
    usual = predict(model, cluster, layout, workload)
    for name in type(DEFAULT).__dataclass_fields__:
        moved = predict(model, cluster, layout, workload, replace(DEFAULT, **{name: 1.1 * getattr(DEFAULT, name)}))
        assert moved != usual, name


def kimi_on_eight_rtx(layout: Layout) -> Prediction:
    # The measured workload is not known; 1000 in and 512 out at 256 in flight is near the reported peaks.
    workload = Workload(input_tokens=1000, output_tokens=512, concurrencies=(1, 256))
    answer = predict(load_model("kimi-k2.6"), parse_cluster("8xrtx-pro-6000"), layout, workload)
    assert isinstance(answer, Prediction)
    return answer


def test_kimi_on_eight_pcie_cards_peaks_in_the_measured_order():
    """Measured on eight RTX PRO 6000: TP8 EP8 961 tok/s at its peak, TP8 808, PP8 396."""
    measured = {
        Layout(tp_size=8, ep_size=8, mem_fraction_static=0.94, chunked_prefill_size=8192): 961,
        Layout(tp_size=8, mem_fraction_static=0.94, chunked_prefill_size=8192): 808,
        Layout(pp_size=8, mem_fraction_static=0.94, chunked_prefill_size=8192): 396,
    }
    predicted = {layout: kimi_on_eight_rtx(layout).points[-1].output_tok_per_s for layout in measured}
    assert sorted(predicted, key=predicted.__getitem__) == sorted(measured, key=measured.__getitem__)
    for layout, tok_per_s in measured.items():
        assert predicted[layout] == pytest.approx(tok_per_s, rel=0.25), layout.label


def test_kimi_alone_on_eight_pcie_cards_runs_near_the_measured_speed():
    """Measured at concurrency 1: TP8 EP8 65.3 tok/s, PP8 36.9.

    Plain TP8's 26.3 is left out: no layout term explains it, the all-reduce path of that host does.
    """
    experts = kimi_on_eight_rtx(Layout(tp_size=8, ep_size=8, mem_fraction_static=0.94))
    assert 1 / experts.points[0].tpot_s == pytest.approx(65.3, rel=0.1)
    pipeline = kimi_on_eight_rtx(Layout(pp_size=8, mem_fraction_static=0.94))
    assert 1 / pipeline.points[0].tpot_s == pytest.approx(36.9, rel=0.3)
    assert dict(experts.step.parts)["communication"] > 0
    assert dict(pipeline.step.parts)["communication"] == 0


@pytest.mark.parametrize("name", model_names())
def test_every_model_of_the_catalogue_has_a_time_or_does_not_fit(name):
    model, cluster = load_model(name), parse_cluster("8xb200")
    for asked in (Layout(tp_size=8), Layout(tp_size=4, pp_size=2), Layout(tp_size=8, attn_dp_size=8, ep_size=8)):
        verdict = judge(asked, model, cluster, suggest=False)
        if verdict.violations:
            continue
        predicted = predict(model, cluster, verdict.effective, Workload())
        assert isinstance(predicted, DoesNotFit) or all(point.output_tok_per_s > 0 for point in predicted.points)
