"""`tune --objective ...` as a user runs it: the command itself, on the simulated server, in a folder of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlflow
import optuna
import pytest
from mlflow.entities import Run

from tests.end_to_end.fault_campaign import processes_of
from tests.waiting import eventually
from tuner.voice import SIMULATED_MARK

QUICK = ("--concurrency", "1,8", "--output-tokens", "32", "--clock-scale", "1e9")


def tune(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tuner", *words],
        cwd=folder,
        env={**_environment(), **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def _environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "COV_"))}
    # A proxy that nobody answers at: what is under test runs on this machine.
    proxy = {"HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
    path = f"{Path(__file__).parent / 'no_gpu'}:{Path(sys.executable).parent}:{os.defpath}"
    return {**kept, **proxy, "PYTHONPATH": str(Path(__file__).parents[2]), "PATH": path}


def runs_of(folder: Path, kind: str) -> list[Run]:
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlruns' / 'mlflow.db'}")
    (experiment,) = [e for e in client.search_experiments() if e.name != "Default"]
    return list(client.search_runs([experiment.experiment_id], f"tags.`tune.kind` = '{kind}'"))


def optuna_trials(folder: Path) -> list[optuna.trial.FrozenTrial]:
    storage = f"sqlite:///{folder / 'mlruns' / 'optuna.db'}"
    (name,) = optuna.get_all_study_names(storage)
    return optuna.load_study(study_name=name, storage=storage).trials


def marked(text: str) -> bool:
    return bool(text) and all(line.startswith(SIMULATED_MARK) for line in text.splitlines())


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("main-job")
    return folder, tune(folder, "--objective", "peak_throughput", "--trials", "3", "--json", *QUICK)


@pytest.fixture(scope="module")
def document(done: tuple[Path, subprocess.CompletedProcess[str]]) -> dict[str, Any]:
    assert done[1].returncode == 0, done[1].stderr
    parsed: dict[str, Any] = json.loads(done[1].stdout)
    return parsed


def test_the_document_names_winner_baseline_and_every_trial(document: dict[str, Any]) -> None:
    assert document["objective"] == "peak_throughput"
    assert document["winner"]["value"] >= document["baseline"]["value"] > 0
    assert document["winner"]["unit"] == "tok/s"
    assert document["baseline"]["effective"]["tp_size"] == 8
    assert document["baseline"]["effective"]["ep_size"] == 1
    assert "sglang.launch_server" in document["winner"]["command"]
    assert "moonshotai/Kimi-K2.6" in document["winner"]["command"]
    origins = [t["origin"] for t in document["trials"]]
    assert origins[0] == "baseline"
    assert origins.count("sampler") == 2
    assert {t["outcome"] for t in document["trials"]} <= {"measured", "out of memory"}
    assert document["refused"]
    assert all(p["shortfall_bytes"] > 0 and p["reason"] for p in document["pruned"])


def test_the_winner_was_measured_more_than_once_and_shows_its_range(document: dict[str, Any]) -> None:
    assert document["winner"]["runs"] >= 2
    low, high = document["winner"]["interval"]
    assert low <= document["winner"]["value"] <= high


def test_it_says_everywhere_that_it_is_simulated_and_why(
    done: tuple[Path, subprocess.CompletedProcess[str]], document: dict[str, Any]
) -> None:
    folder, finished = done
    assert marked(finished.stderr)
    assert document["simulated"] is True
    assert "no GPU was found" in document["simulated_because"]
    assert "no GPU was found" in finished.stderr
    for run in [*runs_of(folder, "study"), *runs_of(folder, "trial")]:
        assert run.data.tags["tune.simulated"] == "true"
        assert "no GPU was found" in run.data.tags["tune.simulated_because"]
        assert "simulated" in run.info.run_name.lower()


def test_mlflow_holds_one_parent_and_one_nested_run_a_trial(
    done: tuple[Path, subprocess.CompletedProcess[str]], document: dict[str, Any]
) -> None:
    folder, _ = done
    (study,) = runs_of(folder, "study")
    trials = runs_of(folder, "trial")
    assert study.info.run_id == document["mlflow"]["run_id"]
    assert len(trials) == len(document["trials"])
    assert {t.data.tags["mlflow.parentRunId"] for t in trials} == {study.info.run_id}
    assert {study.info.status, *(t.info.status for t in trials)} == {"FINISHED"}
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlruns' / 'mlflow.db'}")
    measured = next(t for t in trials if t.data.tags["tune.outcome"] == "measured")
    names = {a.path for a in client.list_artifacts(measured.info.run_id)}
    assert {"launch.txt", "server.log", "measurement.json", "requests.json"} <= names


def test_the_same_command_again_launches_nothing_and_tells_the_same(
    done: tuple[Path, subprocess.CompletedProcess[str]], document: dict[str, Any]
) -> None:
    folder, _ = done
    again = tune(folder, "--objective", "peak_throughput", "--trials", "3", "--json", *QUICK)
    assert again.returncode == 0, again.stderr
    parsed = json.loads(again.stdout)
    assert parsed["trials"] == document["trials"]
    assert parsed["winner"] == document["winner"]


def test_the_other_objective_reuses_the_measurements_and_says_so(
    done: tuple[Path, subprocess.CompletedProcess[str]], document: dict[str, Any]
) -> None:
    folder, _ = done
    other = tune(folder, "--objective", "c1_latency", "--trials", "1", "--json", *QUICK)
    assert other.returncode == 0, other.stderr
    assert "reusing" in other.stderr
    parsed = json.loads(other.stdout)
    reused = [t for t in parsed["trials"] if t["origin"] == "reused"]
    layouts = {json.dumps(t["flags"]) for t in document["trials"] if t["value"] is not None}
    assert {json.dumps(t["flags"]) for t in reused} == layouts
    assert parsed["winner"]["unit"] == "s"
    live = [t for t in parsed["trials"] if t["origin"] == "sampler"]
    assert len(live) == 1
    assert json.dumps(live[0]["flags"]) not in layouts


def test_without_json_the_table_the_verdict_and_the_command_are_on_stdout_every_line_marked(
    done: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = done
    shown = tune(folder, "--objective", "peak_throughput", "--trials", "3", *QUICK)
    assert marked(shown.stdout)
    assert marked(shown.stderr)
    assert "winner: TP" in shown.stdout
    assert "python3 -m sglang.launch_server --model-path moonshotai/Kimi-K2.6" in shown.stdout


def test_nothing_is_left_running(done: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    assert processes_of(done[0]) == []


SLOW = ("--concurrency", "1,8", "--output-tokens", "32", "--clock-scale", "20")


def started(
    folder: Path, *words: str, until: str = "", hang_up: signal.Handlers = signal.SIG_DFL
) -> subprocess.Popen[str]:
    """A tuner that has a server running whose log says `until`; hang_up: what SIGHUP does to it at first."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tuner", "--objective", "peak_throughput", "--trials", "2", *words],
        cwd=folder,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, hang_up),
    )
    log = "mlruns/work/*/0/server.log"

    def says_so() -> bool:
        texts = [p.read_text(errors="replace") for p in folder.glob(log)]
        return any(text and until in text for text in texts)

    assert eventually(says_so), process.communicate()
    return process


@pytest.mark.parametrize("signal_", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_in_order_with_130_and_the_same_command_goes_on(tmp_path: Path, signal_: int) -> None:
    process = started(tmp_path, *SLOW)
    process.send_signal(signal_)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert processes_of(tmp_path) == []
    (trial,) = optuna_trials(tmp_path)
    assert trial.state is optuna.trial.TrialState.FAIL
    (run,) = runs_of(tmp_path, "trial")
    assert (run.info.status, run.data.tags["tune.outcome"]) == ("KILLED", "interrupted")
    (study,) = runs_of(tmp_path, "study")
    assert study.info.status == "KILLED"
    if signal_ == signal.SIGINT:
        resumed = tune(
            tmp_path, "--objective", "peak_throughput", "--trials", "2", "--json", *QUICK[:4], "--clock-scale", "1e9"
        )
        assert resumed.returncode == 0, resumed.stderr
        trials = json.loads(resumed.stdout)["trials"]
        assert [t["outcome"] for t in trials].count("interrupted") == 1
        assert trials[0]["flags"] in [t["flags"] for t in trials[1:]]


def test_under_nohup_a_closed_terminal_ends_nothing(tmp_path: Path) -> None:
    process = started(tmp_path, *QUICK, hang_up=signal.SIG_IGN)
    process.send_signal(signal.SIGHUP)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err


def test_asking_again_and_again_under_load_does_not_stop_the_tidying_up(tmp_path: Path) -> None:
    words = ("--concurrency", "1,8", "--output-tokens", "512", "--clock-scale", "40")
    process = started(tmp_path, *words, until="Decode batch")
    for _ in range(5):
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert marked(out)
    assert processes_of(tmp_path) == []
    statuses = {r.info.status for r in [*runs_of(tmp_path, "trial"), *runs_of(tmp_path, "study")]}
    assert statuses == {"KILLED"}
    assert [t.state.name for t in optuna_trials(tmp_path)] == ["FAIL"]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_study_goes_on_when_nobody_listens_any_more(tmp_path: Path, stream: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tuner", "--objective", "peak_throughput", "--trials", "1", *QUICK],
        cwd=tmp_path,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deaf, other = (process.stdout, process.stderr) if stream == "stdout" else (process.stderr, process.stdout)
    assert deaf is not None
    assert other is not None
    deaf.close()
    heard = other.read()
    other.close()
    assert process.wait(120) == 0, heard
    assert {t.state.name for t in optuna_trials(tmp_path)} == {"COMPLETE"}
    assert {r.info.status for r in runs_of(tmp_path, "study")} == {"FINISHED"}


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_the_letters_gets_the_report_all_the_same(
    done: tuple[Path, subprocess.CompletedProcess[str]], encoding: str
) -> None:
    shown = tune(done[0], "--objective", "peak_throughput", "--trials", "3", *QUICK, PYTHONIOENCODING=encoding)
    assert shown.returncode == 0, shown.stderr
    assert "winner: TP" in shown.stdout


def test_two_new_studies_may_begin_in_one_fresh_folder_at_once(tmp_path: Path) -> None:
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "tuner", "--objective", "peak_throughput", "--trials", "1", "--study", name, *QUICK],
            cwd=tmp_path,
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("opening", "b")
    ]
    ends = [(p.communicate(timeout=300), p.returncode) for p in both]
    assert [code for _, code in ends] == [0, 0], ends


def test_the_lock_of_a_study_goes_with_its_storage_and_not_with_the_folder(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    shared = ("--storage", f"sqlite:///{tmp_path / 'shared.db'}", "--study", "s")
    first = started(here, *SLOW, *shared)
    second = tune(there, "--objective", "peak_throughput", "--trials", "2", *SLOW, *shared)
    assert second.returncode == 2
    assert f"process {first.pid}" in second.stderr
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=120)
    assert first.returncode == 130


def test_a_ladder_cut_by_the_budget_gives_no_peak_and_is_climbed_again(tmp_path: Path) -> None:
    words = ("--objective", "peak_throughput", "--trials", "1", "--json", "--concurrency", "1,8")
    cut = tune(tmp_path, *words, "--output-tokens", "32", "--clock-scale", "1e9", "--budget", "0.001s")
    assert cut.returncode == 4
    whole = tune(tmp_path, *words, "--output-tokens", "32", "--clock-scale", "1e9")
    assert whole.returncode == 0, whole.stderr
    document = json.loads(whole.stdout)
    assert document["winner"]["effective"] == document["baseline"]["effective"]
    full = [t for t in document["trials"] if t["value"] is not None]
    assert all(len(t["rungs"]) == 2 for t in full)


def test_after_sigkill_nothing_runs_and_the_next_start_settles_trial_and_run(tmp_path: Path) -> None:
    process = started(tmp_path, *SLOW)
    process.kill()
    process.communicate()
    assert eventually(lambda: processes_of(tmp_path) == [])
    assert [r.info.status for r in runs_of(tmp_path, "trial")] == ["RUNNING"]
    resumed = tune(tmp_path, "--objective", "peak_throughput", "--trials", "2", "--json", *QUICK)
    assert resumed.returncode == 0, resumed.stderr
    assert "settled as interrupted" in resumed.stderr
    trials = json.loads(resumed.stdout)["trials"]
    assert [t["outcome"] for t in trials].count("interrupted") == 1
    assert [t.state.name for t in optuna_trials(tmp_path)].count("RUNNING") == 0
    killed = [r for r in runs_of(tmp_path, "trial") if r.info.status == "KILLED"]
    assert [r.data.tags["tune.outcome"] for r in killed] == ["interrupted"]
    assert {r.info.status for r in runs_of(tmp_path, "study")} == {"FINISHED"}


def test_a_second_tuner_on_the_same_study_is_refused_and_disturbs_nothing(tmp_path: Path) -> None:
    first = started(tmp_path, *SLOW)
    second = tune(tmp_path, "--objective", "peak_throughput", "--trials", "2", *SLOW)
    assert second.returncode == 2
    assert f"process {first.pid}" in second.stderr
    assert first.poll() is None
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=120)
    assert first.returncode == 130


def mlruns_is_a_file(folder: Path) -> None:
    (folder / "mlruns").write_text("in the way")


def nothing(_folder: Path) -> None: ...


WRONG: dict[str, tuple[Sequence[str], str, Callable[[Path], None]]] = {
    "objective": (("--objective", "speed"), "c1_latency", nothing),
    "model": (("--model", "kimi-k9"), "did you mean kimi-k3? Near it: kimi-k2", nothing),
    "cluster": (("--cluster", "8x"), "8xrtx-pro-6000", nothing),
    "gpu": (("--cluster", "8xh999"), "h200", nothing),
    "trials": (("--trials", "-1"), "at least 1", nothing),
    "no trials": (("--trials", "0"), "at least 1", nothing),
    "less than no confirmation": (("--confirmations", "-1"), "0 for none", nothing),
    "trials word": (("--trials", "many"), "--trials", nothing),
    "budget": (("--budget", "soon"), "--budget", nothing),
    "patience": (("--patience", "soon"), "--patience", nothing),
    "pin": (("--pin", "tp_sise=8"), "tp_size", nothing),
    "pin that leaves nothing": (("--pin", "tp_size=3"), "tp_size", nothing),
    "ladder": (("--concurrency", "2,4"), "start at 1", nothing),
    "port": (("--port", "99999"), "65535", nothing),
    "engine": (("--engine", "vllm"), "simulated", nothing),
    "engine version": (("--engine-version", "9.9.9"), "0.5.23", nothing),
    "sglang without gpus": (("--engine", "sglang"), "no GPU was found", nothing),
    "does not fit": (("--cluster", "2xrtx-pro-6000"), "does not fit", nothing),
    "option": (("--objectiv", "x"), "objective", nothing),
    "baseline": (("--baseline", "--tp-size x"), "tp-size", nothing),
    "illegal baseline": (("--baseline", "--tp-size 3"), "nearest legal: --tp-size 4", nothing),
    "study": (("--study", "../x"), "--study", nothing),
    "seed": (("--seed", "-1"), "--seed", nothing),
    "empty model": (("--model", ""), "model", nothing),
    "huge load": (("--concurrency", "1,99999999999"), "8192", nothing),
    "long prompts": (("--input-tokens", "99999999"), "max_position_embeddings", nothing),
    "huge cluster": (("--cluster", "100000xh100"), "256", nothing),
    "memory storage": (("--storage", "sqlite://"), "in memory", nothing),
    "one file for both": (
        ("--storage", "sqlite:///a.db", "--tracking-uri", "sqlite:///a.db"),
        "same file",
        nothing,
    ),
    "store": ((), "mlruns", mlruns_is_a_file),
    "storage": (("--storage", "nosuch://x"), "storage", nothing),
    "tracking": (("--tracking-uri", "nosuch://x"), "nosuch", nothing),
}


CANNOT_RUN = {"does not fit", "illegal baseline"}


@pytest.mark.parametrize("case", WRONG)
def test_words_that_cannot_be_used_get_one_clear_line_and_nothing_is_started(tmp_path: Path, case: str) -> None:
    words, expected, prepare = WRONG[case]
    prepare(tmp_path)
    given = words if "--objective" in words else ("--objective", "peak_throughput", *words)
    refused = tune(tmp_path, *given)
    assert refused.returncode == (3 if case in CANNOT_RUN else 2), refused.stderr
    assert refused.stdout == ""
    lines = [line for line in refused.stderr.splitlines() if not line.startswith(SIMULATED_MARK)]
    assert len(lines) == 1, refused.stderr
    assert expected in lines[0]
    assert not list(tmp_path.glob("mlruns/work/*/0"))


def test_a_port_in_use_is_said_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = tune(tmp_path, "--objective", "peak_throughput", "--port", str(port))
    assert refused.returncode == 2
    assert f"port {port} is in use" in refused.stderr
    assert not (tmp_path / "mlruns").exists()


def test_help_imports_neither_optuna_nor_mlflow_nor_numpy(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom tuner.cli import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit as e:\n    assert e.code == 0, e.code\n"
        "heavy = {'optuna', 'mlflow', 'scipy', 'aiohttp', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--objective" in done.stdout


def test_three_names_start_the_same_program() -> None:
    folder = Path(sys.executable).parent
    said = {
        subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
        for command in ((sys.executable, "-m", "tuner"), (str(folder / "tune"),), (str(folder / "layout-tune"),))
        if Path(command[0]).exists()
    }
    assert len(said) == 1
    assert next(iter(said)).startswith("layout-tune ")
