"""What a trial tells while it runs."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.measurement import Rung


class Watcher:
    """The default hears nothing."""

    def on_stage(self, stage: str) -> None:
        """The server, or the load on it, has come to `stage`."""

    def on_started(self, stage_s: Mapping[str, float]) -> None:
        """The server is ready. stage_s: wall seconds that it was seen in each stage of its start."""

    def on_requests(self, concurrency: int, done: int, total: int) -> None: ...

    def on_rung(self, rung: Rung) -> None: ...

    def on_notice(self, text: str) -> None:
        """Something that a person should know, in one line."""
