"""Matrices as machines of many kinds printed them; each with the public page that shows it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from search_spaces.hardware import Route
from tuner.probe_topology import parse_peer_access, parse_topology, peer_access_of, route_of

MACHINES = json.loads((Path(__file__).parents[1] / "golden" / "nvidia_smi_topology.json").read_text())
NAMES = [machine["machine"] for machine in MACHINES]
CLUSTER_OF_EIGHT = MACHINES[0]


@pytest.mark.parametrize("machine", MACHINES, ids=NAMES)
def test_a_matrix_is_read_as_the_machine_that_printed_it(machine):
    topology = parse_topology(machine["topo"])
    assert topology is not None
    assert topology.gpus == tuple(f"GPU{i}" for i in range(machine["gpus"]))
    assert Counter(link for _, _, link in topology.pairs) == machine["links"]
    assert topology.worst_route == (None if machine["worst"] is None else Route(machine["worst"]))
    assert list(topology.nics) == machine["nics"]
    assert list(topology.nics_beside_gpus) == machine["beside"]
    assert all(topology.links[one, other] == topology.links[other, one] for one, other, _ in topology.pairs)


@pytest.mark.parametrize("machine", [each for each in MACHINES if "p2p" in each], ids=lambda each: each["machine"])
def test_peer_access_is_told_only_where_every_pair_has_it(machine):
    access = parse_peer_access(machine["p2p"])
    gpus = [f"GPU{i}" for i in range(machine["gpus"])]
    assert len(access) == machine["gpus"] * (machine["gpus"] - 1)
    assert peer_access_of(gpus, access) is machine["peer_access"]


def test_an_unknown_pair_leaves_peer_access_unknown_unless_another_pair_lacks_it():
    assert peer_access_of(["GPU0", "GPU1"], {("GPU0", "GPU1"): "OK", ("GPU1", "GPU0"): "U"}) is None
    assert peer_access_of(["GPU0", "GPU1"], {("GPU0", "GPU1"): "NS", ("GPU1", "GPU0"): "U"}) is False
    assert peer_access_of(["GPU0", "GPU1"], {}) is None
    assert peer_access_of(["GPU0"], {}) is None


def test_a_header_that_is_underlined_for_terminals_is_read_alike():
    text = CLUSTER_OF_EIGHT["topo"]
    header, _, rest = text.partition("\n")
    underlined = f"\x1b[4m{header.strip()}\x1b[0m\n{rest}"
    assert parse_topology(underlined) == parse_topology(text)


def test_the_links_of_some_gpus_are_those_of_no_others():
    topology = parse_topology(CLUSTER_OF_EIGHT["topo"])
    assert topology is not None
    some = topology.of([4, 6])
    assert list(some.pairs) == [("GPU4", "GPU6", "NV18")]
    assert some.nics_beside_gpus == ("mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7")


def test_nics_of_two_sockets_are_beside_the_gpus_of_their_own():
    machine = next(each for each in MACHINES if each["nics"] == ["mlx5_bond_0"])
    topology = parse_topology(machine["topo"])
    assert topology is not None
    assert topology.of([4, 5]).nics_beside_gpus == ()
    assert topology.of([0, 1]).worst_route is Route.SWITCH
    assert topology.of([3, 4]).worst_route is Route.SOCKETS


@pytest.mark.parametrize(
    "output",
    [
        "",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
        "Failed to initialize NVML: Driver/library version mismatch\n",
        "\tGPU0\tGPU1\n",
    ],
)
def test_what_is_no_matrix_is_told_from_one(output):
    assert parse_topology(output) is None
    assert parse_peer_access(output) == {}


def test_a_link_that_is_not_known_leaves_the_farthest_route_unknown():
    topology = parse_topology("\tGPU0\tGPU1\nGPU0\t X \tC2C\nGPU1\tC2C\t X \n")
    assert topology is not None
    assert topology.worst_route is None
    assert route_of("NV") is None
