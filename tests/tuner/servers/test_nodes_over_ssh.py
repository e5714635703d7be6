"""`tune` over two machines by ssh, which are two names of this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.ssh_server import Sshd
from tests.waiting import eventually

pytestmark = pytest.mark.services

TUNE = ("--engine", "simulated", "--cluster", "2x8xh200", "--objective", "peak_throughput", "--trials", "1")


def test_a_layout_over_two_hosts_is_measured_and_told_node_by_node(sshd: Sshd, tmp_path: Path) -> None:
    hosts = ("root@127.0.0.1", "root@localhost")
    load = ("--concurrency", "1,8", "--output-tokens", "32", "--confirmations", "0")
    # The simulated server is started by the tuner's Python, which is there on this machine.
    done = subprocess.run(
        [sys.executable, "-m", "tuner", *TUNE, *load, *(word for host in hosts for word in ("--host", host))],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{sshd.program(tmp_path / 'bin')}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert (
        "servers run on root@127.0.0.1, root@localhost; a layout's first node, root@127.0.0.1, answers" in done.stderr
    )
    told = [line for line in done.stdout.splitlines() if "--node-rank" in line]
    assert [line.split("--node-rank ")[1] for line in told] == [f"{i} --dist-init-addr HOST:PORT" for i in (0, 1)]
    (commands,) = tmp_path.glob("mlruns/work/*/*/nodes.txt")
    started = commands.read_text().splitlines()
    assert [line.split(":")[0] for line in started] == list(hosts)
    for name in ("server.log", "server.node1.log", "nodes.txt"):
        assert list(tmp_path.glob(f"mlruns/artifacts/**/{name}")), name
    assert eventually(lambda: not sshd.sessions())


def test_more_hosts_than_nodes_are_refused_before_any_work(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tuner", *TUNE, "--host", "a", "--host", "b", "--host", "c"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "--host names 3 machines (a, b, c), and the cluster has 2 nodes" in done.stderr
    assert not list(tmp_path.iterdir())
