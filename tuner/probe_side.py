"""Measures collectives between this machine's GPUs, or between ranks on its CPUs. Run by `tuner.probe_collectives`.

    python probe_side.py  < plan.json  > findings.jsonl

It stands alone: the standard library and torch, any Python from 3.10 on; SGLang's own all-reduce where it is installed.
The plan is one line on standard input, which stays open: when it closes, everything here ends. What is found goes out
as JSON lines, as soon as it is found:

    {"hello": {...}}              what is installed and how many GPUs torch sees, or {"missing": "why"}
    {"point": {...}}              op, backend, num_ranks, size_bytes, seconds
    {"skipped": {...}}            op, backend, num_ranks, why
    {"failed": {...}}             rank, error: the first that any rank raised; nothing follows
    {"done": true}

The parent never imports torch. It forks the ranks, which do, for each group size anew; a rank dies with the parent.

Sizes are those of nccl-tests (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md): the buffer of one
rank for all_reduce and send_recv, the gathered result for all_gather, the input for reduce_scatter and all_to_all.
send_recv is half a round trip between the first and the last rank of the group.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime as dt
import importlib
import importlib.metadata
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

SPIN_HERTZ = 2.0e9
"""Cycles a second that `torch.cuda._sleep` counts, at most: it has to outlast the launching of a batch."""

LAUNCH_S = 100e-6
BATCH_S = 0.05
MOST_IN_BATCH = 20
SMALL_ELEMENTS = 2**12
WARMING_ELEMENTS = 2**22
WARMING_RUNS = 50
OTHERS_WORDS_S = 1.0
CUSTOM = "custom"
PDEATHSIG = 1

Say = Callable[[dict[str, Any]], None]


class UnsupportedError(Exception):
    """What these versions or these GPUs do not have; no rank has started it."""


# The ranks. ---------------------------------------------------------------------------------------------------------


class Group:
    """This rank's view of one group of ranks, and how time is taken in it."""

    def __init__(self, plan: dict[str, Any], rank: int, num_ranks: int, meeting_place: str) -> None:
        torch, dist = importlib.import_module("torch"), importlib.import_module("torch.distributed")
        self.torch, self.dist = torch, dist
        self.rank, self.num_ranks = rank, num_ranks
        self.is_cuda = plan["device"] == "cuda"
        if self.is_cuda:
            torch.cuda.set_device(rank)
            self.device = torch.device("cuda", rank)
            self.dtype = torch.bfloat16
        else:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            torch.set_num_threads(1)
            self.device = torch.device("cpu")
            self.dtype = torch.float32
        self.backend = "nccl" if self.is_cuda else "gloo"
        dist.init_process_group(
            self.backend,
            init_method="file://" + meeting_place,
            world_size=num_ranks,
            rank=rank,
            timeout=dt.timedelta(seconds=plan["limit_s"]),
        )
        longest = max(plan["sizes"]) // torch.empty((), dtype=self.dtype).element_size()
        self.whole = torch.zeros(longest, dtype=self.dtype, device=self.device)
        self.other = torch.zeros(longest, dtype=self.dtype, device=self.device)
        if self.is_cuda:
            for _ in range(WARMING_RUNS):  # until the clocks are up
                dist.all_reduce(self.whole[:WARMING_ELEMENTS])

    def parts(self, size_bytes: int) -> tuple[Any, Any, Any, Any]:
        """Two buffers of this size, whole, and the share of one rank in each."""
        count = size_bytes // self.whole.element_size() // self.num_ranks * self.num_ranks
        if count == 0:
            raise UnsupportedError(f"{size_bytes} bytes are too few for {self.num_ranks} ranks")
        each = count // self.num_ranks
        return self.whole[:count], self.other[:count], self.whole[:each], self.other[:each]

    def part(self) -> None:
        """No rank leaves while another still reaches for its memory."""
        self.dist.barrier()
        if self.is_cuda:
            self.torch.cuda.synchronize()

    def agreed(self, seconds: float) -> float:
        """The longest of all ranks'."""
        told = self.torch.tensor([seconds], dtype=self.torch.float32, device=self.device)
        self.dist.all_reduce(told, op=self.dist.ReduceOp.MAX)
        return float(told.item())

    def batch_s(self, run: Callable[[], Any], times: int) -> float:
        """Seconds of one `run`, of `times` that follow each other.

        On a GPU the stream is held up until the batch is launched, so that the CPU's launching is not measured, as it
        is not paid in a CUDA graph; one more `run` in front brings the ranks in step.
        """
        if not self.is_cuda:
            self.dist.barrier()
            start_s = time.perf_counter()
            for _ in range(times):
                run()
            return (time.perf_counter() - start_s) / times
        cuda = self.torch.cuda
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        cuda.synchronize()
        cuda._sleep(int(SPIN_HERTZ * LAUNCH_S * (times + 1)))  # noqa: SLF001 - torch's own tests time with it
        run()
        start.record()
        for _ in range(times):
            run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / times

    def repeats_s(self, run: Callable[[], Any], runs_in_one: int = 1) -> list[float]:
        """Seconds of one operation in each of some batches. runs_in_one: operations that one `run` makes."""
        for _ in range(3):
            run()
        once_s = max(self.agreed(self.batch_s(run, 2)), 1e-7)
        times = max(min(int(BATCH_S / once_s), MOST_IN_BATCH), 1)
        repeats = 7 if once_s < BATCH_S else 3
        return [self.batch_s(run, times) / runs_in_one for _ in range(repeats)]


def measured_alike(group: Group, op: str, size_bytes: int) -> list[float] | None:
    """Seconds of one operation in each batch; None from a rank that only stands by."""
    whole, other, share, other_share = group.parts(size_bytes)
    dist = group.dist
    if op == "all_reduce":
        return group.repeats_s(lambda: dist.all_reduce(whole))
    if op == "all_gather":
        return group.repeats_s(lambda: dist.all_gather_into_tensor(other, share))
    if op == "reduce_scatter":
        return group.repeats_s(lambda: dist.reduce_scatter_tensor(other_share, whole))
    if op == "all_to_all":
        return group.repeats_s(lambda: dist.all_to_all_single(other, whole))
    if op == "send_recv":
        return ping_pong_s(group, whole)
    raise UnsupportedError("there is no such operation")


def ping_pong_s(group: Group, buffer: Any) -> list[float] | None:
    """One way, half of there and back, between the first rank and the last."""
    dist, last = group.dist, group.num_ranks - 1
    far_end = {0: last, last: 0}.get(group.rank)

    def run() -> None:
        if group.rank == 0:
            dist.send(buffer, last)
            dist.recv(buffer, last)
        elif far_end is not None:
            dist.recv(buffer, 0)
            dist.send(buffer, 0)

    repeats = group.repeats_s(run)
    return None if far_end is None else [seconds / 2 for seconds in repeats]


def measure_torch(plan: dict[str, Any], group: Group, say: Say) -> None:
    for op in plan["ops"]:
        for size_bytes in plan["sizes"]:
            where = {"op": op, "backend": group.backend, "num_ranks": group.num_ranks}
            try:
                repeats = measured_alike(group, op, size_bytes)
            except UnsupportedError as error:
                say({"skipped": {**where, "size_bytes": size_bytes, "why": str(error)}})
                continue
            except (RuntimeError, NotImplementedError, AttributeError) as error:
                if group.is_cuda or "support" not in str(error).lower():
                    raise
                say({"skipped": {**where, "why": first_line(error)}})
                break
            say({"repeats": {**where, "size_bytes": size_bytes, "seconds": repeats}})
    group.part()


class CustomAllReduce:
    """SGLang's own all-reduce, made and replayed as its graph runner does.

    parallel_state.py:502 under srt/distributed of 0.5.23 makes it for a group whose messages between CPUs go by gloo;
    :611 captures within `capture()`, on a stream of its own. Releases up to 0.5.12 name its class without being
    told the group.
    """

    def __init__(self, group: Group) -> None:
        sglang = "sglang.srt.distributed"
        custom_all_reduce = importlib.import_module(f"{sglang}.device_communicators.custom_all_reduce")
        # Its check of peer access asks for SGLang's own group of all ranks (custom_all_reduce_utils.py:284); torch's
        # is there already, so that nothing else is set up.
        importlib.import_module(f"{sglang}.parallel_state").init_distributed_environment(
            world_size=group.num_ranks, rank=group.rank, local_rank=group.rank, backend=group.backend
        )
        self.group = group
        self.torch = group.torch
        between_cpus = group.dist.new_group(backend="gloo")
        try:
            kind = custom_all_reduce.dispatch_custom_allreduce(group=between_cpus, device=group.device)
        except TypeError:
            kind = custom_all_reduce.dispatch_custom_allreduce()
        self.communicator = kind(group=between_cpus, device=group.device)
        if self.communicator.disabled:
            raise UnsupportedError("SGLang turns it off for these GPUs")
        small = group.whole[:SMALL_ELEMENTS]
        if self.communicator.should_custom_ar(small):
            self.communicator.custom_all_reduce(small)  # compiles, which must not happen while it is captured

    def repeats_s(self, size_bytes: int) -> list[float]:
        """Raises UnsupportedError for a size that SGLang leaves to NCCL."""
        torch, communicator = self.torch, self.communicator
        buffer = self.group.parts(size_bytes)[0]
        torch.cuda.synchronize()
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        captured = 0
        with torch.cuda.stream(stream), communicator.capture(), torch.cuda.graph(graph, stream=stream):
            if communicator.should_custom_ar(buffer):
                kept = [communicator.custom_all_reduce(buffer) for _ in range(MOST_IN_BATCH)]
                captured = len([each for each in kept if each is not None])
            else:
                buffer.add_(0)  # an empty graph cannot be captured without a warning
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        if captured < MOST_IN_BATCH:
            raise UnsupportedError("SGLang leaves this size to NCCL")
        return self.group.repeats_s(graph.replay, runs_in_one=captured)


def measure_custom(plan: dict[str, Any], group: Group, say: Say) -> None:
    where = {"op": "all_reduce", "backend": CUSTOM, "num_ranks": group.num_ranks}
    try:
        all_reduce = CustomAllReduce(group)
    except (ImportError, UnsupportedError) as error:
        say({"skipped": {**where, "why": str(error)}})
        return
    for size_bytes in plan["sizes"]:
        try:
            repeats = all_reduce.repeats_s(size_bytes)
        except UnsupportedError as error:
            say({"skipped": {**where, "size_bytes": size_bytes, "why": str(error)}})
            continue
        say({"repeats": {**where, "size_bytes": size_bytes, "seconds": repeats}})
    group.part()


def say_hello(say: Say) -> None:
    try:
        torch, dist = importlib.import_module("torch"), importlib.import_module("torch.distributed")
    except ImportError as error:
        say({"missing": "torch cannot be imported there: " + first_line(error)})
        return
    if not dist.is_available():
        say({"missing": "the torch there is built without torch.distributed"})
        return
    hello = {"torch": str(torch.__version__), "num_gpus": 0, "nccl": "", "sglang": ""}
    if torch.cuda.is_available() and torch.version.cuda and dist.is_nccl_available():
        hello["num_gpus"] = torch.cuda.device_count()
        hello["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        hello["sglang"] = importlib.metadata.version("sglang")
    say({"hello": hello})


def first_line(error: BaseException) -> str:
    """In words, without the stack that some of torch's carry."""
    lines = str(error).strip().splitlines()
    return (type(error).__name__ + ": " + lines[0]) if lines else type(error).__name__


# The parent. --------------------------------------------------------------------------------------------------------


class EndedError(Exception):
    """Standard input was closed, or a rank failed: nothing more is to be done."""


class Ranks:
    """Forked processes, what they say, and that none outlives the rest."""

    def __init__(self, main: Callable[[int, Say], None], num_ranks: int) -> None:
        self.pipes: dict[int, int] = {}
        self.pids: dict[int, int] = {}
        for rank in range(num_ranks):
            reading, writing = os.pipe()
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                os.close(reading)
                self.become(main, rank, writing)
            os.close(writing)
            self.pipes[reading] = rank
            self.pids[rank] = pid

    @staticmethod
    def become(main: Callable[[int, Say], None], rank: int, writing: int) -> None:
        """Never returns. What libraries print goes to standard error."""
        code = 1
        try:
            ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL)
            os.dup2(2, 1)
            os.close(0)
            os.open(os.devnull, os.O_RDONLY)

            def say(what: dict[str, Any]) -> None:
                unwritten = (json.dumps(what) + "\n").encode()
                while unwritten:
                    unwritten = unwritten[os.write(writing, unwritten) :]

            try:
                main(rank, say)
                code = 0
            except BaseException as error:  # noqa: BLE001 - the process ends with it, and says so
                say({"failed": {"rank": rank, "at_s": time.monotonic(), "error": first_line(error)}})
                traceback.print_exc()
        finally:
            os._exit(code)

    def said(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """What each rank says, until all have ended.

        Raises EndedError when standard input closes, and with the earliest failure, for which the other ranks are
        given a moment: those that waited for the one that failed fail too.
        """
        unread = dict.fromkeys(self.pipes, b"")
        failures: list[dict[str, Any]] = []
        until: float | None = None
        while unread:
            limit_s = None if until is None else until - time.monotonic()
            ready = select.select([0, *unread], [], [], limit_s and max(limit_s, 0))[0]
            if 0 in ready and not os.read(0, 4096):
                raise EndedError
            for pipe in [each for each in ready if each in unread]:
                part = os.read(pipe, 1 << 16)
                *lines, unread[pipe] = (unread[pipe] + part).split(b"\n")
                for what in map(json.loads, lines):
                    if "failed" in what:
                        failures.append(what["failed"])
                    else:
                        yield self.pipes[pipe], what
                if not part:
                    del unread[pipe]
                    failures += self.silent_death(pipe, failures)
            until = until or (time.monotonic() + OTHERS_WORDS_S if failures else None)
            if until is not None and time.monotonic() > until:
                break
        if failures:
            first = min(failures, key=lambda each: each["at_s"])
            raise EndedError({"rank": first["rank"], "error": first["error"]})

    def silent_death(self, pipe: int, told: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The failure of a rank that has closed its pipe, ended otherwise than it should, and told none."""
        os.close(pipe)
        rank = self.pipes[pipe]
        _, status = os.waitpid(self.pids.pop(rank), 0)
        if status == 0 or any(each["rank"] == rank for each in told):
            return []
        how = f"was ended by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "ended without a word"
        return [{"rank": rank, "at_s": time.monotonic(), "error": f"the process {how}"}]

    def kill(self) -> None:
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def out(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def run_ranks(main: Callable[[int, Say], None], num_ranks: int) -> None:
    """A point is what the slowest rank took, in the median batch."""
    ranks = Ranks(main, num_ranks)
    found: dict[str, dict[int, list[float]]] = {}
    skipped = set()
    try:
        for rank, what in ranks.said():
            if "repeats" in what:
                point = what["repeats"]
                seconds = point.pop("seconds")
                key = json.dumps(point)
                found.setdefault(key, {})[rank] = seconds
                if len(found[key]) == num_ranks:
                    of_ranks = [each for each in found.pop(key).values() if each is not None]
                    slowest = sorted(max(together) for together in zip(*of_ranks, strict=True))
                    out({"point": {**point, "seconds": slowest[len(slowest) // 2]}})
            elif "skipped" in what:
                if json.dumps(what) not in skipped:
                    skipped.add(json.dumps(what))
                    out(what)
            else:
                out(what)
    finally:
        ranks.kill()


def carry_out(plan: dict[str, Any], folder: str) -> None:
    run_ranks(lambda _rank, say: say_hello(say), 1)
    phases = [measure_torch]
    if plan.get("custom"):
        phases.append(measure_custom)
    for phase in phases:
        for num_ranks in plan["groups"]:
            place = f"{folder}/{phase.__name__}-{num_ranks}"

            def main(rank: int, say: Say, num_ranks: int = num_ranks, place: str = place, phase: Any = phase) -> None:
                phase(plan, Group(plan, rank, num_ranks, place), say)

            try:
                run_ranks(main, num_ranks)
            except EndedError as end:
                if phase is measure_torch or not end.args:
                    raise
                why = f"rank {end.args[0]['rank']}: {end.args[0]['error']}"
                out({"skipped": {"op": "all_reduce", "backend": CUSTOM, "num_ranks": num_ranks, "why": why}})
    out({"done": True})


def read_plan() -> dict[str, Any] | None:
    """Byte for byte: what a buffer had read ahead, `select` would not see."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return None
        line += byte
    plan: dict[str, Any] = json.loads(line)
    return plan


def main() -> None:
    plan = read_plan()
    if plan is None:
        out({"missing": "standard input is closed: a container needs -i to be told what to measure"})
        return
    folder = tempfile.mkdtemp(prefix="layout-tune-")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        carry_out(plan, folder)
    except EndedError as end:
        if end.args:
            out({"failed": end.args[0]})
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        # Compilers that a rank started are in this process's group too, and it is nobody else's.
        if os.getpgid(0) == os.getpid():
            sys.stdout.flush()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.killpg(0, signal.SIGTERM)


if __name__ == "__main__":
    main()
