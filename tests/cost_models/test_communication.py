"""Communication times: points of the measured curves, what a machine's own measurements change, and laws."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.communication import all_gather, all_reduce, hop, path_uncertainty, reduce_scatter
from cost_models.curves import measured
from cost_models.measured_links import hosts
from search_spaces.catalogue import gpu_keys, parse_cluster
from search_spaces.hardware import CollectiveOp, Fabric, MeasuredCurve, Route
from search_spaces.sglang.all_reduce import AllReducePath

KIB, MIB, GIB = 2**10, 2**20, 2**30
CUSTOM, NCCL, PCIE_IPC = AllReducePath.CUSTOM, AllReducePath.NCCL, AllReducePath.PCIE_IPC

GPUS = st.sampled_from(gpu_keys())
PATHS = st.sampled_from(AllReducePath)
SIZES = st.floats(1, 2**33)


def on(cluster, **fabric):
    return replace(parse_cluster(cluster), fabric=Fabric(source="nvidia-smi", **fabric))


@pytest.mark.parametrize(
    ("cluster", "num_ranks", "path", "size_bytes", "microseconds"),
    [
        # github:ai-dynamo/aiconfigurator@095f58a5 (systems/data/*/comm)
        ("8xh200", 8, CUSTOM, MIB, 13.051),
        ("8xh200", 8, NCCL, MIB, 26.14),
        ("8xb200", 8, CUSTOM, MIB, 14.97),
        ("2xrtx-pro-6000", 2, CUSTOM, MIB, 30.243),
        ("8xrtx-pro-6000", 4, NCCL, MIB, 86.1),
        ("8xrtx-pro-6000", 8, NCCL, MIB, 131.52),
        # No custom all-reduce above two GPUs on PCIe, and none above 16 MiB anywhere.
        ("8xrtx-pro-6000", 8, CUSTOM, MIB, 131.52),
        ("8xh200", 8, CUSTOM, 64 * MIB, 319.63),
        # sglang@v0.5.23 device_communicators/pcie_ipc_ar.py:16, one host of eight cards
        ("8xrtx-pro-6000", 8, PCIE_IPC, 12 * KIB, 5.3),
    ],
)
def test_measured_all_reduces_are_returned_as_measured(cluster, num_ranks, path, size_bytes, microseconds):
    curve = all_reduce(parse_cluster(cluster), num_ranks, path)
    # 12 KiB lie between two points of the grid.
    assert curve.seconds(size_bytes) * 1e6 == pytest.approx(microseconds, rel=1e-6 if path is not PCIE_IPC else 0.1)
    assert curve.is_measured


@pytest.mark.parametrize(
    ("collective", "microseconds"), [(all_gather, 16.96), (reduce_scatter, 14.41)], ids=["gather", "scatter"]
)
def test_measured_gathers_and_scatters_are_returned_as_measured(collective, microseconds):
    # NCCL 2.29.2 over 8 H200, 1 MiB in all, same source
    assert collective(parse_cluster("8xh200"), 8).seconds(MIB) * 1e6 == pytest.approx(microseconds, rel=1e-6)


def test_an_all_gather_cannot_beat_the_link():
    # 512 MiB over 8 H200: 7/8 of them come in over 450 GB/s.
    cluster = parse_cluster("8xh200")
    assert all_gather(cluster, 8).seconds(512 * MIB) > 7 / 8 * 512 * MIB / cluster.gpu.link_bytes_per_s


@pytest.mark.parametrize("path", AllReducePath)
def test_one_rank_sends_nothing(path):
    cluster = parse_cluster("8xh200")
    assert all_reduce(cluster, 1, path) is None
    assert all_gather(cluster, 1) is None
    assert reduce_scatter(cluster, 1) is None
    assert path_uncertainty(path, cluster, 1) == 0


@pytest.mark.parametrize("path", [AllReducePath.FLASHINFER_FUSION, AllReducePath.MSCCLPP, AllReducePath.TORCH_SYMM_MEM])
def test_paths_that_nobody_measured_stand_on_the_custom_all_reduce_as_a_guess(path):
    cluster = parse_cluster("8xh200")
    guess = all_reduce(cluster, 8, path)
    assert guess.seconds(14 * KIB) == all_reduce(cluster, 8, CUSTOM).seconds(14 * KIB)
    assert not guess.is_measured
    assert path.value in guess.source
    assert path_uncertainty(path, cluster, 8) > path_uncertainty(CUSTOM, cluster, 8)


def test_groups_and_cards_that_were_not_measured_are_guesses():
    assert all_reduce(parse_cluster("8xh200"), 8, NCCL).is_measured
    assert not all_reduce(parse_cluster("8xh200"), 3, NCCL).is_measured
    assert not all_reduce(parse_cluster("8xrtx-5090"), 8, NCCL).is_measured
    assert not all_reduce(parse_cluster("2x4xgb200"), 8, NCCL).is_measured


def test_a_rack_with_one_nvlink_switch_is_no_network():
    rack = all_reduce(parse_cluster("2x4xgb200"), 8, CUSTOM)
    assert rack.seconds(MIB) == pytest.approx(all_reduce(parse_cluster("8xb200"), 8, CUSTOM).seconds(MIB))
    assert all_reduce(parse_cluster("20x4xgb200"), 80, NCCL).seconds(MIB) > 2 * rack.seconds(MIB)


def test_a_second_node_costs_more_than_the_first():
    one, two, four = (parse_cluster(f"{nodes}x8xh200") for nodes in (1, 2, 4))
    for collective in (all_reduce, all_gather, reduce_scatter):
        times = [collective(c, c.num_gpus).seconds(MIB) for c in (one, two, four)]
        assert times == sorted(set(times))
    assert hop(two, crosses_nodes=True).seconds(MIB) > hop(two, crosses_nodes=False).seconds(MIB)


def test_a_slower_adapter_makes_crossing_nodes_slower():
    usual, slow = parse_cluster("2x8xh200"), on("2x8xh200", nic_bytes_per_s=10e9)
    assert all_reduce(slow, 16).seconds(64 * MIB) > all_reduce(usual, 16).seconds(64 * MIB)
    assert all_reduce(slow, 8).seconds(64 * MIB) == all_reduce(usual, 8).seconds(64 * MIB)
    assert hop(slow, crosses_nodes=True).seconds(MIB) > hop(usual, crosses_nodes=True).seconds(MIB)


def test_hosts_of_a_known_topology_are_as_fast_as_such_hosts_were():
    # NCCL over eight cards at 32 KiB: 24.5 us behind switches; 48 and about 336 us on hosts of two sockets.
    told = {route: all_reduce(on("8xrtx-pro-6000", route=route), 8).seconds(32 * KIB) * 1e6 for route in Route}
    assert told[Route.SWITCH] == pytest.approx(24.5, rel=0.02)
    assert told[Route.SOCKETS] == pytest.approx(math.sqrt(48.16 * 336), rel=0.05)
    assert told[Route.ROOT] == all_reduce(parse_cluster("8xrtx-pro-6000"), 8).seconds(32 * KIB) * 1e6


def test_without_peer_access_every_byte_takes_the_link_twice():
    for cluster in ("2xrtx-pro-6000", "8xrtx-pro-6000"):
        peers, apart = parse_cluster(cluster), on(cluster, has_peer_access=False)
        ranks = peers.num_gpus
        assert all_reduce(apart, ranks).seconds(GIB) > 1.5 * all_reduce(peers, ranks).seconds(GIB)
        assert hop(apart, crosses_nodes=False).seconds(GIB) > 1.5 * hop(peers, crosses_nodes=False).seconds(GIB)


def probed(backend="nccl", op=CollectiveOp.ALL_REDUCE, num_ranks=8, scale=2.0):
    base = all_reduce(parse_cluster("8xrtx-pro-6000"), 8)
    sizes = tuple(2**i for i in range(10, 24, 2))
    return MeasuredCurve(
        op=op,
        backend=backend,
        num_ranks=num_ranks,
        size_bytes=sizes,
        seconds=tuple(scale * base.seconds(size) for size in sizes),
    )


def test_what_was_measured_here_wins_over_what_is_bundled():
    usual, here = parse_cluster("8xrtx-pro-6000"), on("8xrtx-pro-6000", route=Route.SWITCH, curves=(probed(),))
    for size in (16 * KIB, MIB, 512 * MIB):
        assert all_reduce(here, 8).seconds(size) == pytest.approx(2 * all_reduce(usual, 8).seconds(size), rel=1e-6)
    assert all_reduce(here, 8).is_measured
    assert "measured here" in all_reduce(here, 8).source
    # A smaller group takes it as well, a gather does not.
    assert all_reduce(here, 4).seconds(MIB) == pytest.approx(all_reduce(here, 8).seconds(MIB))
    assert all_gather(here, 8).seconds(MIB) == all_gather(on("8xrtx-pro-6000", route=Route.SWITCH), 8).seconds(MIB)


def test_a_measured_custom_all_reduce_changes_that_path_alone():
    here = on("8xh200", curves=(probed(backend="custom"),))
    usual = parse_cluster("8xh200")
    assert all_reduce(here, 8, CUSTOM).seconds(MIB) == pytest.approx(2 * 131.52e-6)
    assert all_reduce(here, 8, NCCL).seconds(MIB) == all_reduce(usual, 8, NCCL).seconds(MIB)


def test_a_measured_hop_is_taken():
    here = on("8xrtx-pro-6000", curves=(probed(op=CollectiveOp.SEND_RECV, num_ranks=2),))
    assert hop(here, crosses_nodes=False).seconds(MIB) == pytest.approx(2 * 131.52e-6)


def test_hosts_differ_most_where_more_than_two_cards_share_pcie():
    def spread(cluster, num_ranks, path=NCCL):
        return path_uncertainty(path, cluster, num_ranks)

    nvlink, pcie = parse_cluster("8xh200"), parse_cluster("8xrtx-pro-6000")
    assert spread(nvlink, 8, CUSTOM) < spread(pcie, 2, CUSTOM) < spread(parse_cluster("2x8xh200"), 16) < spread(pcie, 8)
    assert spread(on("8xrtx-pro-6000", route=Route.SWITCH), 8) < spread(pcie, 8)
    assert spread(on("8xrtx-pro-6000", curves=(probed(),)), 8) < spread(on("8xrtx-pro-6000", route=Route.SWITCH), 8)


def test_the_spread_over_pcie_is_that_of_the_published_hosts():
    bundled = all_reduce(parse_cluster("8xrtx-pro-6000"), 8)
    token = 7168 * 2
    others = [
        measured(*host.series["all_reduce"], host.source, shape=bundled).seconds(token)
        for host in hosts("rtx-pro-6000")
    ]
    squares = [math.log(seconds / bundled.seconds(token)) ** 2 for seconds in (*others, bundled.seconds(token))]
    spread = math.sqrt(sum(squares) / len(squares))
    assert path_uncertainty(NCCL, parse_cluster("8xrtx-pro-6000"), 8) == pytest.approx(spread, abs=0.03)


@given(gpu=GPUS, num_ranks=st.sampled_from([2, 3, 4, 6, 8, 16]), sizes=st.tuples(SIZES, SIZES), path=PATHS)
def test_a_larger_message_never_takes_less_time(gpu, num_ranks, sizes, path):
    cluster = parse_cluster(f"2x8x{gpu}")
    for curve in (all_reduce(cluster, num_ranks, path), all_gather(cluster, num_ranks)):
        small, large = map(curve.seconds, sorted(sizes))
        assert 0 < small <= large * (1 + 1e-12)
        assert math.isfinite(large)


@given(size=SIZES, num_ranks=st.tuples(st.integers(2, 16), st.integers(2, 16)))
def test_where_nothing_was_measured_more_ranks_are_never_faster(size, num_ranks):
    cluster = parse_cluster("16xrtx-5090")
    few, many = (all_reduce(cluster, n).seconds(size) for n in sorted(num_ranks))
    assert few <= many * (1 + 1e-12)


@given(gpu=GPUS, size=SIZES, nodes=st.tuples(st.integers(2, 16), st.integers(2, 16)))
def test_more_nodes_are_never_faster(gpu, size, nodes):
    few, many = (all_reduce(parse_cluster(f"{n}x8x{gpu}"), 8 * n).seconds(size) for n in sorted(nodes))
    assert few <= many * (1 + 1e-12)
