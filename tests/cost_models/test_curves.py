"""Curves over message sizes: the grid, what lies off it, and many at once."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.curves import (
    NUM_POINTS,
    SIZES_BYTES,
    Curve,
    CurveTable,
    analytic,
    geometric_mean,
    joined,
    measured,
    slower_of,
    sum_of,
)

RISING = st.lists(st.floats(-20, 10), min_size=NUM_POINTS, max_size=NUM_POINTS).map(sorted)
CURVES = st.builds(lambda log2_s: Curve(log2_s=tuple(log2_s), is_measured=True, source="drawn"), RISING)
SIZES = st.floats(0, 2**34)


def line(start_s, bytes_per_s):
    return analytic(lambda size: start_s + size / bytes_per_s, "a line")


@given(curve=CURVES, place=st.integers(0, NUM_POINTS - 1))
def test_a_curve_passes_through_its_points(curve, place):
    assert curve.seconds(SIZES_BYTES[place]) == pytest.approx(2.0 ** curve.log2_s[place])


@given(curve=CURVES, sizes=st.tuples(SIZES, SIZES))
def test_a_larger_message_never_takes_less_time(curve, sizes):
    small, large = map(curve.seconds, sorted(sizes))
    assert 0 <= small <= large * (1 + 1e-12)


@given(curve=CURVES)
def test_nothing_takes_no_time_and_little_as_much_as_the_smallest_message(curve):
    assert curve.seconds(0) == 0
    assert curve.seconds(1) == curve.seconds(SIZES_BYTES[0])


@given(
    curves=st.lists(st.none() | CURVES, min_size=1, max_size=5),
    places=st.lists(st.tuples(st.integers(0, 4), SIZES), min_size=1, max_size=20),
)
def test_a_table_says_what_its_curves_say(curves, places):
    index = np.array([place % len(curves) for place, _ in places])
    sizes = np.array([size for _, size in places])
    single = [
        0.0 if (curve := curves[i]) is None else curve.seconds(size) for i, size in zip(index, sizes, strict=True)
    ]
    assert CurveTable(curves).seconds(index, sizes) == pytest.approx(single, rel=1e-9)


def test_a_table_broadcasts_curves_against_sizes():
    table = CurveTable([line(1e-5, 1e9), None, line(1e-6, 1e10)])
    found = table.seconds(np.array([[0], [1], [2]]), np.array([1024.0, 2.0**20]))
    assert found.shape == (3, 2)
    assert found[1].tolist() == [0, 0]
    assert found[2, 1] == pytest.approx(line(1e-6, 1e10).seconds(2**20))


def test_measured_sizes_are_returned_as_measured_on_the_grid_and_off_it():
    curve = measured([1000, 4096, 65536], [10e-6, 12e-6, 20e-6], "here")
    assert curve.seconds(4096) == pytest.approx(12e-6)
    assert curve.seconds(16384) == pytest.approx(math.sqrt(12e-6 * 20e-6))
    assert curve.seconds(256) == pytest.approx(10e-6)
    assert curve.is_measured


def test_a_hiccup_is_lowered_to_what_larger_messages_took():
    curve = measured([256, 512, 1024], [5e-6, 40e-6, 6e-6], "here")
    assert curve.seconds(512) == pytest.approx(6e-6)


def test_beyond_what_was_measured_a_curve_follows_its_shape():
    shape = line(10e-6, 10e9)
    curve = measured([1024, 4096], [20e-6, 20e-6], "here", shape=shape)
    assert curve.seconds(2**30) == pytest.approx(20e-6 * shape.seconds(2**30) / shape.seconds(4096))
    # Without one, along the last slope: here that is flat.
    assert measured([1024, 4096], [20e-6, 20e-6], "here").seconds(2**30) == pytest.approx(20e-6)


@pytest.mark.parametrize(
    ("sizes", "seconds", "text"),
    [
        ([], [], "0 sizes and 0 times"),
        ([1024, 2048], [1e-6], "2 sizes and 1 times"),
        ([2048, 1024], [1e-6, 2e-6], "must rise"),
        ([0, 1024], [1e-6, 2e-6], "must rise"),
        ([1024], [0.0], "positive and finite"),
        ([1024], [math.inf], "positive and finite"),
        ([1024], [math.nan], "positive and finite"),
    ],
)
def test_what_cannot_be_measured_is_refused(sizes, seconds, text):
    with pytest.raises(ValueError, match=text):
        measured(sizes, seconds, "here")


def test_one_implementation_hands_over_to_another():
    small, large = line(1e-6, 1e9), line(5e-6, 100e9)
    both = joined(small, 2**20, large)
    assert both.seconds(4096) == small.seconds(4096)
    assert both.seconds(2**24) == small.seconds(2**20)
    assert both.seconds(2**28) == large.seconds(2**28)


@given(one=CURVES, other=CURVES, size=st.sampled_from(SIZES_BYTES))
def test_curves_combine_as_their_times_do(one, other, size):
    a, b = one.seconds(size), other.seconds(size)
    assert slower_of(one, other).seconds(size) == pytest.approx(max(a, b))
    assert sum_of(one, other).seconds(size) == pytest.approx(a + b)
    assert geometric_mean([one, other], "both").seconds(size) == pytest.approx(math.sqrt(a * b))
