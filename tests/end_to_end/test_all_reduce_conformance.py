"""Which groups get the custom all-reduce: by SGLang's own code, and by this project."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict, dataclass

import pytest

from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.hardware import Cluster, Fabric, LinkKind
from search_spaces.layout import Layout
from search_spaces.sglang.all_reduce import AllReducePath, all_reduce_path
from tests.engine_support.environment import ENVIRONMENT, HERE

pytestmark = pytest.mark.engine

GPUS = {
    LinkKind.NVLINK: {"name": "NVIDIA H200", "sm": 90, "memory_mib": 143771},
    LinkKind.PCIE: {"name": "NVIDIA RTX PRO 6000 Blackwell Server Edition", "sm": 120, "memory_mib": 97887},
}
KEYS = {LinkKind.NVLINK: "h200", LinkKind.PCIE: "rtx-pro-6000"}


@dataclass(frozen=True)
class Case:
    num_ranks: int
    nvlink: bool
    peers: bool
    one_node: bool


CASES = {
    link: [
        Case(num_ranks=ranks, nvlink=link is LinkKind.NVLINK, peers=peers, one_node=one_node)
        for ranks in (2, 3, 4, 6, 7, 8)
        for peers in (True, False)
        for one_node in (True, False)
        if peers or link is LinkKind.PCIE
    ]
    for link in GPUS
}


@pytest.mark.parametrize("link", GPUS)
def test_the_engine_takes_the_custom_all_reduce_where_it_is_said_to(link, engine_python):
    asked = [{"gpu": GPUS[link], **asdict(case)} for case in CASES[link]]
    done = subprocess.run(
        [engine_python, "-W", "ignore", str(HERE / "all_reduce_side.py")],
        input=json.dumps(asked),
        env={**os.environ, **ENVIRONMENT, "SGLANG_USE_CPU_ENGINE": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    taken = json.loads(done.stdout.splitlines()[-1])
    assert dict(zip(CASES[link], taken, strict=True)) == {
        case: _path(KEYS[link], case) is AllReducePath.CUSTOM for case in CASES[link]
    }


def _path(gpu_key: str, case: Case) -> AllReducePath:
    """Of a model that nothing is fused for."""
    gpu = parse_cluster(f"1x{gpu_key}").gpu
    size = case.num_ranks if case.one_node else 1
    cluster = Cluster(
        gpu=gpu,
        gpus_per_node=size,
        num_nodes=case.num_ranks // size,
        fabric=Fabric(source="a case", has_peer_access=case.peers),
    )
    layout = Layout(tp_size=case.num_ranks, nnodes=cluster.num_nodes)
    return all_reduce_path(load_model("mixtral-8x7b"), cluster, layout)
