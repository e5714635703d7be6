"""What is being optimised, read off a prediction or a measurement."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from cost_models.prediction import Prediction
from search_spaces.errors import UnknownNameError, UserError
from tuner.goodput import Goodput
from tuner.latency_limits import limits_of
from tuner.outcome import Environment, Outcome, StoppedEarly, measurement_of, seen_of


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
    def identity(self) -> str:
        """What makes it another question."""
        return str(self)

    @property
    def shown_unit(self) -> str:
        """Unit of `shown`."""
        return "tok/s" if self is Objective.PEAK_THROUGHPUT else "ms/token"

    @property
    def unit(self) -> str:
        """Unit of `value_of`, SI; see `shown` for people."""
        return "tok/s" if self is Objective.PEAK_THROUGHPUT else "s"

    def value_of(self, outcome: Outcome) -> float | None:
        """What the trial says of the objective; None where it says nothing.

        A ladder that was left half-way has no peak: what lies above the last rung is not known. Concurrency 1 is known
        once it is measured, also of a layout that dies of more requests at once.
        """
        if self is Objective.PEAK_THROUGHPUT:
            measurement = measurement_of(outcome)
            if measurement is None or isinstance(outcome, StoppedEarly):
                return None
            return measurement.peak.output_tok_per_s
        seen = None if isinstance(outcome, Environment) else seen_of(outcome)
        rung = None if seen is None else seen.at(1)
        return rung.tpot_s.mean if rung else None

    def predicted_by(self, prediction: Prediction) -> float:
        if self is Objective.PEAK_THROUGHPUT:
            return max(p.output_tok_per_s for p in prediction.points)
        return next(p.tpot_s for p in prediction.points if p.concurrency == 1)

    def promise(self, prediction: Prediction) -> float:
        """By which layouts are ranked before any is measured."""
        return self.predicted_by(prediction)

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


Aim = Objective | Goodput
"""What a study may be about."""


def aim_of(word: str, slo: str | None, *, output_tokens: int, request_rates: Sequence[float]) -> Aim:
    """`--objective` with `--slo`. Raises UserError."""
    if word.strip().lower() != "goodput":
        names = [*(each.value for each in Objective), "goodput"]
        if word.strip().lower().replace("-", "_") not in names:
            raise UnknownNameError("objective", word, names)
        if slo is not None:
            raise UserError(f"--slo is what --objective goodput holds to: {word} has no limits")
        return Objective.parse(word)
    if slo is None:
        raise UserError("--objective goodput needs its limits, e.g. --slo ttft_p99=2s,tpot_p99=50ms")
    highest = request_rates[-1] if request_rates else None
    return Goodput(limits=limits_of(slo), output_tokens=output_tokens, highest_rate=highest)
