"""The expert exchange: DeepEP's measured times, what stands on them, and laws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.exchange import combine, dispatch
from search_spaces.catalogue import gpu_keys, parse_cluster
from search_spaces.sglang.choices import moe_a2a_backends
from search_spaces.sglang.versions import NEWEST

SIZES = st.floats(1, 2**33)
BACKENDS = [backend for backend in moe_a2a_backends(NEWEST) if backend != "none"]


@pytest.mark.parametrize(
    ("gpu", "tokens", "hidden", "top_k", "way", "microseconds"),
    [
        # DeepEP 0.5.12 low latency on 8 GPUs (github:ai-dynamo/aiconfigurator@095f58a5)
        ("h200", 128, 7168, 8, dispatch, 35.1),
        ("h200", 128, 7168, 8, combine, 67.7),
        ("h200", 16, 4096, 6, dispatch, 12.2),
        ("h200", 1024, 2048, 8, combine, 147.3),
        ("b200", 128, 7168, 8, dispatch, 33.0),
        ("b200", 512, 4096, 6, combine, 57.6),
    ],
)
def test_low_latency_is_near_what_deepep_takes_for_each_model(gpu, tokens, hidden, top_k, way, microseconds):
    sent = tokens * top_k * hidden * (1 if way is dispatch else 2)
    curve = way(parse_cluster(f"8x{gpu}"), 8, "deepep", is_low_latency=True)
    assert curve.seconds(sent) * 1e6 == pytest.approx(microseconds, rel=0.15)
    assert curve.is_measured


@pytest.mark.parametrize(
    ("gpu", "tokens", "hidden", "top_k", "way", "microseconds"),
    [
        # Normal mode on 20 SMs, same source
        ("h200", 4096, 7168, 8, dispatch, 494.2),
        ("h200", 4096, 7168, 8, combine, 996.0),
        ("h200", 8192, 4096, 6, dispatch, 533.8),
        ("b200", 2048, 7168, 8, combine, 500.1),
    ],
)
def test_normal_mode_is_near_what_deepep_takes_for_each_model(gpu, tokens, hidden, top_k, way, microseconds):
    copies = 8 * (1 - (7 / 8) ** top_k)
    sent = tokens * copies * hidden * (1 if way is dispatch else 2)
    curve = way(parse_cluster(f"8x{gpu}"), 8, "deepep", is_low_latency=False)
    assert curve.seconds(sent) * 1e6 == pytest.approx(microseconds, rel=0.2)


@pytest.mark.parametrize(
    ("num_nodes", "way", "microseconds"),
    [
        # 128 tokens of 7168 to eight experts (github:deepseek-ai/DeepEP@dd758caf:docs/legacy.md, H800 and 400 Gbit/s)
        (2, dispatch, 118),
        (2, combine, 195),
        (8, dispatch, 173),
        (8, combine, 314),
        (32, dispatch, 194),
        (32, combine, 360),
    ],
)
def test_over_nodes_the_adapters_set_the_pace(num_nodes, way, microseconds):
    cluster = parse_cluster(f"{num_nodes}x8xh100")
    sent = 128 * 8 * 7168 * (1 if way is dispatch else 2)
    curve = way(cluster, cluster.num_gpus, "deepep", is_low_latency=True)
    assert curve.seconds(sent) * 1e6 == pytest.approx(microseconds, rel=0.08)


def test_one_rank_or_no_backend_exchanges_nothing():
    cluster = parse_cluster("8xh200")
    for way in (dispatch, combine):
        assert way(cluster, 1, "deepep", is_low_latency=True) is None
        assert way(cluster, 8, "none", is_low_latency=True) is None


@pytest.mark.parametrize("backend", [b for b in BACKENDS if not b.startswith("deepep")])
def test_other_backends_are_guesses(backend):
    curve = dispatch(parse_cluster("8xh200"), 8, backend, is_low_latency=True)
    assert not curve.is_measured
    assert backend in curve.source


def test_few_tokens_are_faster_in_the_mode_for_few_and_many_in_the_other():
    cluster = parse_cluster("8xh200")
    low, normal = (dispatch(cluster, 8, "deepep", is_low_latency=mode) for mode in (True, False))
    few = 4 * 7168
    assert low.seconds(8 * few) < normal.seconds(5.25 * few)
    many = 8192 * 7168
    assert low.seconds(8 * many) > normal.seconds(5.25 * many)


@given(
    gpu=st.sampled_from(gpu_keys()),
    ranks=st.sampled_from([2, 4, 8, 16]),
    backend=st.sampled_from(BACKENDS),
    is_low_latency=st.booleans(),
    sizes=st.tuples(SIZES, SIZES),
)
def test_a_larger_message_never_takes_less_time(gpu, ranks, backend, is_low_latency, sizes):
    cluster = parse_cluster(f"2x8x{gpu}")
    for way in (dispatch, combine):
        small, large = map(way(cluster, ranks, backend, is_low_latency=is_low_latency).seconds, sorted(sizes))
        assert 0 < small <= large * (1 + 1e-12)


@given(gpu=st.sampled_from(["h100", "h200", "b200"]), is_low_latency=st.booleans(), size=SIZES)
def test_a_second_node_is_never_faster(gpu, is_low_latency, size):
    one, two = (parse_cluster(f"{nodes}x8x{gpu}") for nodes in (1, 2))
    near, far = (dispatch(c, c.num_gpus, "deepep", is_low_latency=is_low_latency) for c in (one, two))
    assert near.seconds(size) <= far.seconds(size) * (1 + 1e-12)
