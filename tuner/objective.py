"""What is being optimised, read off a prediction or a measurement."""

from __future__ import annotations

from enum import StrEnum

from cost_models.prediction import Prediction
from search_spaces.errors import UnknownNameError
from tuner.outcome import Outcome, StoppedEarly, measurement_of


class Objective(StrEnum):
    PEAK_THROUGHPUT = "peak_throughput"
    """Output tokens per second of the whole deployment at the best rung of the ladder."""
    C1_LATENCY = "c1_latency"
    """Mean time per output token at concurrency 1, in seconds."""

    @classmethod
    def parse(cls, word: str) -> Objective:
        key = word.strip().lower().replace("-", "_")
        if key not in {o.value for o in cls}:
            raise UnknownNameError("objective", word, [o.value for o in cls])
        return cls(key)

    @property
    def maximise(self) -> bool:
        return self is Objective.PEAK_THROUGHPUT

    @property
    def other(self) -> Objective:
        """What layouts that are alike by this one are told apart by."""
        return Objective.C1_LATENCY if self is Objective.PEAK_THROUGHPUT else Objective.PEAK_THROUGHPUT

    @property
    def unit(self) -> str:
        """Unit of `value_of`, SI; see `shown` for people."""
        return "tok/s" if self is Objective.PEAK_THROUGHPUT else "s"

    def value_of(self, outcome: Outcome) -> float | None:
        """What the trial says of the objective; None where it says nothing.

        A ladder that was left half-way has no peak: what lies above the last rung is not known.
        """
        measurement = measurement_of(outcome)
        if measurement is None:
            return None
        if self is Objective.PEAK_THROUGHPUT:
            return None if isinstance(outcome, StoppedEarly) else measurement.peak.output_tok_per_s
        rung = measurement.at(1)
        return rung.tpot_s.mean if rung else None

    def predicted_by(self, prediction: Prediction) -> float:
        if self is Objective.PEAK_THROUGHPUT:
            return max(p.output_tok_per_s for p in prediction.points)
        return next(p.tpot_s for p in prediction.points if p.concurrency == 1)

    def gain(self, value: float, baseline: float) -> float:
        """How many times better `value` is than `baseline`; above 1 is better."""
        return value / baseline if self.maximise else baseline / value

    def compared(self, value: float, baseline: float) -> str:
        """For people: `1.35 times the throughput of`, `2.56 times as fast as`."""
        times = f"{self.gain(value, baseline):.2f} times"
        return f"{times} the throughput of" if self.maximise else f"{times} as fast as"

    def shown(self, value: float) -> str:
        """For people: `961 tok/s`, `15.3 ms per output token`."""
        return f"{value:.4g} tok/s" if self.maximise else f"{value * 1e3:.4g} ms/token"
