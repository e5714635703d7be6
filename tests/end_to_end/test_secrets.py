"""A secret in flags and one in the environment, through a whole study: neither is written or shown anywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tuner.simulator.arguments import FAULTS_VARIABLE

IN_FLAGS = "canary-in-flags-71c5"
ADMIN = "canary-for-admins-8d0e"
IN_ENVIRONMENT = "hf_canaryInEnvironment93b2"
CANARIES = (IN_FLAGS, ADMIN, IN_ENVIRONMENT)
SERVER = "tuner.simulator"
QUICK = (
    "--trials",
    "2",
    "--confirmations",
    "0",
    "--concurrency",
    "1,8",
    "--output-tokens",
    "32",
    "--clock-scale",
    "1e9",
)


class Seen:
    """What anyone could see of a tuner's processes while it ran: their command lines, and what they listen on."""

    def __init__(self) -> None:
        self.commands: set[tuple[str, ...]] = set()
        self.listening: set[str] = set()

    def look(self, tuner: psutil.Process) -> None:
        for process in tuner.children(recursive=True):
            try:
                self.commands.add(tuple(process.cmdline()))
                self.listening |= {c.laddr.ip for c in process.net_connections() if c.status == psutil.CONN_LISTEN}
            except psutil.Error:
                continue  # it has just ended

    @property
    def ours(self) -> list[str]:
        """All but the server's own, which the engine's flags are for, and what has not become anything yet."""
        return [" ".join(words) for words in self.commands if words and SERVER not in words]


def study(folder: Path, *words: str, **env: str) -> tuple[subprocess.CompletedProcess[str], Seen]:
    """A study, watched. What the user types is visible to who lists processes: it goes in by standard input here."""
    code = "import json, sys; sys.argv[1:] = json.load(sys.stdin); from tuner.cli import main; main()"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "COV_"))}
    path = f"{Path(__file__).parent / 'no_gpu'}:{Path(sys.executable).parent}:{os.defpath}"
    seen = Seen()
    with (folder / "stdout").open("w") as out, (folder / "stderr").open("w") as err:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=folder,
            env={**kept, **env, "HF_TOKEN": IN_ENVIRONMENT, "PYTHONPATH": str(Path(__file__).parents[2]), "PATH": path},
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            text=True,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(["--objective", "peak_throughput", *QUICK, *words]))
        process.stdin.close()
        tuner = psutil.Process(process.pid)
        while process.poll() is None:
            seen.look(tuner)
            time.sleep(0.02)
    stdout, stderr = (folder / "stdout").read_text(), (folder / "stderr").read_text()
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr), seen


def holding(folder: Path) -> Iterator[str]:
    """Files in which a canary is found, by name or by content."""
    for path in folder.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        for canary in CANARIES:
            if canary.encode() in data or canary in path.name:
                yield f"{path.relative_to(folder)}: {canary}"


@pytest.mark.parametrize("output", ["--json", ""])
def test_a_study_writes_and_shows_no_secret_and_listens_on_loopback_alone(tmp_path: Path, output: str) -> None:
    keys = ("--engine-args", f"--api-key {IN_FLAGS} --admin-api-key={ADMIN}")
    done, seen = study(tmp_path, *keys, *filter(None, [output]))
    assert done.returncode == 0, done.stderr
    assert "winner" in done.stdout
    logs = list(tmp_path.rglob("server.log"))
    assert any("'api_key': '*" in log.read_text() for log in logs), "the server told its key, and it was overwritten"
    assert list(holding(tmp_path)) == []
    assert [path.name for path in tmp_path.rglob("*.db")] != []
    assert [words for words in seen.ours if any(canary in words for canary in CANARIES)] == []
    assert seen.ours, "a guard was seen"
    assert any(SERVER in words for words in seen.commands)
    assert seen.listening == {"127.0.0.1"}


def test_servers_that_die_leave_no_secret_in_what_is_told_of_their_ends(tmp_path: Path) -> None:
    faults = tmp_path / "faults"
    faults.write_text("kill pool\nkill load\nnonsense load\n")
    done, seen = study(tmp_path, "--engine-args", f"--api-key {IN_FLAGS}", **{FAULTS_VARIABLE: str(faults)})
    assert done.returncode in {0, 4}, done.stderr
    assert "SIGKILL" in done.stdout + done.stderr
    assert list(holding(tmp_path)) == []
    assert [words for words in seen.ours if any(canary in words for canary in CANARIES)] == []


def test_a_complaint_about_words_shows_no_secret_among_them(tmp_path: Path) -> None:
    done, _ = study(tmp_path, "--engine-args", f"--api-key {IN_FLAGS} --password {ADMIN} --no-such-flag")
    assert done.returncode == 2
    assert "--no-such-flag" in done.stderr
    assert "--password ***" in done.stderr
    assert list(holding(tmp_path)) == []
