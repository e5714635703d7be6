"""Communication times: points of the measured curves, and laws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.communication import all_reduce_s, all_to_all_s, hop_s
from search_spaces.catalogue import gpu_keys, parse_cluster

MIB = 2**20


@pytest.mark.parametrize(
    ("cluster", "num_ranks", "is_custom_allowed", "microseconds"),
    [
        # github:ai-dynamo/aiconfigurator@095f58a5 (systems/data/*/comm), 1 MiB
        ("8xh200", 8, True, 13.051),  # SGLang's custom all-reduce
        ("8xh200", 8, False, 26.14),  # NCCL
        ("8xb200", 8, True, 14.97),
        ("2xrtx-pro-6000", 2, True, 30.243),
        ("8xrtx-pro-6000", 4, True, 86.1),  # NCCL: no custom all-reduce above two GPUs on PCIe
        ("8xrtx-pro-6000", 8, True, 131.52),
    ],
)
def test_measured_points_are_returned_as_measured(cluster, num_ranks, is_custom_allowed, microseconds):
    seconds = all_reduce_s(parse_cluster(cluster), num_ranks, MIB, is_custom_allowed=is_custom_allowed)
    assert seconds * 1e6 == pytest.approx(microseconds, rel=1e-6)


def test_one_rank_sends_nothing():
    cluster = parse_cluster("8xh200")
    assert all_reduce_s(cluster, 1, MIB) == 0
    assert all_to_all_s(cluster, 1, MIB) == 0


def test_a_second_node_costs_more_than_the_first():
    assert all_reduce_s(parse_cluster("2x8xh200"), 16, MIB) > all_reduce_s(parse_cluster("8xh200"), 8, MIB)
    assert hop_s(parse_cluster("2x8xh200"), MIB) > hop_s(parse_cluster("8xh200"), MIB)


def test_expert_exchange_is_near_what_deepep_reaches():
    # DeepEP 0.5.12 low latency, 8 H200, 256 experts, top 8 of 7168, fp8 dispatch, 128 tokens a rank: 35.1 us
    # to dispatch and 67.7 us to combine (github:ai-dynamo/aiconfigurator@095f58a5).
    cluster = parse_cluster("8xh200")
    sent = 128 * 8 * 7168
    assert all_to_all_s(cluster, 8, sent) * 1e6 == pytest.approx(35.1, rel=0.25)
    assert all_to_all_s(cluster, 8, 2 * sent) * 1e6 == pytest.approx(67.7, rel=0.25)


@given(
    gpu=st.sampled_from(gpu_keys()),
    num_ranks=st.sampled_from([2, 3, 4, 6, 8, 16]),
    sizes=st.tuples(st.floats(1, 2**32), st.floats(1, 2**32)),
    is_custom_allowed=st.booleans(),
)
def test_a_larger_message_never_takes_less_time(gpu, num_ranks, sizes, is_custom_allowed):
    cluster = parse_cluster(f"2x8x{gpu}")
    small, large = (
        all_reduce_s(cluster, num_ranks, size, is_custom_allowed=is_custom_allowed) for size in sorted(sizes)
    )
    assert 0 < small <= large
