"""`tune` with the real SGLang on CPUs: several layouts tried, one refused by the engine, one killed from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import psutil
import pytest

from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.space import Candidate, Space, enumerate_space
from search_spaces.workload import Workload
from tests.end_to_end.conftest import TinyCheckpoint
from tests.engine_support.environment import ARGUMENTS, ENVIRONMENT
from tuner import asking, main_job
from tuner.objective import Objective
from tuner.patience import Patience
from tuner.request import Request
from tuner.servers.local import LocalLauncher, LocalServer
from tuner.servers.orphans import OWNER_VARIABLE
from tuner.servers.protocol import Launch

pytestmark = pytest.mark.engine

WORKLOAD = Workload(input_tokens=32, output_tokens=16, concurrencies=(1, 4))
REFUSED = Layout(tp_size=2, ep_size=4)
"""2 is not 4 * 1 * (2 // 4): the engine's topology check refuses it."""
KILLED = Layout(tp_size=2, ep_size=2)
LEGAL = (
    Layout(tp_size=2),
    KILLED,
    Layout(tp_size=2, attn_dp_size=2),
    Layout(pp_size=2),
)


class KillingLauncher(LocalLauncher):
    """Starts servers as always; the first of `victim` is killed from outside once it is up."""

    def __init__(self, victim: Layout) -> None:
        super().__init__()
        self._words = ("--tp-size", str(victim.tp_size), "--ep-size", str(victim.ep_size))
        self._killed = False

    def start(self, launch: Launch) -> LocalServer:
        server = super().start(launch)
        words = " ".join(launch.command)
        if not self._killed and " ".join(self._words) in words and "--attn-dp-size" not in words:
            self._killed = True
            threading.Thread(target=self._kill_when_up, args=(server,), daemon=True).start()
        return server

    @staticmethod
    def _kill_when_up(server: LocalServer) -> None:
        log = server.launch.log_path
        while server.exit_code() is None:
            if log.exists() and "max_total_num_tokens=" in log.read_text(errors="replace"):
                (engine,) = psutil.Process(server.pid).children()
                engine.kill()
                return
            time.sleep(0.05)


@pytest.fixture
def on_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def space_of(request_model: asking.Served, cluster: Cluster, version: Any) -> Space:
    """The layouts that the engine is known to run on CPUs, and one that it refuses: a test's own space, made by
    hand because no option of `tune` lets an illegal layout through."""
    whole = enumerate_space(request_model.model, cluster, version)
    legal = [c for c in whole.candidates if c.requested in LEGAL]
    assert {c.requested for c in legal} == set(LEGAL)
    baseline = next(c for c in legal if c.requested == LEGAL[0])
    refused = Candidate(requested=REFUSED, effective=replace(baseline.effective, page_size=2))
    return replace(whole, candidates=(*legal, refused), baseline=baseline)


def left_over(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
            ours = process.environ().get(OWNER_VARIABLE) and str(folder) in words
        except (psutil.Error, OSError):
            continue
        if ours and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("on_cpus")
def test_a_study_with_a_refused_and_a_killed_layout_ends_with_a_winner_and_true_outcomes(
    engine_python: str,
    tiny_checkpoint: TinyCheckpoint,
    in_folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    served = asking.served(str(tiny_checkpoint.folder))
    chosen = asking.choose_engine(
        "sglang",
        cluster_word="2xcpu",
        engine_command=f"{engine_python} -m sglang.launch_server",
        engine_args=" ".join(ARGUMENTS),
        engine_version=None,
        clock_scale=None,
    )
    assert not chosen.engine.is_simulated
    assert str(chosen.engine.version) == "0.5.23"
    store = in_folder / "mlruns"
    request = Request(
        objective=Objective.PEAK_THROUGHPUT,
        model=served.model,
        model_path=served.model_path,
        cluster=chosen.cluster,
        workload=WORKLOAD,
        engine=chosen.engine,
        storage_url=f"sqlite:///{store / 'optuna.db'}",
        tracking_uri=f"sqlite:///{store / 'mlflow.db'}",
        artifact_root=str(store / "artifacts"),
        work_dir=str(store / "work"),
        trials=5,
        confirmations=1,
    )
    code = main_job.run(
        request,
        space_of(served, chosen.cluster, chosen.engine.version),
        json_output=True,
        launcher=KillingLauncher(KILLED),
        patience=Patience(starting_s=240.0, loaded_s=120.0),
    )
    said = capsys.readouterr()
    assert code == 0, said.err
    document = json.loads(said.out)
    assert document["simulated"] is False
    assert "simulated" not in said.err
    trials = document["trials"]
    by_flags: dict[str, list[dict[str, Any]]] = {}
    for trial in trials:
        by_flags.setdefault(json.dumps(trial["flags"]), []).append(trial)

    (refused,) = by_flags[json.dumps({"tp-size": 2, "ep-size": 4})]
    assert refused["outcome"] == "illegal"
    assert "parallel topology is inconsistent" in refused["summary"]

    killed = by_flags[json.dumps({"tp-size": 2, "ep-size": 2})][0]
    assert killed["outcome"] == "environment"
    assert "SIGKILL" in killed["summary"]

    measured = {flags for flags, ts in by_flags.items() if any(t["outcome"] == "measured" for t in ts)}
    assert len(measured) >= 4
    assert {t["outcome"] for t in trials} == {"measured", "illegal", "environment"}
    assert document["winner"]["value"] > 0
    assert document["baseline"]["value"] > 0
    assert str(engine_python) in document["winner"]["command"]
    assert left_over(tiny_checkpoint.folder) == []
    answers = [t["answers"] for t in trials if t["outcome"] == "measured"]
    assert all(each["agree"] for each in answers)
    assert all(each["prefill"]["mean_nats"] < 1e-4 for each in answers if each["compared_with"])

    client = mlflow.MlflowClient(tracking_uri=request.tracking_uri)
    runs = client.search_runs([document["mlflow"]["experiment_id"]], "tags.`tune.kind` = 'trial'")
    statuses = {r.data.tags["tune.outcome"]: r.info.status for r in runs}
    assert statuses == {"measured": "FINISHED", "illegal": "FINISHED", "environment": "FAILED"}
    assert all(r.data.tags.get("tune.simulated") != "true" for r in runs)


@pytest.mark.usefixtures("on_cpus")
def test_the_command_itself_measures_a_pinned_layout_on_the_real_engine(
    engine_python: str, tiny_checkpoint: TinyCheckpoint, in_folder: Path
) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tuner", "--objective", "c1_latency", "--engine", "sglang"),
            *("--model", str(tiny_checkpoint.folder), "--cluster", "1xcpu", "--trials", "1", "--json"),
            *("--engine-command", f"{engine_python} -m sglang.launch_server", "--engine-args", " ".join(ARGUMENTS)),
            *("--input-tokens", "32", "--output-tokens", "16", "--concurrency", "1,2"),
        ],
        cwd=in_folder,
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}:{Path(__file__).parents[2]}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["engine"] == "sglang"
    assert document["engine_version"] == "0.5.23"
    assert document["winner"]["flags"] == {}
    assert document["winner"]["unit"] == "s"
    assert 0 < document["winner"]["value"] < 60
    assert [r["concurrency"] for r in document["trials"][0]["rungs"]] == [1, 2]
    assert left_over(tiny_checkpoint.folder) == []
