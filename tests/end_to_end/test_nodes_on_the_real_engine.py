"""The real SGLang over two nodes, which are two places of this machine, on CPUs."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from search_spaces.layout import Layout
from search_spaces.sglang.versions import NEWEST
from search_spaces.workload import Workload
from tests.end_to_end.conftest import TinyCheckpoint
from tests.engine_support.environment import ARGUMENTS, ENVIRONMENT
from tests.tuner.servers.test_nodes import two_boxes
from tuner.engine import Engine
from tuner.outcome import Environment, Measured, Outcome
from tuner.patience import Patience
from tuner.servers.protocol import Launch
from tuner.trial import Trial
from tuner.watcher import Watcher

pytestmark = pytest.mark.engine

VOCABULARY = 2048


def outcome_of(
    engine_python: str, checkpoint: TinyCheckpoint, folder: Path, layout: Layout, watcher: Watcher
) -> Outcome:
    engine = Engine(
        name="sglang",
        version=NEWEST,
        program=(engine_python, "-m", "sglang.launch_server"),
        extra_args=ARGUMENTS,
    )
    launcher = two_boxes()
    port = launcher.free_port()
    trial = Trial(
        engine=engine,
        launcher=launcher,
        workload=Workload(input_tokens=32, output_tokens=8, concurrencies=(1, 2)),
        vocab_size=VOCABULARY,
        seed=0,
        patience=Patience.usual(),
    )
    launch = Launch(
        command=engine.command(layout, model_path=str(checkpoint.folder), host="127.0.0.1", port=port, seed=0),
        host="127.0.0.1",
        port=port,
        log_path=folder / "server.log",
        env=ENVIRONMENT,
        grace_s=60.0,
    )
    outcome = trial.run(launch, layout, watcher).outcome
    assert not ranks_of(checkpoint)
    return outcome


def ranks_of(checkpoint: TinyCheckpoint, *words: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
            if str(checkpoint.folder) in line and process.status() != psutil.STATUS_ZOMBIE and set(words) <= set(line):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_a_layout_over_two_nodes_is_measured(
    engine_python: str, tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    """Attention DP has to be left out: both nodes would bind the ports beside --dist-init-addr, on one machine."""
    layout = Layout(tp_size=2, ep_size=2, nnodes=2)
    outcome = outcome_of(engine_python, tiny_checkpoint, tmp_path, layout, Watcher())
    logs = [(tmp_path / name).read_text(errors="replace") for name in ("server.log", "server.node1.log")]
    assert isinstance(outcome, Measured), (outcome, *(log[-3000:] for log in logs))
    assert [rung.concurrency for rung in outcome.measurement.rungs] == [1, 2]
    assert "Dummy health check server started" in logs[1]


class KillNode1(Watcher):
    """Its processes, one after the other, when all is ready."""

    def __init__(self, checkpoint: TinyCheckpoint) -> None:
        self._checkpoint = checkpoint

    def on_stage(self, stage: str) -> None:
        if stage == "ready":
            for process in ranks_of(self._checkpoint, "--node-rank", "1"):
                process.kill()


def test_a_node_that_is_killed_is_told_from_the_one_that_dies_of_it(
    engine_python: str, tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    layout = Layout(tp_size=2, nnodes=2)
    outcome = outcome_of(engine_python, tiny_checkpoint, tmp_path, layout, KillNode1(tiny_checkpoint))
    assert isinstance(outcome, Environment), (outcome, (tmp_path / "server.log").read_text(errors="replace")[-3000:])
    assert "ended from outside (SIGKILL)" in outcome.cause
    assert "(first node to die: node 1 (box2))" in outcome.cause
