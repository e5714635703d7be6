"""Servers on the nodes of a Slurm allocation: each is a step of the job, started by `srun` from inside it.

srun(1), salloc(1), scontrol(1). A step shares the job's CPUs, memory and GPUs of its node (`--overlap`), and ends with
the job.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.servers.guarded import GuardedLauncher, GuardedServer
from tuner.servers.host import LOOPBACK, Answer, HostError, answer_of, last_line
from tuner.servers.host_elsewhere import free_port_of, run_marked
from tuner.servers.protocol import Launch

JOB_VARIABLE = "SLURM_JOB_ID"
_NODES_VARIABLE = "SLURM_JOB_NODELIST"

# What the job was asked for by task holds for its tasks; srun would take it from here for a step of one task.
_NOT_FOR_A_STEP = (
    "SLURM_CPUS_PER_TASK",
    "SLURM_GPUS_PER_TASK",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_TRES_PER_TASK",
)
_ASKED_S = 30.0
_ENDING_S = 5.0
"""How long it is waited for the word for an end that is not over yet."""
_POLL_S = 0.2
_LIVING = frozenset({"RUNNING", "SUSPENDED", "CONFIGURING"})


class NoAllocationError(RuntimeError):
    """This process is in no Slurm allocation; says how to come into one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """job: its number. nodes: their names, in Slurm's order."""

    job: str
    nodes: tuple[str, ...]

    def end(self) -> str:
        """How the job has ended, as Slurm calls it; empty while it runs or where Slurm does not answer."""
        deadline = time.monotonic() + _ENDING_S
        while True:
            try:
                shown = _asked("scontrol", "show", "job", "-o", self.job)
            except HostError as error:
                return "gone" if "Invalid job id" in str(error) else ""
            state = _value(shown, "JobState")
            if state != "COMPLETING" or time.monotonic() > deadline:
                return "" if not state or state in _LIVING else state
            time.sleep(_POLL_S)


def allocation_of(env: Mapping[str, str], num_nodes: int = 1) -> Allocation:
    """That in which this process runs. num_nodes: how many are needed, for the words. Raises NoAllocationError."""
    job, listed = env.get(JOB_VARIABLE, ""), env.get(_NODES_VARIABLE, "")
    missing = [name for name, value in ((JOB_VARIABLE, job), (_NODES_VARIABLE, listed)) if not value]
    if missing:
        lacks = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set"
        raise NoAllocationError(
            f"this is no Slurm allocation ({lacks}): get one, for example by `salloc --nodes {num_nodes} --gres gpu:8 "
            "--exclusive`, and run tune inside it"
        )
    try:
        nodes = tuple(_asked("scontrol", "show", "hostnames", listed).split())
    except (HostError, OSError) as error:
        raise NoAllocationError(f"the nodes of job {job} could not be asked of Slurm: {error}") from None
    if not nodes:
        raise NoAllocationError(f"Slurm names no nodes of job {job} ({_NODES_VARIABLE} is {listed!r})")
    return Allocation(job=job, nodes=nodes)


class SlurmHost:
    """One node of an allocation. Words and environment reach it by Slurm itself, not by a shell."""

    python = "python3"

    def __init__(self, allocation: Allocation, node: str) -> None:
        self._allocation = allocation
        self._node = node

    @property
    def name(self) -> str:
        return self._node

    def run(self, words: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Answer:
        try:
            return run_marked(words, lambda script: answer_of(self.command(["sh", "-c", script]), stdin, timeout_s))
        except HostError as error:
            raise HostError(f"{self._node}: {error}") from error

    def command(self, words: Sequence[str]) -> list[str]:
        return [
            "env",
            *(word for name in _NOT_FOR_A_STEP for word in ("-u", name)),
            "srun",
            f"--jobid={self._allocation.job}",
            f"--nodelist={self._node}",
            *("--nodes=1", "--ntasks=1", "--overlap", "--cpu-bind=none", "--export=ALL"),
            *("--unbuffered", "--quiet", "--kill-on-bad-exit=0"),
            "--",
            *words,
        ]

    def address(self) -> str:
        """Under which the other nodes reach it. Raises HostError."""
        return _value(_asked("scontrol", "show", "node", "-o", self._node), "NodeAddr") or self._node

    def free_port(self) -> int:
        return free_port_of(self)

    def reach(self, port: int) -> tuple[str, int]:
        if not self._is_this_machine():
            raise HostError(
                f"{self._node}: its servers listen on its own loopback address and cannot be reached from here; run "
                f"tune on that node: in the job's script, or by `srun --jobid {self._allocation.job} --overlap "
                f"--nodelist {self._node} --pty bash`"
            )
        return LOOPBACK, port

    def _is_this_machine(self) -> bool:
        if os.environ.get("SLURMD_NODENAME") == self._node:
            return True
        theirs = _value(_asked("scontrol", "show", "node", "-o", self._node), "NodeHostName")
        return theirs.partition(".")[0] == socket.gethostname().partition(".")[0]

    def unreach(self, port: int) -> None:
        pass

    def close(self) -> None:
        pass


class SlurmServer:
    """A server that is lost when its job has ended: what ended it then says nothing of the layout."""

    def __init__(self, inner: GuardedServer, allocation: Allocation) -> None:
        self._inner = inner
        self._allocation = allocation
        self._job_end: str | None = None

    @property
    def launch(self) -> Launch:
        return self._inner.launch

    @property
    def base_url(self) -> str:
        return self._inner.base_url

    def exit_code(self) -> int | None:
        code = self._inner.exit_code()
        return None if code is None or self._job_has_ended() else code

    def lost(self) -> str:
        if self._inner.exit_code() is None and not self._inner.lost():
            return ""
        if end := self._job_has_ended():
            return f"the Slurm job {self._allocation.job} has ended: {end}"
        return self._inner.lost()

    def stop(self) -> None:
        self.exit_code()  # what ends from here on was told to
        self._inner.stop()

    def _job_has_ended(self) -> str:
        """Asked once, when the server has ended."""
        if self._job_end is None:
            self._job_end = self._allocation.end()
        return self._job_end


class SlurmLauncher(GuardedLauncher):
    def __init__(self, allocation: Allocation, node: str) -> None:
        super().__init__(SlurmHost(allocation, node))
        self._allocation = allocation

    def start(self, launch: Launch) -> SlurmServer:  # type: ignore[override]
        return SlurmServer(super().start(launch), self._allocation)


def _asked(*words: str) -> str:
    """Raises HostError."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_ASKED_S)
    except FileNotFoundError:
        raise HostError(f"{words[0]} is not installed here") from None
    except subprocess.TimeoutExpired:
        raise HostError(f"{words[0]} did not answer within {_ASKED_S:g} s") from None
    if done.returncode:
        raise HostError(last_line(done.stderr.encode()) or f"{words[0]} ended with {done.returncode}")
    return done.stdout


def _value(shown: str, name: str) -> str:
    """Of one `Name=value` in a line of scontrol's."""
    return next((word.partition("=")[2] for word in shown.split() if word.startswith(f"{name}=")), "")
