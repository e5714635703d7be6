"""What measured points do to predictions: laws of conditioning, and factors that are found again."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cost_models.calibration import NO_CALIBRATION, Observation, calibrate
from cost_models.estimate import predict, predict_all, predict_for_comparison
from cost_models.prediction import Prediction
from cost_models.setting import Setting
from cost_models.uncertainty import Z
from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.layout import Layout
from search_spaces.workload import Workload

MODEL, CLUSTER = load_model("qwen3-235b-a22b-fp8"), parse_cluster("8xh200")
WORKLOAD = Workload(concurrencies=(1, 4, 16, 64, 128))
TP8 = Layout(tp_size=8, mem_fraction_static=0.85, chunked_prefill_size=8192)
EP8 = Layout(tp_size=8, ep_size=8, mem_fraction_static=0.85, chunked_prefill_size=8192)
ADP8 = Layout(tp_size=8, attn_dp_size=8, ep_size=8, mem_fraction_static=0.85, chunked_prefill_size=8192)


def predicted(layout, calibration=NO_CALIBRATION) -> Prediction:
    answer = predict(MODEL, CLUSTER, layout, WORKLOAD, calibration=calibration)
    assert isinstance(answer, Prediction)
    return answer


def observed(layout, factor, concurrencies=(1, 128), *, ttft=True):
    """As if `layout` ran `factor` times as slow as predicted."""
    return [
        Observation(
            layout=layout,
            concurrency=point.concurrency,
            tpot_s=factor * point.tpot_s,
            ttft_s=factor * point.ttft_s if ttft else None,
        )
        for point in predicted(layout).points
        if point.concurrency in concurrencies
    ]


def calibrated(layout, observations):
    return predicted(layout, calibrate(MODEL, CLUSTER, WORKLOAD, observations))


@given(factor=st.floats(0.5, 2))
def test_two_points_of_a_layout_fix_its_factor_at_every_concurrency(factor):
    before, after = predicted(TP8), calibrated(TP8, observed(TP8, factor))
    for old, new in zip(before.points, after.points, strict=True):
        assert math.log(new.tpot_s / old.tpot_s) == pytest.approx(
            math.log(factor), abs=0.12 * abs(math.log(factor)) + 1e-9
        )
        assert new.tpot_interval_s.factor < old.tpot_interval_s.factor
        assert new.ttft_interval_s.factor < old.ttft_interval_s.factor


@given(factor=st.floats(0.5, 2))
def test_other_layouts_of_the_campaign_follow_as_far_as_they_are_alike(factor):
    seen = observed(TP8, factor)
    moved = {
        name: math.log(calibrated(layout, seen).points[2].tpot_s / predicted(layout).points[2].tpot_s)
        for name, layout in (("TP8", TP8), ("EP8", EP8), ("ADP8", ADP8))
    }
    assume(abs(factor - 1) > 1e-3)
    shares = {name: value / math.log(factor) for name, value in moved.items()}
    assert 1 >= shares["TP8"] > shares["EP8"] > 0.5
    assert shares["TP8"] > shares["ADP8"] > 0.5


def test_what_is_learnt_of_an_unproven_trait_narrows_all_that_have_it():
    other = Layout(tp_size=8, attn_dp_size=4, ep_size=8, mem_fraction_static=0.85, chunked_prefill_size=8192)
    plain, seen = observed(TP8, 1.0), observed(ADP8, 2.0)
    unproven, proven = (calibrated(other, some).points[2] for some in (plain, plain + seen))
    assert proven.tpot_interval_s.factor < 0.8 * unproven.tpot_interval_s.factor
    assert proven.tpot_s > 1.5 * unproven.tpot_s


@given(
    factors=st.lists(st.floats(0.95, 1.05), min_size=1, max_size=4),
    concurrencies=st.sets(st.sampled_from(WORKLOAD.concurrencies), min_size=1),
)
def test_more_measurements_that_do_not_surprise_never_widen_an_interval(factors, concurrencies):
    layouts = [TP8, EP8, ADP8, Layout(tp_size=4, pp_size=2, mem_fraction_static=0.85, chunked_prefill_size=8192)]
    seen = []
    width = predicted(EP8).points[1].tpot_interval_s.factor
    for layout, factor in zip(layouts, factors, strict=False):
        seen += observed(layout, factor, concurrencies)
        narrower = calibrated(EP8, seen).points[1].tpot_interval_s.factor
        assert narrower <= width * 1.0001  # one beside others that agree better is no reason to be surer
        width = narrower


def test_a_measurement_that_surprises_leaves_others_wider_than_one_that_does_not():
    expected, surprising = (calibrated(EP8, observed(TP8, factor, (1,))).points[1] for factor in (1.0, 3.0))
    assert surprising.tpot_interval_s.factor > 1.2 * expected.tpot_interval_s.factor


def test_what_has_no_messages_says_nothing_of_the_link():
    """A pipeline of single GPUs measured as predicted must not widen what is known of tensor parallelism."""
    model, cluster = load_model("kimi-k2.6"), parse_cluster("8xrtx-pro-6000")
    pipeline = Layout(pp_size=8, mem_fraction_static=0.9, chunked_prefill_size=8192)
    plain = replace(TP8, mem_fraction_static=0.9)
    as_predicted = [
        Observation(layout=pipeline, concurrency=point.concurrency, tpot_s=point.tpot_s)
        for point in predict(model, cluster, pipeline, WORKLOAD).points
    ]
    seen = calibrate(model, cluster, WORKLOAD, as_predicted)
    for before, after in zip(
        predict(model, cluster, plain, WORKLOAD).points,
        predict(model, cluster, plain, WORKLOAD, calibration=seen).points,
        strict=True,
    ):
        assert before.tpot_interval_s.low <= after.tpot_interval_s.low
        assert after.tpot_interval_s.high <= before.tpot_interval_s.high


def test_on_a_slow_link_one_layout_says_little_of_another_and_of_other_loads():
    """The opening story: TP8 measured alone at 26 tokens/s must not rule out what TP8 EP8 was measured at."""
    model, cluster = load_model("kimi-k2.6"), parse_cluster("8xrtx-pro-6000")
    layouts = [replace(layout, mem_fraction_static=0.9) for layout in (TP8, EP8)]
    seen = calibrate(model, cluster, WORKLOAD, [Observation(layout=layouts[0], concurrency=1, tpot_s=1 / 26.3)])
    plain, experts = predict_all(model, cluster, layouts, WORKLOAD, calibration=seen)
    assert plain.points[0].tpot_s == pytest.approx(1 / 26.3, rel=0.05)
    for answer, alone, peak in ((plain, 26.3, 808), (experts, 65.3, 961)):
        assert alone in answer.points[0].output_tok_per_s_interval
        assert peak in answer.peak.output_tok_per_s_interval


def test_the_memory_fraction_does_not_make_another_layout():
    other = Layout(tp_size=8, mem_fraction_static=0.8, chunked_prefill_size=8192)
    after = calibrated(other, observed(TP8, 1.5))
    assert after.points[0].tpot_s / predicted(other).points[0].tpot_s == pytest.approx(1.5, rel=0.03)


def test_times_to_first_token_are_learnt_only_from_their_own():
    after = calibrated(TP8, observed(TP8, 1.5, ttft=False))
    assert after.points[0].ttft_s == predicted(TP8).points[0].ttft_s
    assert after.points[0].ttft_interval_s == predicted(TP8).points[0].ttft_interval_s


def test_repeats_of_a_point_count_as_their_mean():
    slow, fast = observed(TP8, 1.4), observed(TP8, 1 / 1.4)
    assert predicted(TP8, calibrate(MODEL, CLUSTER, WORKLOAD, slow + fast)).points[0].tpot_s == pytest.approx(
        predicted(TP8).points[0].tpot_s
    )


def test_what_two_layouts_have_in_common_falls_out_of_their_ratio():
    one, other, unproven = predict_for_comparison(MODEL, CLUSTER, (TP8, EP8, ADP8), WORKLOAD)

    def apart(a, b, calibration=NO_CALIBRATION):
        return calibration.ratio_deviation(a[1], 2, b[1], 2)

    alone = math.log(one[0].points[2].tpot_interval_s.factor) / Z
    assert apart(one, one) < apart(one, other) < alone
    assert apart(one, other) == pytest.approx(apart(other, one))
    # Attention data parallelism is not proven, and nothing of it falls out.
    assert apart(one, unproven) > alone
    seen = calibrate(MODEL, CLUSTER, WORKLOAD, observed(TP8, 1.2, (16,)) + observed(ADP8, 1.4, (16,)))
    assert apart(one, unproven, seen) < apart(one, unproven)


def test_nothing_measured_changes_nothing():
    assert predicted(TP8, calibrate(MODEL, CLUSTER, WORKLOAD, [])) == predicted(TP8)


def test_measurements_of_one_point_that_contradict_each_other_make_it_less_sure_not_more():
    point = predicted(TP8).points[0]
    both = [replace(observed(TP8, factor, (1,))[0], ttft_s=None) for factor in (1.0, 10.0)]
    after = calibrated(TP8, both).points[0]
    for seen in both:
        assert seen.tpot_s in after.tpot_interval_s
    assert after.tpot_interval_s.factor > point.tpot_interval_s.factor


def test_repeats_that_agree_say_more_than_one_measurement():
    one, many = (calibrated(TP8, observed(TP8, 1.1, (16,)) * count).points[2] for count in (1, 8))
    assert many.tpot_interval_s.factor < one.tpot_interval_s.factor


def test_another_way_of_the_all_reduces_is_another_launch():
    """Measured with NCCL at 38 ms says little of what SGLang's own all-reduce over PCIe would do."""
    model, cluster = load_model("kimi-k2.6"), parse_cluster("8xrtx-pro-6000")
    plain = replace(TP8, mem_fraction_static=0.9)
    ipc = Setting(environment=(("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE", "1"),))
    slow = Observation(layout=plain, concurrency=1, tpot_s=0.0384)
    seen = calibrate(model, cluster, WORKLOAD, [slow])
    before, same, other = (
        predict(model, cluster, plain, WORKLOAD, calibration=known, setting=setting).points[0]
        for known, setting in ((NO_CALIBRATION, ipc), (seen, Setting()), (seen, ipc))
    )
    assert same.tpot_s == pytest.approx(0.0384, rel=0.05)
    assert other.tpot_s < 1.7 * before.tpot_s < same.tpot_s
    with_ipc = calibrate(model, cluster, WORKLOAD, [replace(slow, environment=ipc.environment)])
    told, untold = (
        predict(model, cluster, plain, WORKLOAD, calibration=with_ipc, setting=setting).points[0]
        for setting in (ipc, Setting())
    )
    assert told.tpot_s == pytest.approx(0.0384, rel=0.05)
    assert untold.tpot_interval_s.factor > 1.3 * told.tpot_interval_s.factor


@given(share=st.floats(0.7, 1.0))
def test_rates_of_short_runs_are_predicted_as_such_runs_measure_them(share):
    """A run of few requests ends with stragglers, so its rate is below that of a steady state with the same times."""
    steady = [
        replace(seen, output_tok_per_s=point.output_tok_per_s * (1.0 if point.concurrency == 1 else share))
        for seen, point in zip(observed(TP8, 1.0), (predicted(TP8).points[0], predicted(TP8).points[-1]), strict=True)
    ]
    before, after = predicted(EP8), calibrated(EP8, steady)
    assert after.points[0].output_tok_per_s == pytest.approx(before.points[0].output_tok_per_s, rel=1e-3)
    assert after.points[-1].output_tok_per_s == pytest.approx(share * before.points[-1].output_tok_per_s, rel=1e-3)
    assert after.points[-1].tpot_s == pytest.approx(before.points[-1].tpot_s, rel=1e-3)


def test_a_wait_for_a_place_says_nothing_of_prefill():
    """Of a time to first token that is mostly a wait for others' tokens."""
    model, cluster = load_model("kimi-k2.6"), parse_cluster("8xrtx-pro-6000")
    crowded = replace(TP8, mem_fraction_static=0.9)
    load = replace(WORKLOAD, concurrencies=(1, 512))
    before = predict(model, cluster, crowded, load)
    seen = Observation(
        layout=crowded, concurrency=512, tpot_s=before.points[1].tpot_s, ttft_s=3 * before.points[1].ttft_s
    )
    after = predict(model, cluster, crowded, load, calibration=calibrate(model, cluster, load, [seen]))
    assert after.points[0].ttft_s == before.points[0].ttft_s


def test_a_rate_says_little_of_other_concurrencies_and_less_of_other_layouts():
    """Two layouts measured with the same times as predicted: one at its steady rate, one at 0.6 of it, at 64 at once."""
    places = {point.concurrency: place for place, point in enumerate(predicted(TP8).points)}

    def seen(layout, share):
        rate = share * predicted(layout).points[places[64]].output_tok_per_s
        return replace(observed(layout, 1.0, (64,))[0], output_tok_per_s=rate)

    both = [seen(TP8, 1.0), seen(EP8, 0.6)]
    for layout, share in ((TP8, 1.0), (EP8, 0.6)):
        before, after = predicted(layout).points, calibrated(layout, both).points
        assert after[places[64]].output_tok_per_s == pytest.approx(
            share * before[places[64]].output_tok_per_s, rel=1e-6
        )
        assert after[0].output_tok_per_s == pytest.approx(before[0].output_tok_per_s, rel=0.02)
    other = calibrated(Layout(tp_size=4, dp_size=2, mem_fraction_static=0.85, chunked_prefill_size=8192), both)
    at, alone = other.points[places[64]], calibrated(EP8, both).points[0]
    assert at.output_tok_per_s_interval.factor > 1.5 * at.tpot_interval_s.factor
    assert alone.output_tok_per_s_interval.factor > 1.5 * alone.tpot_interval_s.factor


def test_rates_that_follow_from_their_times_change_nothing():
    """Also where repeats contradict each other."""
    times = observed(TP8, 0.7, (64,)) + observed(TP8, 1.4, (64,)) + observed(TP8, 1.0, (1,))
    without = calibrated(TP8, times)
    rate = {point.concurrency: point.output_tok_per_s for point in without.points}
    rated = [replace(each, output_tok_per_s=rate[each.concurrency]) for each in times]
    after = calibrated(TP8, rated)
    for old, new in zip(without.points, after.points, strict=True):
        assert new.output_tok_per_s == pytest.approx(old.output_tok_per_s)
        assert new.output_tok_per_s_interval.factor == pytest.approx(old.output_tok_per_s_interval.factor)
