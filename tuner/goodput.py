"""The objective for users who must not wait: the most requests per second at which every limit holds.

As DistServe defines it (arXiv:2401.09670): the highest rate at which the wanted share of requests stays within the
limits. On a ladder of request rates it is the highest of them; on a ladder of concurrency, the most requests that end
per second at a rung of which the limits hold.
"""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.prediction import Prediction, ServingPoint
from tuner.latency_limits import Limit
from tuner.measurement import Measurement, RateRung, Rung
from tuner.outcome import Outcome, StoppedEarly, measurement_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """output_tokens: mean length of an answer, by which predicted tokens are requests.
    highest_rate: of the ladder of request rates, above which no goodput is seen; None for a ladder of concurrency.
    """

    limits: tuple[Limit, ...]
    output_tokens: int
    highest_rate: float | None = None

    maximise = True
    unit = "requests/s"
    shown_unit = "requests/s"

    def __str__(self) -> str:
        return "goodput"

    @property
    def limits_told(self) -> str:
        return ",".join(map(str, self.limits))

    @property
    def identity(self) -> str:
        """With what makes it another question."""
        return f"goodput under {self.limits_told}"

    def holds(self, rung: Rung | RateRung) -> bool:
        """A rate at which requests fail does not hold, nor one with which the server does not keep up: what ends is
        less than what is sent, and users wait the longer the longer it lasts."""
        is_lost = isinstance(rung, RateRung) and (rung.num_failed > 0 or not rung.is_kept_up)
        return not is_lost and all(limit.holds(rung.ttft_s, rung.tpot_s) for limit in self.limits)

    def best_of(self, measurement: Measurement) -> Rung | RateRung | None:
        """The rung that gives the value; None where the limits hold at none."""
        ladder: tuple[Rung | RateRung, ...] = measurement.rates or measurement.rungs
        held = [rung for rung in ladder if self.holds(rung)]
        return max(held, key=lambda rung: rung.requests_per_s, default=None)

    def value_of(self, outcome: Outcome) -> float | None:
        """0 where the limits hold nowhere; None where the trial does not say, as with a ladder left half-way."""
        measurement = measurement_of(outcome)
        if measurement is None or isinstance(outcome, StoppedEarly):
            return None
        best = self.best_of(measurement)
        return 0.0 if best is None else best.requests_per_s

    def predicted_by(self, prediction: Prediction) -> float:
        """Of a closed loop, by predicted means: the cost model has no percentiles."""
        held = [point for point in prediction.points if self._excess(point) <= 1]
        rate = max((self._requests_per_s(point) for point in held), default=0.0)
        return rate if self.highest_rate is None else min(rate, self.highest_rate)

    def promise(self, prediction: Prediction) -> float:
        """Above 0 also where no point holds: then the rate of the one that is least far from it, over how far."""
        if (predicted := self.predicted_by(prediction)) > 0:
            return predicted
        least = min(prediction.points, key=self._excess)
        return self._requests_per_s(least) / self._excess(least)

    def gain(self, value: float, baseline: float) -> float:
        """How many times better `value` is than `baseline`, neither of them 0; above 1 is better."""
        return value / baseline

    def compared(self, value: float, baseline: float) -> str:
        return f"{self.gain(value, baseline):.2f} times the goodput of"

    def shown(self, value: float) -> str:
        return f"{value:.4g} {self.shown_unit}"

    def _requests_per_s(self, point: ServingPoint) -> float:
        return point.output_tok_per_s / self.output_tokens

    def _excess(self, point: ServingPoint) -> float:
        """How many times the worst limit is exceeded; at most 1 where all hold."""
        times_s = {"ttft": point.ttft_s, "tpot": point.tpot_s}
        return max(times_s[limit.metric] / limit.most_s for limit in self.limits)
