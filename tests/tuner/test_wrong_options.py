"""Options that cannot be read: a line for people, a document for machines, and exit code 2."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "command", [["predict", "--limit", "x"], ["check", "--no-such-option"], ["validate", "--max-tp", "x"]]
)
def test_with_json_the_error_is_a_document_too(command):
    done = subprocess.run(
        [sys.executable, "-m", "tuner", *command, "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"] in done.stderr
    assert len(done.stderr.splitlines()) == 1


def ended(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "tuner", *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--engine", "simulated", "--trials", "1", "--slo", "ttft_p99=1s"], "--trials and --slo|--slo and --trials"),
        (["--json"], "--json"),
        (["--model", "kimi-k2.6"], "--model"),
    ],
)
def test_options_of_the_search_without_an_objective_are_refused_naming_it(words, named):
    done = ended(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tune: --objective is needed beside --")
    assert re.search(named, done.stderr)
    assert len(done.stderr.splitlines()) == 1


def test_alone_it_prints_the_help_and_a_variable_is_no_option(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///elsewhere.db")
    done = ended()
    assert (done.returncode, done.stderr) == (0, "")
    assert "--objective" in done.stdout


def test_options_of_the_search_before_another_command_are_refused():
    done = ended("--model", "kimi-k2.6", "--seed", "3", "predict", "--limit", "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "tune: --model and --seed before `predict` are of the search: options of `tune predict` come after its name\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check", "--engine-command", "python3", "--", "--tp-size", "8"], "--engine-command starts the SGLang"),
        (["check", "--batch", "-", "--engine-command", "python3"], "--batch takes everything from its file"),
    ],
)
def test_an_engine_command_that_check_would_not_heed_is_refused(words, said):
    done = ended(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.parametrize("port", ["70000", "0", "-1"])
def test_a_port_that_is_none_is_refused_by_the_pages_too(port):
    done = ended("ui", "--port", port)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"tune: --port is between 1 and 65535 (got {port})\n"


def test_without_json_stdout_stays_empty():
    done = subprocess.run(
        [sys.executable, "-m", "tuner", "predict", "--limit", "x"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
