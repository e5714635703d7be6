"""A server while somebody watches it: what it has said, and what became of it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tuner.diagnosis import Ended, diagnose, silent
from tuner.fault import Fault
from tuner.kernel_log import KernelWatch
from tuner.outcome import Crashed, Environment, Outcome
from tuner.patience import Patience
from tuner.server_control import is_ready
from tuner.server_log import ServerLog
from tuner.servers.protocol import Server
from tuner.watcher import Watcher

POLL_S = 0.1
LOOK_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """kernel: what the kernel says of it; None for a server that has no GPU of this machine."""

    server: Server
    log: ServerLog
    kernel: KernelWatch | None = None

    def look(self) -> bool:
        """Takes in what there is to see at the moment. Returns whether the server has said anything new."""
        pid = getattr(self.server, "pid", 0)
        if self.kernel is not None and pid:
            self.kernel.look(pid)
        return self.log.read()

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Goes on looking from a thread, while this one is busy: a flooded log is given back to the disk as it grows,
        and a secret in it does not stand there until the end.
        """
        over = threading.Event()

        def look() -> None:
            while not over.wait(LOOK_S):
                self.look()

        thread = threading.Thread(target=look, name="log", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def diagnosis(self, exit_code: int, stage: str) -> Outcome:
        self.log.read()
        kernel_log = "" if self.kernel is None else self.kernel.lines()
        return self.or_full_disk(
            diagnose(Ended(exit_code=exit_code, log=self.log.tail(), stage=stage, kernel_log=kernel_log))
        )

    def or_full_disk(self, outcome: Outcome) -> Outcome:
        """`outcome`, but where nobody knows what it was and there was no room to say it."""
        if not (self.log.disk_was_full and isinstance(outcome, Crashed) and outcome.fault is Fault.UNKNOWN):
            return outcome
        return Environment(
            cause=f"the disk of the server's log was full ({outcome.cause})",
            stage=outcome.stage,
            exit_code=outcome.exit_code,
            evidence=outcome.evidence,
            fault=Fault.DISK,
            advice=f"make room where {self.server.launch.log_path.parent} is, or run in another folder",
        )


class Asking:
    """Asks one question again and again in a thread, so that a server that lets it wait keeps nobody."""

    def __init__(self, question: Callable[[], bool]) -> None:
        self._question = question
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="asking")
        self._answer: Future[bool] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def answer(self) -> bool | None:
        """The answer to the last question, once; None where it is still open. Never waits."""
        if self._answer is None:
            self._answer = self._thread.submit(self._question)
        if not self._answer.done():
            return None
        answer, self._answer = self._answer.result(), None
        return answer


def lost(server: Server, stage: str) -> Environment:
    """The outcome of a server of which no more can be known: no verdict on its layout."""
    return Environment(cause=server.lost(), stage=stage, exit_code=None, fault=Fault.NETWORK)


class StageTimes:
    """Wall seconds seen in each stage of a start, as it goes."""

    def __init__(self) -> None:
        self._spent_s: dict[str, float] = {}
        self._stage = ""
        self._since_s = time.monotonic()

    def enter(self, stage: str) -> None:
        now_s = time.monotonic()
        if self._stage:
            self._spent_s[self._stage] = self._spent_s.get(self._stage, 0.0) + now_s - self._since_s
        self._stage, self._since_s = stage, now_s

    @property
    def spent_s(self) -> Mapping[str, float]:
        return dict(self._spent_s)


def await_ready(watched: Watched, patience: Patience, watcher: Watcher, times: StageTimes) -> Outcome | None:
    """None once the server answers as ready; else how it ended, or that it is silent for too long.

    Its process is looked at ten times a second, also while it lets a question wait.
    """
    server, log = watched.server, watched.log
    shown: tuple[str, int | None] = ("", None)
    heard_s = time.monotonic()
    times.enter(log.stage)
    with Asking(lambda: is_ready(server.base_url)) as asking:
        try:
            while True:
                code = server.exit_code()
                if watched.look():
                    heard_s = time.monotonic()
                if (log.stage, log.percent) != shown:
                    if log.stage != shown[0]:
                        times.enter(log.stage)
                    shown = (log.stage, log.percent)
                    watcher.on_stage(log.stage if log.percent is None else f"{log.stage} {log.percent} %")
                if code is not None:
                    return watched.diagnosis(code, log.stage)
                if server.lost():
                    return lost(server, log.stage)
                if asking.answer():
                    return None
                silent_s = time.monotonic() - heard_s
                if silent_s > patience.silence_s(log.stage):
                    return silent(stage=log.stage, silent_s=silent_s, log=log.tail())
                time.sleep(POLL_S)
        finally:
            times.enter("ready")
