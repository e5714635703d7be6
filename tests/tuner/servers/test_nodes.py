"""One layout over two nodes: two places of this machine."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from search_spaces.layout import Layout
from search_spaces.verdict import Stage
from tests.tuner.servers.two_nodes import LAYOUT, KillAt, launch_of, run_trial, servers_of
from tests.waiting import eventually
from tuner.outcome import Environment, Measured
from tuner.server_control import is_ready
from tuner.servers.guarded import GuardedLauncher
from tuner.servers.host import LOOPBACK, Answer, answer_of, unused_port
from tuner.servers.nodes import (
    COMMANDS_FILE,
    Node,
    NodesLauncher,
    NodesServer,
    command_of,
    files_of,
    log_path_of,
    nodes_of,
)
from tuner.servers.protocol import LaunchError

SILENT = ("-c", "import time; time.sleep(600)")


class Box:
    """This machine under another name, so that it counts as another one."""

    python = sys.executable

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, words: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Answer:
        return answer_of(words, stdin, timeout_s)

    def command(self, words: Sequence[str]) -> list[str]:
        return list(words)

    def free_port(self) -> int:
        return unused_port()

    def reach(self, port: int) -> tuple[str, int]:
        return LOOPBACK, port

    def unreach(self, port: int) -> None:
        pass

    def close(self) -> None:
        pass


SOURCE = """
from tests.tuner.servers.test_nodes import two_boxes
launcher = two_boxes()
"""


def two_boxes() -> NodesLauncher:
    return NodesLauncher([Node(launcher=GuardedLauncher(Box(name)), address=LOOPBACK) for name in ("box1", "box2")])


def test_every_node_gets_its_rank_the_place_to_meet_and_a_port_of_its_own() -> None:
    whole = ("python3", "-m", "sglang.launch_server", "--tp-size", "16", "--nnodes", "2", "--port", "30000", "--x")
    assert nodes_of(whole) == 2
    first = command_of(whole, rank=0, meet="box1:5000", port=30000)
    second = command_of(whole, rank=1, meet="box1:5000", port=31000)
    assert first == (*whole, "--node-rank", "0", "--dist-init-addr", "box1:5000")
    assert shlex.join(second).endswith("--port 31000 --x --node-rank 1 --dist-init-addr box1:5000")
    named = (*whole, "--dist-init-addr", "10.0.0.1:6000")
    assert command_of(named, rank=1, meet="box1:5000", port=1)[-2:] == ("--node-rank", "1")
    assert nodes_of(("sglang", "--nnodes=4")) == 4
    assert nodes_of(("sglang", "--tp-size", "8")) == 1
    assert log_path_of(Path("a/server.log"), 0) == Path("a/server.log")
    assert log_path_of(Path("a/server.log"), 11) == Path("a/server.node11.log")


def test_a_layout_over_two_nodes_is_measured_and_leaves_nothing(tmp_path: Path) -> None:
    result = run_trial(two_boxes(), tmp_path)
    assert isinstance(result.outcome, Measured), (result.outcome, (tmp_path / "server.log").read_text())
    assert [rung.concurrency for rung in result.outcome.measurement.rungs] == [1, 4]
    assert [path.name for path in files_of(tmp_path / "server.log")] == [
        "server.log",
        "server.node1.log",
        COMMANDS_FILE,
    ]
    assert " TP8 EP8]" in (tmp_path / "server.node1.log").read_text()
    first, second = (tmp_path / COMMANDS_FILE).read_text().splitlines()
    assert first.startswith("box1: ")
    assert "--node-rank 0 --dist-init-addr 127.0.0.1:" in first
    assert second.startswith("box2: ")
    assert "--node-rank 1 --dist-init-addr 127.0.0.1:" in second


def test_a_layout_of_one_node_runs_on_the_first_alone(tmp_path: Path) -> None:
    server = two_boxes().start(launch_of(two_boxes(), tmp_path, Layout(tp_size=8, mem_fraction_static=0.9)))
    try:
        assert not isinstance(server, NodesServer)
        assert eventually(lambda: is_ready(server.base_url))
        assert len(servers_of(tmp_path)) == 1
    finally:
        server.stop()


@pytest.mark.parametrize(("node", "name"), [(0, "box1"), (1, "box2")])
@pytest.mark.parametrize("stage", [str(Stage.WEIGHTS), "ready"])
def test_the_first_node_to_die_ends_all_and_is_named(tmp_path: Path, node: int, name: str, stage: str) -> None:
    result = run_trial(two_boxes(), tmp_path, KillAt(tmp_path, node=node, stage=stage))
    outcome = result.outcome
    assert isinstance(outcome, Environment), outcome
    assert outcome.exit_code == 137
    assert f"(first node to die: node {node} ({name}))" in outcome.cause
    assert "ended from outside (SIGKILL)" in outcome.cause
    log = log_path_of(Path("server.log"), node).name
    assert outcome.evidence[0] == f"first node to die: node {node} ({name}), exit code 137; its log is {log}"


BY_ITSELF = """
import sys, time
if sys.argv[sys.argv.index('--node-rank') + 1] == {failing!r}:
    print('[2026-11-30 10:00:01 TP9 EP9] Scheduler hit an exception: Traceback (most recent call last):\\n'
          '  File "x.py", line 1, in f\\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.', flush=True)
else:
    print('[2026-11-30 10:00:02 TP1 EP1] Scheduler hit an exception: Traceback (most recent call last):\\n'
          '  File "x.py", line 1, in f\\nRuntimeError: Connection closed by peer [10.0.0.2]:5000', flush=True)
sys.exit(1)
"""


@pytest.mark.parametrize("failing", [0, 1])
def test_the_log_of_the_node_that_failed_by_itself_tells_the_end(tmp_path: Path, failing: int) -> None:
    launcher = two_boxes()
    launch = launch_of(launcher, tmp_path)
    words = (sys.executable, "-c", BY_ITSELF.format(failing=str(failing)), *launch.command[3:])
    result = run_trial(launcher, tmp_path, command=words)
    assert result.outcome.kind == "out of memory", result.outcome
    assert result.outcome.rank == "TP9 EP9"
    assert f"node {failing} (box{failing + 1})" in result.outcome.cause


def test_a_node_that_cannot_start_leaves_nothing_of_the_others(tmp_path: Path) -> None:
    class Broken(Box):
        def command(self, words: Sequence[str]) -> list[str]:
            return ["sh", "-c", "echo no such python >&2; exit 127"]

    nodes = [Node(launcher=GuardedLauncher(box), address=LOOPBACK) for box in (Box("box1"), Broken("box2"))]
    with pytest.raises(LaunchError, match=r"node 1: .*box2.*no such python"):
        NodesLauncher(nodes).start(launch_of(two_boxes(), tmp_path))
    assert not servers_of(tmp_path)


def test_a_layout_of_more_nodes_than_there_are_is_a_launch_error(tmp_path: Path) -> None:
    launch = launch_of(two_boxes(), tmp_path, LAYOUT.changed(nnodes=4))
    with pytest.raises(LaunchError, match="a layout of 4 nodes cannot be started on 2"):
        two_boxes().start(launch)


def test_both_nodes_are_stopped_at_the_same_time(tmp_path: Path) -> None:
    """A node above 0 takes no SIGTERM for an end of its own: it waits for node 0, and none has to be killed."""
    launcher = two_boxes()
    server = launcher.start(launch_of(launcher, tmp_path))
    parts = server._parts  # type: ignore[attr-defined]
    assert eventually(lambda: all(is_ready(part.base_url) for part in parts))
    server.stop()
    assert (server.exit_code(), server.lost()) == (0, "")
    assert not servers_of(tmp_path)
    # SIGTERM may find node 1 on its way out.
    assert parts[0].exit_code() == 0
    assert parts[1].exit_code() in {0, 128 + signal.SIGTERM}
    server.stop()


KILLED_TUNER = """
import sys, time
from pathlib import Path
from search_spaces.verdict import Stage
from tests.tuner.servers.two_nodes import launch_of
from tests.waiting import eventually
{source}
folder = Path({folder!r})
server = launcher.start(launch_of(launcher, folder))
print('started', flush=True)
time.sleep(600)
"""


def killed_tuner_leaves(source: str, folder: Path, env: dict[str, str] | None = None) -> None:
    """Starts two nodes by a tuner, kills it by SIGKILL, and claims that nothing is left."""
    code = KILLED_TUNER.format(source=source, folder=str(folder))
    root = Path(__file__).parents[3]
    tuner = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=root, env=env
    )
    try:
        assert tuner.stdout is not None
        assert tuner.stdout.readline() == "started\n"
        assert eventually(lambda: len(servers_of(folder)) == 2)
    finally:
        tuner.send_signal(signal.SIGKILL)
        tuner.communicate()
    assert eventually(lambda: not servers_of(folder), 100.0)


def test_a_tuner_killed_by_sigkill_leaves_no_node(tmp_path: Path) -> None:
    killed_tuner_leaves(SOURCE, tmp_path)
