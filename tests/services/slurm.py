"""A Slurm of two nodes with eight declared GPUs each, all daemons on this machine's loopback and in one folder.

The GPUs are device files that stand for none; Slurm gives them out all the same. Node names are no host names:
slurmd is told which node it plays (`-N`).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.services.needs import needed, not_here

NODES = ("n1", "n2")
GPUS_PER_NODE = 8
_START_LIMIT_S = 60.0
_NULL_DEVICE = os.makedev(1, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slurm:
    """env: what a client of this Slurm needs in its environment."""

    folder: Path
    env: Mapping[str, str]

    def ask(self, *words: str) -> str:
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    @contextmanager
    def allocation(self) -> Iterator[dict[str, str]]:
        """Both nodes with all their GPUs: the environment of a process inside it. Cancelled at the end."""
        hold = ["salloc", "-Q", "-N2", f"--gres=gpu:{GPUS_PER_NODE}", "--exclusive", "sh", "-c", "env -0; exec cat"]
        with subprocess.Popen(hold, env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as salloc:
            assert salloc.stdin is not None
            assert salloc.stdout is not None
            told = b""
            while b"\0SLURM_JOB_ID=" not in told or not told.endswith(b"\0"):
                new = os.read(salloc.stdout.fileno(), 65536)
                assert new, "salloc ended without an allocation"
                told += new
            inside = dict(line.split("=", 1) for line in told.decode().split("\0") if "=" in line)
            try:
                yield inside
            finally:
                salloc.stdin.close()
                subprocess.run(["scancel", inside["SLURM_JOB_ID"]], env=self.env, check=False, capture_output=True)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    salloc.wait(5)
                salloc.kill()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


@contextmanager
def running_slurm(folder: Path) -> Iterator[Slurm]:
    programs = needed("munged", "slurmctld", "slurmd", "srun", "salloc", "scontrol", "sinfo")
    devices = folder / "dev"
    for made in (folder / "state", folder / "munge", devices):
        made.mkdir(parents=True)
    folder.chmod(0o755)
    for number in range(GPUS_PER_NODE):
        try:
            os.mknod(devices / f"nvidia{number}", 0o666 | stat.S_IFCHR, _NULL_DEVICE)
        except PermissionError:
            not_here("making the device files that stand for GPUs is not permitted here")
    key = folder / "munge" / "key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o600)
    (folder / "munge").chmod(0o711)
    controller, *ports = _free_ports(1 + len(NODES))
    (folder / "slurm.conf").write_text(_configuration(folder, controller, ports))
    (folder / "gres.conf").write_text(
        f"NodeName={','.join(NODES)} Name=gpu File={devices}/nvidia[0-{GPUS_PER_NODE - 1}]\n"
    )
    env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    munge = [
        programs["munged"],
        "--force",
        "--foreground",
        *(f"--{name}-file={folder}/munge/{name}" for name in ("key", "pid", "seed", "log")),
        f"--socket={folder}/munge/socket",
        "--num-threads=2",
    ]
    daemons = [munge, [programs["slurmctld"], "-D", "-i"], *([programs["slurmd"], "-D", "-N", n] for n in NODES)]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for words in daemons:
            with (folder / "daemons.log").open("ab") as log:
                started.append(subprocess.Popen(words, env=env, stdout=log, stderr=log, start_new_session=True))
            if words is munge:
                _await((folder / "munge" / "socket").exists, started, folder)
        slurm = Slurm(folder=folder, env=env)
        _await(lambda: _is_idle(env), started, folder)
        yield slurm
    finally:
        for daemon in reversed(started):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _is_idle(env: Mapping[str, str]) -> bool:
    told = subprocess.run(["sinfo", "-h", "-N", "-o", "%T"], env=env, capture_output=True, text=True, check=False)
    return told.stdout.split() == ["idle"] * len(NODES)


def _await(claim, started: list[subprocess.Popen[bytes]], folder: Path) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + _START_LIMIT_S
    while not claim():
        log = folder / "daemons.log"
        said = log.read_text(errors="replace")[-2000:] if log.exists() else ""
        assert all(daemon.poll() is None for daemon in started), said
        assert time.monotonic() < deadline, said
        time.sleep(0.05)


def _configuration(folder: Path, controller: int, ports: list[int]) -> str:
    host = socket.gethostname().partition(".")[0]
    nodes = "".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=16 RealMemory=4000 "
        f"Gres=gpu:{GPUS_PER_NODE}\n"
        for name, port in zip(NODES, ports, strict=True)
    )
    return f"""\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldPidFile={folder}/slurmctld.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
ReturnToService=2
SlurmdParameters=config_overrides
SlurmctldTimeout=30
SlurmdTimeout=30
KillWait=5
{nodes}PartitionName=all Nodes={",".join(NODES)} Default=YES MaxTime=60 State=UP
"""
