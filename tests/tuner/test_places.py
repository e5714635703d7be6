"""Where servers are to run, from the words of the command line."""

from __future__ import annotations

import pytest

from search_spaces.errors import UserError
from tuner import places
from tuner.places import Place
from tuner.server_hosts import Named
from tuner.servers.guarded import GuardedLauncher
from tuner.servers.nodes import NodesLauncher
from tuner.servers.slurm import Allocation
from tuner.servers.wrapped import ContainerLauncher

NOTHING_NAMED = Named(cluster=None, engine_command=None, engine_version=None)


def test_nothing_said_is_this_machine() -> None:
    place = places.check_nodes(places.place_of(None, slurm=False, systemd=False), 1)
    assert (place, place.is_elsewhere) == (Place(), False)
    with places.launcher_at(place) as launcher:
        assert isinstance(launcher, GuardedLauncher)
        assert [host.name for host in launcher.hosts] == [""]
        assert isinstance(places.with_containers(launcher), ContainerLauncher)


@pytest.mark.parametrize(
    ("hosts", "slurm", "systemd", "why"),
    [
        (["a", "a"], False, False, "names a machine twice"),
        (["-oProxyCommand=id"], False, False, "--host is "),
        (["a"], True, False, "--slurm and --host exclude each other"),
        ([], True, True, "--slurm and --systemd exclude each other"),
        ([], True, False, "salloc --nodes"),
    ],
)
def test_words_that_name_no_place_are_refused(
    hosts: list[str], slurm: bool, systemd: bool, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(UserError, match=why):
        places.place_of(hosts, slurm=slurm, systemd=systemd)


@pytest.mark.parametrize(
    ("env", "missing"),
    [
        ({"SLURM_JOB_ID": "1"}, r"\(SLURM_JOB_NODELIST is not set\)"),
        ({"SLURM_JOB_NODELIST": "n1"}, r"\(SLURM_JOB_ID is not set\)"),
        ({"SLURM_JOB_ID": "", "SLURM_JOB_NODELIST": ""}, r"\(SLURM_JOB_ID and SLURM_JOB_NODELIST are not set\)"),
    ],
)
def test_what_an_allocation_lacks_is_named(env: dict[str, str], missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=missing):
        places.place_of([], slurm=True, systemd=False)


def test_there_is_one_machine_for_each_node() -> None:
    two = Place(hosts=("a", "b"))
    assert places.check_nodes(two, 2) == two
    with pytest.raises(UserError, match=r"--host names 2 machines \(a, b\), and the cluster has 1 node"):
        places.check_nodes(two, 1)
    four = Place(slurm=Allocation(job="7", nodes=("n1", "n2", "n3", "n4")))
    assert places.check_nodes(four, 2).names == ("n1", "n2")
    with pytest.raises(UserError, match="job 7 has 4 machines"):
        places.check_nodes(four, 8)


def test_elsewhere_nothing_is_detected() -> None:
    Place().check_named(NOTHING_NAMED, is_simulated=False)
    for place, option in (
        (Place(hosts=("a",)), "--host a"),
        (Place(slurm=Allocation(job="7", nodes=("n",))), "--slurm"),
    ):
        place.check_named(NOTHING_NAMED, is_simulated=True)
        with pytest.raises(UserError, match=f"{option}: nothing is detected .*--cluster and --engine-command"):
            place.check_named(NOTHING_NAMED, is_simulated=False)


def test_several_nodes_end_their_containers_each_by_itself() -> None:
    launcher = NodesLauncher([])
    assert places.with_containers(launcher) is launcher
