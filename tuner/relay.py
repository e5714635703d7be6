"""Passes on what a trial tells, to whoever shows it and to the record."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tuner.events import Listener, Notice, RequestsDone, RungMeasured, ServerStarted, StageReached
from tuner.measurement import Rung
from tuner.watcher import Watcher


class Relay(Watcher):
    """number: of the trial. log_rung: writes a rung down while the trial goes on."""

    def __init__(self, number: int, tell: Listener, log_rung: Callable[[Rung], None]) -> None:
        self._number = number
        self._tell = tell
        self._log_rung = log_rung

    def on_stage(self, stage: str) -> None:
        self._tell(StageReached(number=self._number, stage=stage))

    def on_started(self, stage_s: Mapping[str, float]) -> None:
        self._tell(ServerStarted(number=self._number, stage_s=stage_s))

    def on_notice(self, text: str) -> None:
        self._tell(Notice(text=f"trial {self._number}: {text}"))

    def on_requests(self, concurrency: int, done: int, total: int) -> None:
        self._tell(RequestsDone(number=self._number, concurrency=concurrency, done=done, total=total))

    def on_rung(self, rung: Rung) -> None:
        self._log_rung(rung)
        self._tell(RungMeasured(number=self._number, rung=rung))
