"""Shows a study while it runs: the current trial, its stage, and the best so far."""

from __future__ import annotations

from textwrap import shorten
from types import TracebackType
from typing import Self, assert_never

from rich.status import Status
from rich.text import Text

from tuner.events import (
    Event,
    Notice,
    RequestsDone,
    RungMeasured,
    ServerStarted,
    StageReached,
    TrialEnded,
    TrialStarted,
)
from tuner.objective import Aim
from tuner.voice import Voice

_SPINNER_COLUMNS = 4


class Display:
    """A listener for a study's events. Draws a live line where someone watches; elsewhere only tells of each
    trial's start and end."""

    def __init__(self, voice: Voice, objective: Aim, trials: int) -> None:
        self._voice = voice
        self._objective = objective
        self._trials = trials
        self._best = ""
        self._trial = ""
        self._status: Status | None = None

    def __enter__(self) -> Self:
        if self._voice.is_live:
            opening = Text(f"{self._voice.mark}opening the study")
            self._status = Status(opening, console=self._voice.live_console())
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, event: Event) -> None:
        match event:
            case TrialStarted():
                self._trial = f"trial {event.number} {event.layout.label} ({event.origin})"
                predicted = self._objective.shown(event.predicted)
                self._say(f"trial {event.number}: {event.layout.label} ({event.origin}), predicted {predicted}")
                self._draw("launch")
            case StageReached():
                self._draw(event.stage)
            case ServerStarted():
                if event.stage_s:
                    spent = ", ".join(f"{stage} {spent_s:.3g} s" for stage, spent_s in event.stage_s.items())
                    self._say(f"trial {event.number}: started ({spent})")
            case RequestsDone():
                self._draw(f"concurrency {event.concurrency}: {event.done}/{event.total} requests")
            case RungMeasured():
                rung = event.rung
                self._draw(f"concurrency {rung.concurrency}: {rung.output_tok_per_s:.4g} tok/s")
            case TrialEnded():
                record = event.record
                outcome = record.outcome
                what = (
                    self._objective.shown(record.value) if record.value is not None else shorten(outcome.summary, 160)
                )
                if event.best is not None:
                    self._best = f"{self._objective.shown(event.best.value)} {event.best.requested.label}"
                best = f"; best {self._best}" if self._best else ""
                kind = f"{outcome.kind}: " if record.value is not None else ""
                self._say(f"trial {record.number}: {kind}{what}{best}")
            case Notice():
                self._say(event.text)
            case _:
                assert_never(event)

    def _say(self, text: str) -> None:
        if self._status is not None:
            self._status.stop()
        self._voice.say(text)
        if self._status is not None:
            self._status.start()

    def _draw(self, stage: str) -> None:
        if self._status is not None:
            best = f" | best {self._best}" if self._best else ""
            line = f"{self._voice.mark}{self._trial}: {stage}{best}"
            self._status.update(Text(line[: self._status.console.width - _SPINNER_COLUMNS]))
