"""A layout over two nodes, on the simulated engine, for the tests of every kind of node."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.layout import Layout
from search_spaces.sglang.rules import judge
from search_spaces.sglang.versions import NEWEST
from search_spaces.verdict import Stage
from search_spaces.workload import Workload
from tests.waiting import eventually
from tuner.engine import simulated
from tuner.patience import WARM_UP, Patience
from tuner.servers.protocol import Launch, Launcher
from tuner.trial import Trial, TrialResult
from tuner.watcher import Watcher

MODEL = "kimi-k2.6"
CLUSTER = parse_cluster("2x8xh200")
LAYOUT = Layout(tp_size=16, ep_size=16, nnodes=2, mem_fraction_static=0.9)
ENGINE = simulated(CLUSTER, NEWEST, because="a test", clock_scale=600.0)
_STAGES = (*map(str, (Stage.INIT, Stage.WEIGHTS, Stage.KV_POOL, Stage.GRAPHS)), WARM_UP, "ready")
FOLDER_VARIABLE = "LAYOUT_TUNE_TEST_FOLDER"
LOAD = Workload(input_tokens=64, output_tokens=16, concurrencies=(1, 4))


def launch_of(launcher: Launcher, folder: Path, layout: Layout = LAYOUT) -> Launch:
    port = launcher.free_port()
    command = ENGINE.command(layout, model_path=MODEL, host="127.0.0.1", port=port, seed=0)
    return Launch(
        command=command,
        host="127.0.0.1",
        port=port,
        log_path=folder / "server.log",
        env={FOLDER_VARIABLE: str(folder)},
        grace_s=5.0,
    )


def run_trial(
    launcher: Launcher, folder: Path, watcher: Watcher | None = None, command: tuple[str, ...] = ()
) -> TrialResult:
    """command: instead of the simulated server's."""
    trial = Trial(
        engine=ENGINE,
        launcher=launcher,
        workload=LOAD,
        vocab_size=load_model(MODEL).vocab_size,
        seed=0,
        patience=Patience(starting_s=120.0, loaded_s=120.0),
    )
    effective = judge(LAYOUT, load_model(MODEL), CLUSTER, NEWEST, suggest=False).effective
    launch = launch_of(launcher, folder)
    if command:
        launch = replace(launch, command=command)
    result = trial.run(launch, effective, watcher or Watcher())
    assert eventually(lambda: not servers_of(folder))
    return result


def servers_of(folder: Path, node: int | None = None) -> list[psutil.Process]:
    """The simulated servers that a test with this folder has started, on one node or on all."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if words[1:3] != ["-m", "tuner.simulator"] or process.status() == psutil.STATUS_ZOMBIE:
                continue
            rank = int(words[words.index("--node-rank") + 1]) if "--node-rank" in words else 0
            if process.environ().get(FOLDER_VARIABLE, "") == str(folder) and (node is None or node == rank):
                found.append(process)
        except (psutil.Error, ValueError):
            continue
    return found


@dataclass
class KillAt(Watcher):
    """Kills the servers of one node when the trial has come to a stage, or past it."""

    folder: Path
    node: int
    stage: str = "ready"
    is_done: bool = False

    def on_stage(self, stage: str) -> None:
        reached = next((at for at, name in enumerate(_STAGES) if stage.startswith(name)), -1)
        if reached >= _STAGES.index(self.stage) and not self.is_done:
            assert eventually(lambda: servers_of(self.folder, self.node))
            for process in servers_of(self.folder, self.node):
                process.kill()
            self.is_done = True
