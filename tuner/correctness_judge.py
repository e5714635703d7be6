"""The judge of a study's answers: keeps the reference, asks each server, says what its answers are worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.workload import Workload
from tuner.correctness import (
    ANSWER_TOKENS,
    Agreement,
    Answers,
    Reference,
    difference,
    judged,
    prompt_lengths,
    tolerance_of,
)
from tuner.correctness_probe import Probe, UnaskedError
from tuner.interruptible import run_interruptibly
from tuner.outcome import Crashed, Hung, Outcome, WrongAnswers
from tuner.servers.protocol import Server
from tuner.watcher import Watcher

_ADVICE = (
    "it computes something else: a fault of the engine with this layout, worth a report; other kernels may be right "
    "(--moe-runner-backend, --attention-backend, --moe-a2a-backend)"
)
_NOT_ASKED = "where only the question for log-probabilities ends it, --no-correctness-probe leaves that out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """ended: why the trial is over, if it is. agreement: None where the answers were not judged."""

    ended: Outcome | None = None
    agreement: Agreement | None = None


class AnswerJudge:
    """One study's. baseline: the effective layout whose answers are the reference, if it has any. reference: as kept so
    far. keep: writes a new one down.
    """

    def __init__(
        self,
        *,
        model: Model,
        workload: Workload,
        baseline: Layout,
        reference: Reference | None,
        keep: Callable[[Reference], None],
    ) -> None:
        self._model = model
        self._baseline = baseline
        self._keep = keep
        # No longer than the load's own requests, which the server is known to take.
        room = workload.tokens_per_request - ANSWER_TOKENS - 2
        self._lengths = prompt_lengths(max(1, min(workload.input_tokens, room)))
        self._reference = reference if self._is_of_these(reference) else None

    def judge(
        self, server: Server, layout: Layout, info: Mapping[str, Any], *, silence_limit_s: float, watcher: Watcher
    ) -> Judgement:
        """layout: effective. info: what the server says of itself. Raises KeyboardInterrupt."""
        if info.get("load_format") == "dummy":
            watcher.on_notice(
                "answers are not judged: weights of --load-format dummy are others in every layout (made a rank)"
            )
            return Judgement()
        quantization = str(info.get("quantization") or layout.quantization or "")
        reference = self._reference
        if reference is not None and reference.quantization != quantization:
            watcher.on_notice(
                f"answers are not judged: weights are {quantization or 'as stored'}, those of {reference.title} "
                f"{reference.quantization or 'as stored'}"
            )
            return Judgement()
        watcher.on_stage("answers")
        probe = Probe(
            prompt_lengths=self._lengths,
            vocab_size=self._model.vocab_size,
            reference=reference,
            silence_limit_s=silence_limit_s,
            is_simulated="simulated" in info,
        )
        try:
            answers = run_interruptibly(probe.of(server))
        except UnaskedError as error:
            watcher.on_notice(f"answers are not judged: {error}")
            return Judgement()
        if isinstance(answers, Crashed | Hung):
            return Judgement(ended=answers)
        kept = {name: str(info.get(name) or "auto") for name in ("dtype", "kv_cache_dtype")}
        tolerance = tolerance_of(self._model, layout, **kept)
        # The baseline is held against nobody else's answers, but theirs against its own.
        overruled = reference if layout == self._baseline else None
        if overruled is not None and overruled.is_baseline:
            overruled = None
        agreement, wrong = judged(answers, reference if overruled is None else None, tolerance)
        if overruled is not None and not wrong and judged(answers, overruled, tolerance)[1]:
            watcher.on_notice(
                f"the baseline gives other answers than {overruled.title}: what earlier trials were compared with was "
                "wrong, and so may be their verdicts"
            )
        if wrong:
            return Judgement(
                ended=WrongAnswers(cause=wrong, agreement=agreement, evidence=agreement.lines, advice=_ADVICE),
                agreement=agreement,
            )
        self._consider(answers, layout, quantization, watcher)
        if agreement.decode is not None and not agreement.decode.is_within(tolerance):
            watcher.on_notice(
                "decoding is not judged: it and prefill of the same text disagree already where there is nothing to "
                f"compare with ({agreement.decode.shown})"
            )
        return Judgement(agreement=agreement)

    def _consider(self, answers: Answers, layout: Layout, quantization: str, watcher: Watcher) -> None:
        """Sound answers become the reference where there is none, or where they are the baseline's."""
        is_baseline = layout == self._baseline
        if self._reference is not None and (self._reference.is_baseline or not is_baseline):
            return
        reference = Reference(
            layout=layout.label,
            is_baseline=is_baseline,
            quantization=quantization,
            prompt_lengths=self._lengths,
            vocab_size=self._model.vocab_size,
            read=answers.own_read,
            decode=difference(answers.own, answers.own_read),
        )
        if not is_baseline:
            watcher.on_notice(f"other layouts' answers are compared with those of {reference.title}: no baseline's yet")
        self._reference = reference
        self._keep(reference)

    def _is_of_these(self, reference: Reference | None) -> bool:
        """Whether it answers the very prompts that are asked here."""
        return reference is not None and (reference.prompt_lengths, reference.vocab_size) == (
            self._lengths,
            self._model.vocab_size,
        )


def advised(outcome: Outcome) -> Outcome:
    """Of a server that died of the questions: what would get past them."""
    if not isinstance(outcome, Crashed | Hung):
        return outcome
    return replace(outcome, advice=f"{outcome.advice}; {_NOT_ASKED}" if outcome.advice else _NOT_ASKED)
